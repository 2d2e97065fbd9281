"""Install seccomp filters: whether this kernel takes them, and Cove's own for this machine. seccomp(2)."""

import ctypes
import os
from pathlib import Path

from cove.core.seccomp import filter_program

_ACTIONS = Path("/proc/sys/kernel/seccomp/actions_avail")
_PR_GET_SECCOMP = 21


def has_filters() -> bool:
    """Return whether the kernel can filter system calls."""
    if _ACTIONS.exists():
        return True
    # Without seccomp in the kernel this fails with EINVAL: prctl(2).
    return bool(ctypes.CDLL(None).prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) >= 0)


def find_filter(*, emulates_root: bool = False) -> bytes | None:
    """Return the filter for this machine, where it can have one."""
    return filter_program(os.uname().machine, emulates_root=emulates_root) if has_filters() else None


def explain_missing_filter() -> str:
    """Explain why there is none, and what to do."""
    if not has_filters():
        return "this kernel has no seccomp; use one built with CONFIG_SECCOMP_FILTER"
    return f"the system calls of {os.uname().machine} are not reviewed; use x86_64 or aarch64"
