"""Processes by descriptor, safe against pid reuse: pidfd_open(2). Wait for one, end one, kill orphans."""

import errno
import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_PARENT, _START_TIME = 1, 19  # of the fields after the name: proc(5)
# A process that is killed ends at once, unless it waits for a disk.
_KILL_SECONDS = 5.0


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


def parent_of(pid: int) -> int:
    """Return the parent of a process. Raises FileNotFoundError or ProcessLookupError when it is gone."""
    return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[_PARENT])


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


def open_fact(pidfd: int, pid: int, name: str, flags: int = os.O_RDONLY) -> int:
    """Open a file of /proc/PID that belongs to the process of that pidfd, and not to one that has its pid after it."""
    try:
        opened = os.open(f"/proc/{pid}/{name}", flags | os.O_CLOEXEC)
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH)) from None
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        os.close(opened)
        raise
    return opened


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


def kill_orphans(*marks: str) -> int:
    """SIGKILL for every process that has exactly such an argument; returns how many those were. Waits for their end."""
    wanted = {mark.encode() for mark in marks}
    return _end_all(lambda pid: not wanted.isdisjoint(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")))


def kill_marked(name: str, value: str) -> int:
    """SIGKILL for every other process of ours with this variable; returns how many those were. Waits for their end."""
    wanted = f"{name}={value}".encode()

    def is_meant(pid: int) -> bool:
        return pid != os.getpid() and wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")

    return _end_all(is_meant)


def kill_processes_of(user_id: int, users: int = 1) -> int:
    """SIGKILL for every process with this real, effective or saved user id, or one of so many; returns their number."""
    meant = range(user_id, user_id + users)
    return _end_all(lambda pid: any(each in meant for each in _user_ids(pid)))


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
        wait_for_end(process, _KILL_SECONDS)
    finally:
        os.close(process)
    return True


def _user_ids(pid: int) -> list[int]:
    status = Path(f"/proc/{pid}/status").read_bytes()
    return [int(word) for word in status.partition(b"\nUid:")[2].partition(b"\n")[0].split()]
