"""What one sandbox uses: from its control groups where they count it, from its processes where they do not."""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from cove.linux.cgroup import Group
from cove.linux.disk_usage import measure_disk
from cove.model import Usage
from cove.runtime.groups import SandboxGroups

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def measure_usage(groups: SandboxGroups, jail_pid: int, directories: Sequence[Path]) -> Usage:
    """Blocks for as long as it takes to count the files."""
    disk = measure_disk([os.path.realpath(path) for path in directories])
    usage = measure_processes(groups, jail_pid)
    return msgspec.structs.replace(usage, disk_bytes=disk.bytes, files=disk.files)


def measure_processes(groups: SandboxGroups, jail_pid: int) -> Usage:
    """All but the files. Blocks, but not for long."""
    pids = processes_of(groups, jail_pid)
    return Usage(
        memory_bytes=_memory(groups, pids),
        cpu_seconds=_cpu(groups.tree, pids),
        pids=len(pids),
        memory_kills=groups.count_memory_kills() if "memory" in groups.controlled else None,
    )


def processes_of(groups: SandboxGroups, jail_pid: int) -> list[int]:
    """Every process of the sandbox. Blocks."""
    return _descendants(jail_pid) if groups.tree is None else groups.tree.pids()


def _memory(groups: SandboxGroups, pids: list[int]) -> int:
    group = groups.controlled.get("memory")
    if group is not None:
        return int(group.read("memory.current" if group is groups.tree else "memory.usage_in_bytes"))
    return sum(_resident(pid) for pid in pids)


def _cpu(tree: Group | None, pids: list[int]) -> float:
    """The unified tree counts it with or without a controller: cgroups(7), cpu.stat."""
    if tree is not None:
        return int(tree.read("cpu.stat").split()[1]) / 1e6
    return sum(_ticks(pid) for pid in pids) / _TICKS


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0  # it has ended


def _fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on: proc(5)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _ticks(pid: int) -> int:
    """Its own time and that of its children that have ended."""
    return sum(int(field) for field in _fields(pid)[11:15])


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _fields(int(name))):
            children.setdefault(int(fields[1]), []).append(int(name))
    found, pending = [], [root]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found
