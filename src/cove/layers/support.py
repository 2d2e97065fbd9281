"""Find out whether layers can be shown as overlays here, or have to be copied. Blocks."""

import ctypes
import os
import re
import stat
import tempfile
from pathlib import Path

from cove.model import SnapshotMethod

# Overlays in user namespaces; as root on layers that belong to another user.
_OLDEST, _OLDEST_AS_ROOT = (5, 11), (5, 19)
_OVERLAY_MAGIC = 0x794C7630


class _StatFS(ctypes.Structure):
    _fields_ = (("type", ctypes.c_long), ("rest", ctypes.c_byte * 248))


def find_method(home: Path, *, can_mount: bool) -> SnapshotMethod:
    """Return the way in which snapshots are made in that state directory."""
    return SnapshotMethod.COPY if not can_mount or explain_copies(home) is not None else SnapshotMethod.OVERLAY


def explain_copies(home: Path) -> str | None:
    """Explain why layers have to be copied; None when they have not."""
    if is_kernel_too_old():
        found, oldest = (".".join(map(str, version)) for version in (_kernel_version(), _oldest_kernel()))
        return f"the kernel is {found}, overlays need {oldest}"
    if _is_overlay(home):
        return f"{home} lies on an overlay itself, as in a container: put it on a volume"
    return _explain_marks(home)


def is_kernel_too_old() -> bool:
    """Return whether this user needs a newer kernel to have overlays in user namespaces."""
    return _kernel_version() < _oldest_kernel()


def _oldest_kernel() -> tuple[int, int]:
    return _OLDEST_AS_ROOT if os.geteuid() == 0 else _OLDEST


def _kernel_version() -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (0, 0) if found is None else (int(found[1]), int(found[2]))


def _is_overlay(path: Path) -> bool:
    found = _StatFS()
    result = ctypes.CDLL(None).statfs(os.fsencode(path), ctypes.byref(found))
    return bool(result == 0 and found.type == _OVERLAY_MAGIC)


def _explain_marks(home: Path) -> str | None:
    """Try what an upper needs: marks on directories that replace others, and devices that stand for what is gone."""
    with tempfile.TemporaryDirectory(dir=home, prefix=".layers-") as folder:
        try:
            os.setxattr(folder, "user.overlay.opaque", b"y")
            os.mknod(f"{folder}/gone", stat.S_IFCHR, 0)
        except OSError as error:
            return f"the disk of {home} cannot hold layers: {error.strerror}"
    return None
