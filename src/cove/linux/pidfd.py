"""Processes by descriptor, safe against pid reuse: pidfd_open(2)."""

import os
import select
import signal
from contextlib import suppress
from pathlib import Path

_START_TIME = 19  # of the fields after the name: proc(5)


def reap(pid: int) -> int | None:
    """Collect an ended child; None when someone else in this program already did."""
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status)


def start_time(pid: int) -> int:
    """Return when it started, in clock ticks since boot: with the pid, this names one process for ever."""
    return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[_START_TIME])


def open_process(pid: int, started: int) -> int | None:
    """A pidfd of the process that has that pid and started then; None when it is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        is_same = start_time(pid) == started
    except (FileNotFoundError, ProcessLookupError):
        is_same = False
    if not is_same:
        os.close(pidfd)
        return None
    return pidfd


def end_process(pidfd: int, *, grace: float) -> None:
    """TERM, then KILL when it is not gone after the grace. Blocks until it is."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        if not wait_for_end(pidfd, grace):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            wait_for_end(pidfd, None)


def wait_for_end(pidfd: int, timeout: float | None) -> bool:
    """Wait for the end; returns whether it is gone after at most so many seconds. Blocks."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000))
