"""System call filters: whether this kernel has them, and whether libseccomp is here. seccomp(2)."""

import ctypes
from pathlib import Path

LIBRARY = "libseccomp.so.2"

_ACTIONS = Path("/proc/sys/kernel/seccomp/actions_avail")
_PR_GET_SECCOMP = 21


def has_filters() -> bool:
    """Whether the kernel can filter system calls."""
    if _ACTIONS.exists():
        return True
    # Without seccomp in the kernel this fails with EINVAL: prctl(2).
    return bool(ctypes.CDLL(None).prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) >= 0)


def has_library() -> bool:
    """Whether the loader finds libseccomp."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True
