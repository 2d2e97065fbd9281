"""Write a file system's changes to its disk: syncfs(2)."""

import ctypes
import os

_syncfs = ctypes.CDLL(None, use_errno=True).syncfs


def sync_file_system(descriptor: int) -> None:
    """Wait until the disk has everything of the file system that an open file is in."""
    if _syncfs(descriptor) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
