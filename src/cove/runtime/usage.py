"""Measure resource usage of one sandbox: by its control groups, or by its processes where those do not count."""

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from cove.core.egress_protocol import Totals
from cove.linux.cgroup import Group
from cove.linux.disk_usage import DiskUsage, measure_disk
from cove.model import MemoryMeasure, Usage
from cove.runtime.cgroups import SandboxGroups

TOTALS_FILE = "network.totals"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PROPORTIONAL = re.compile(rb"^Pss: +(\d+) kB", re.MULTILINE)
# The kernel walks all pages of a process to tell its proportional set size.
_LOOK_SECONDS = 0.5
# More than enough for the first fields of /proc/PID/stat: a process's name has 15 bytes.
_STAT_BYTES = 256
# A kernel can be built without it.
_TELLS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
_TICKS = os.sysconf("SC_CLK_TCK")


def measure_usage(
    groups: SandboxGroups,
    jail_pid: int,
    directories: Sequence[Path],
    measure: Callable[[list[str]], DiskUsage] = measure_disk,
) -> Usage:
    """Blocks for as long as it takes to count the files."""
    disk = measure([os.path.realpath(path) for path in directories])
    usage = measure_processes(groups, jail_pid)
    return msgspec.structs.replace(usage, disk_bytes=disk.bytes, files=disk.files)


def measure_processes(groups: SandboxGroups, jail_pid: int) -> Usage:
    """Measure all but the files. Blocks, but not for long."""
    pids = processes_of(groups, jail_pid)
    counted = _counted_memory(groups)
    return Usage(
        memory_bytes=_proportional_memory(pids) if counted is None else counted,
        memory_measure=MemoryMeasure.PROCESSES if counted is None else MemoryMeasure.CGROUP,
        cpu_seconds=_cpu(groups.tree, pids),
        pids=len(pids),
        memory_kills=groups.count_memory_kills() if "memory" in groups.controlled else None,
    )


def with_totals(usage: Usage, totals: Totals | None) -> Usage:
    """Return the usage with the totals of the network; without, where no policy ever held."""
    if totals is None:
        return usage
    return msgspec.structs.replace(
        usage, **{f"network_{name}": getattr(totals, name) for name in totals.__struct_fields__}
    )


def processes_of(groups: SandboxGroups, jail_pid: int) -> list[int]:
    """Return every process of the sandbox. Blocks."""
    return _descendants(jail_pid) if groups.tree is None else groups.tree.pids()


def frozen_processes_of(groups: SandboxGroups, jail_pid: int) -> list[int]:
    """Return every process of a sandbox that stands still; of one that does not, nearly every one. Blocks."""
    return processes_of(groups, jail_pid) if groups.tree is not None or not _TELLS_CHILDREN else _below(jail_pid)


def _counted_memory(groups: SandboxGroups) -> int | None:
    group = groups.controlled.get("memory")
    if group is None:
        return None
    return int(group.read("memory.current" if group is groups.tree else "memory.usage_in_bytes"))


def _proportional_memory(pids: list[int]) -> int:
    """The sum of proportional set sizes; of what cannot be looked at, or not in time, all that is not shared."""
    until = time.monotonic() + _LOOK_SECONDS
    return sum((_proportional(pid) if time.monotonic() < until else None) or _unshared(pid) for pid in pids)


def _cpu(tree: Group | None, pids: list[int]) -> float:
    """The unified tree counts it with or without a controller: cgroups(7), cpu.stat."""
    if tree is not None:
        return int(tree.read("cpu.stat").split()[1]) / 1e6
    return sum(_ticks(pid) for pid in pids) / _TICKS


def _proportional(pid: int) -> int | None:
    """Pages that processes share are divided among them: proc(5), smaps_rollup."""
    try:
        found = _PROPORTIONAL.search(Path(f"/proc/{pid}/smaps_rollup").read_bytes())
    except OSError:
        return None  # it has ended, or is not dumpable
    return None if found is None else int(found[1]) * 1024


def _unshared(pid: int) -> int:
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return 0  # it has ended
    return (int(resident) - int(shared)) * _PAGE_BYTES


def _fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on: proc(5)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _ticks(pid: int) -> int:
    """Its own time and that of its children that have ended."""
    return sum(int(field) for field in _fields(pid)[11:15])


def _parent(pid: str) -> int | None:
    """The parent of a process, None when it has ended: read as fast as it can be, for every process of the machine."""
    try:
        opened = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(opened, _STAT_BYTES)
        finally:
            os.close(opened)
    except OSError:
        return None
    return int(data[data.rindex(b")") + 1 :].split(None, 2)[1])


def _below(root: int) -> list[int]:
    """Go down from a process, parents first. What ends meanwhile hides others: proc(5), children."""
    found, pending = [], [root]
    while pending:
        below = _children(pending.pop())
        found += below
        pending += below
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # it has ended
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (parent := _parent(name)) is not None:
            children.setdefault(parent, []).append(int(name))
    found, pending = [], [root]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found
