"""What this program holds of the machine: processes, descriptors, control groups, sandbox directories."""

import ctypes
import gc
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_SETTLE_SECONDS = 5.0
_HOMES = Path("/tmp")  # where the tests' state directories are


def adopt_orphans() -> None:
    """From here on whatever a test starts stays below this process, also when its parent dies: prctl(2)."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@dataclass(frozen=True)
class Footprint:
    """A moment's holdings, each with a text that says what it is."""

    processes: dict[int, str]
    descriptors: dict[int, str]
    groups: frozenset[str]
    directories: frozenset[str]

    def beyond(self, before: "Footprint") -> list[str]:
        """What is held that was not held before."""
        return [
            *(f"process {pid} ({text})" for pid, text in self.processes.items() if pid not in before.processes),
            *(
                f"descriptor {number} ({text})"
                for number, text in self.descriptors.items()
                if before.descriptors.get(number) != text
            ),
            *(f"control group {path}" for path in self.groups - before.groups if _is_abandoned(Path(path))),
            *(f"directory {path}" for path in self.directories - before.directories),
        ]


def take_footprint(home: Path) -> Footprint:
    gc.collect()
    return Footprint(
        processes={pid: describe(pid) for pid in processes_below(os.getpid())},
        descriptors=descriptors(),
        groups=frozenset(control_groups()),
        directories=frozenset(
            str(entry) for name in ("sandboxes", "users") if (home / name).exists() for entry in (home / name).iterdir()
        ),
    )


def processes_below(root: int) -> list[int]:
    """Every living descendant; ended ones that nobody waited for are collected on the way."""
    children: dict[int, list[int]] = {}
    for pid, (state, parent) in process_table().items():
        if state == "Z" and parent == os.getpid():
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        else:
            children.setdefault(parent, []).append(pid)
    found: list[int] = []
    pending = [root]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def process_table() -> dict[int, tuple[str, int]]:
    """The state and the parent of every process of the machine."""
    table = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                state, parent, _ = file.read().rpartition(b")")[2].split(maxsplit=2)
        except (FileNotFoundError, ProcessLookupError):
            continue
        table[int(name)] = (state.decode(), int(parent))
    return table


def describe(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    except OSError:
        return "gone"


def descriptors() -> dict[int, str]:
    """The open descriptors of this process, without the one that lists them."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
    return found


def control_groups() -> list[str]:
    """The groups of every Cove sandbox of this machine."""
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, _ = line.split(" ")[:4]
        if kind in ("cgroup", "cgroup2"):
            for parent in (Path(point, "cove"), Path(point + _own_group(kind), "cove")):
                with suppress(FileNotFoundError), os.scandir(parent) as entries:
                    found += [entry.path for entry in entries if entry.is_dir()]
    return found


def _own_group(kind: str) -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if kind == "cgroup2" and line.startswith("0::"):
            return line[3:].rstrip("/")
    return ""


def _is_abandoned(group: Path) -> bool:
    """A new group that stays without processes and without a sandbox; tests that run beside this one have theirs."""
    until = time.monotonic() + _SETTLE_SECONDS
    while time.monotonic() < until:
        if not group.is_dir() or _has_processes(group) or any(_HOMES.glob(f"cove-*/sandboxes/{group.name}")):
            return False
        time.sleep(0.05)
    return True


def _has_processes(group: Path) -> bool:
    for folder, _, _ in os.walk(group):
        try:
            if Path(folder, "cgroup.procs").read_text():
                return True
        except OSError:
            continue
    return False
