"""What this program holds of the machine: processes, descriptors, control groups, sandbox directories."""

import ctypes
import gc
import os
import select
import struct
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_LIBC = ctypes.CDLL(None)
_PR_SET_CHILD_SUBREAPER = 36
_IN_CREATE, _IN_MOVED_TO = 0x100, 0x80
_EVENT = struct.Struct("iIII")
_SETTLE_SECONDS = 5.0
_FLAGS, _PF_EXITING = 6, 0x4  # of the fields after the name
GONE = "gone"


def adopt_orphans() -> None:
    """From here on whatever a test starts stays below this process, also when its parent dies: prctl(2)."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Keys:
    """The keys of all sandboxes that were ever made in the state directories of this program's tests: inotify(7).

    Control groups are named by them: other programs on this machine, and tests that run beside these, have theirs.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._events = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)

    def watch(self, home: Path) -> None:
        """From here on, also those of that state directory."""
        sandboxes = home / "sandboxes"
        sandboxes.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, exist_ok=True)
        assert _LIBC.inotify_add_watch(self._events, bytes(sandboxes), _IN_CREATE | _IN_MOVED_TO) >= 0

    def seen(self) -> set[str]:
        """All of them."""
        with suppress(BlockingIOError):
            while events := os.read(self._events, 1 << 16):
                self._note(events)
        return self._seen

    def _note(self, events: bytes) -> None:
        while events:
            _, _, _, length = _EVENT.unpack_from(events)
            name, events = events[_EVENT.size : _EVENT.size + length], events[_EVENT.size + length :]
            self._seen.add(os.fsdecode(name.rstrip(b"\0")))


KEYS = Keys()


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
            *(f"process {pid} ({text})" for pid, text in self.processes.items() if _stays(pid, before.processes)),
            *(
                f"descriptor {number} ({text})"
                for number, text in self.descriptors.items()
                if before.descriptors.get(number) != text
            ),
            *(f"control group {path}" for path in self.groups - before.groups if _is_abandoned(path)),
            *(f"directory {path}" for path in self.directories - before.directories),
        ]


def _stays(pid: int, before: Collection[int]) -> bool:
    """A new process. One that is in exit(2), or that a server of before started for itself, has a while to end."""
    if pid in before:
        return False
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        is_to_end = is_exiting(pid) or _parent(pid) in before
        has_ended, _, _ = select.select([process], [], [], _SETTLE_SECONDS if is_to_end else 0)
        return not has_ended
    finally:
        os.close(process)


def is_exiting(pid: int) -> bool:
    """Whether it runs no code of its own any more: proc(5), PF_EXITING in linux/sched.h."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return bool(int(stat.rpartition(b")")[2].split()[_FLAGS]) & _PF_EXITING)


def _parent(pid: int) -> int | None:
    return process_table().get(pid, ("", None))[1]


def take_footprint(home: Path) -> Footprint:
    gc.collect()
    return Footprint(
        processes={pid: text for pid in processes_below(os.getpid()) if (text := describe(pid)) != GONE},
        descriptors=descriptors(),
        groups=frozenset(group for group in control_groups() if os.path.basename(group) in KEYS.seen()),
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
        return GONE


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
                found += [str(path) for path in (*parent.glob("*/"), *parent.glob("tenant-*/*/"))]
    return found


def _own_group(kind: str) -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if kind == "cgroup2" and line.startswith("0::"):
            return line[3:].rstrip("/")
    return ""


def _is_abandoned(path: str) -> bool:
    """A group without processes that stays: the end of a living one may still come."""
    until = time.monotonic() + _SETTLE_SECONDS
    while time.monotonic() < until:
        if not os.path.isdir(path) or _has_processes(path):
            return False
        time.sleep(0.05)
    return True


def _has_processes(path: str) -> bool:
    for folder, _, _ in os.walk(path):
        try:
            if Path(folder, "cgroup.procs").read_text():
                return True
        except OSError:
            continue
    return False
