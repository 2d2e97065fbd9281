"""Processes that lost their parent before anybody could know them, found by a mark among their arguments."""

import os
import signal
from contextlib import suppress
from pathlib import Path


def end_strays(mark: str) -> int:
    """SIGKILL for every process that has exactly this argument; returns how many those were."""
    ended = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended meanwhile, or is not ours
            if _has_argument(name, mark):
                ended += _end(int(name), mark)
    return ended


def _has_argument(name: str, mark: str) -> bool:
    return mark.encode() in Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")


def _end(pid: int, mark: str) -> bool:
    """By a descriptor, looked at once more: the number may belong to another process by now."""
    process = os.pidfd_open(pid)
    try:
        if not _has_argument(str(pid), mark):
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
    finally:
        os.close(process)
    return True
