"""What /proc tells about this process and those below it: proc(5)."""

import os
from dataclasses import dataclass
from pathlib import Path

_KIB = 1024


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one or many processes; pss and uss are None where the kernel does not let us look."""

    rss: int
    pss: int | None
    uss: int | None


def reset_peak() -> int:
    """Forget the memory high-water mark; returns the memory in use."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status_bytes("self", "VmRSS")


def peak_bytes() -> int:
    """The memory high-water mark since `reset_peak`."""
    return _status_bytes("self", "VmHWM")


def resident_bytes(pid: int | str = "self") -> int:
    """The memory in use."""
    return _status_bytes(pid, "VmRSS")


def count_descriptors() -> int:
    """Open descriptors of this process."""
    return len(os.listdir("/proc/self/fd")) - 1


def count_threads() -> int:
    """Threads of this process."""
    return len(os.listdir("/proc/self/task"))


def descendants(root: int) -> list[int]:
    """Every process below root."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (parent := _parent(name)) is not None:
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    pending = [root]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def memory_of(pids: list[int]) -> Memory:
    """The memory of these processes together."""
    rss, pss, uss = 0, 0, 0
    is_readable = True
    for pid in pids:
        rss += _status_bytes(pid, "VmRSS")
        try:
            sizes = _sizes(Path(f"/proc/{pid}/smaps_rollup"))
        except PermissionError:
            is_readable = False
            continue
        pss += sizes["Pss"]
        uss += sizes["Private_Clean"] + sizes["Private_Dirty"]
    return Memory(rss, pss if is_readable else None, uss if is_readable else None)


def _parent(name: str) -> int | None:
    try:
        line = Path(f"/proc/{name}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(line[line.rindex(b")") + 2 :].split()[1])


def _status_bytes(pid: int | str, name: str) -> int:
    return _sizes(Path(f"/proc/{pid}/status")).get(name, 0)


def _sizes(path: Path) -> dict[str, int]:
    fields = (line.split() for line in path.read_text().splitlines()[1:])
    return {words[0].rstrip(":"): int(words[1]) * _KIB for words in fields if words[-1] == "kB"}
