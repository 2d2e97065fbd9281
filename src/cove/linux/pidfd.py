"""Waiting for our own child processes by descriptor: pidfd_open(2)."""

import os


def reap(pid: int) -> int | None:
    """Collect an ended child; None when someone else in this program already did."""
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status)
