"""Kill orphaned processes, found by a mark among their arguments or by the user they run as."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def kill_orphans(mark: str) -> int:
    """SIGKILL for every process that has exactly this argument; returns how many those were."""
    return _end_all(lambda pid: mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))


def kill_processes_of(user_id: int) -> int:
    """SIGKILL for every process with this real, effective or saved user id; returns how many those were."""
    return _end_all(lambda pid: user_id in _user_ids(pid))


def _end_all(is_meant: Callable[[int], bool]) -> int:
    ended = 0
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with suppress(OSError):  # it has ended meanwhile, or is not ours
            if is_meant(pid):
                ended += _end(pid, is_meant)
    return ended


def _end(pid: int, is_meant: Callable[[int], bool]) -> bool:
    """By a descriptor, looked at once more: the number may belong to another process by now."""
    process = os.pidfd_open(pid)
    try:
        if not is_meant(pid):
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
    finally:
        os.close(process)
    return True


def _user_ids(pid: int) -> list[int]:
    status = Path(f"/proc/{pid}/status").read_bytes()
    return [int(word) for word in status.partition(b"\nUid:")[2].partition(b"\n")[0].split()]
