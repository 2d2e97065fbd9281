"""Name this process; let it end with its parent: prctl(2)."""

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def name_process(name: str) -> None:
    """Set the name; the kernel keeps 15 characters."""
    Path("/proc/self/comm").write_text(name)


def end_with_parent(parent: int) -> None:
    """Arrange to be killed when the parent, which was that process, is gone; also when it is gone already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
