"""Open what hostile code has filled, below an open directory, following no link: openat2(2).

What its owner may not read is opened all the same, by descriptor: for as long as it is held, its owner has the rights.
"""

import ctypes
import errno
import os
import stat
from dataclasses import dataclass, field
from typing import Final, Self

_OPENAT2: Final = 437  # the same number on every architecture: syscalls(2)
_RESOLVE_NO_XDEV, _RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 0x01, 0x02, 0x04, 0x08
_RESOLVE: Final = _RESOLVE_NO_XDEV | _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH
_ALWAYS: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
_OWNER_CAN_READ: Final = 0o400
_OWNER_CAN_ENTER: Final = 0o500

DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY
FILE: Final = os.O_RDONLY

_libc = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@dataclass(slots=True)
class Opened:
    """An open file or directory, and the modes to set again when it is closed."""

    descriptor: int
    _granted: list[tuple[int, int]] = field(default_factory=list)
    _mode: int | None = None

    @property
    def mode(self) -> int:
        """The mode that it has while nobody holds it open here."""
        return os.fstat(self.descriptor).st_mode if self._mode is None else self._mode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it, and take back the rights that it was opened with."""
        os.close(self.descriptor)
        take_back(self._granted)


def open_below(top: int, path: bytes, flags: int) -> Opened:
    """Open a path below a directory. Raises OSError: ELOOP for a link, EXDEV for what is mounted there."""
    path = path or b"."
    try:
        descriptor = _openat2(top, path, flags | _ALWAYS)
    except PermissionError:
        return _open_granted(top, path, flags | _ALWAYS)
    if not flags & os.O_DIRECTORY or os.geteuid() == 0:
        return Opened(descriptor)
    if os.fstat(descriptor).st_mode & _OWNER_CAN_ENTER == _OWNER_CAN_ENTER:
        return Opened(descriptor)
    os.close(descriptor)
    return _open_granted(top, path, flags | _ALWAYS)


def _openat2(top: int, path: bytes, flags: int) -> int:
    how = _How(flags, 0, _RESOLVE)
    while True:
        found: int = _libc.syscall(_OPENAT2, top, path, ctypes.byref(how), ctypes.sizeof(how))
        if found >= 0:
            return found
        number = ctypes.get_errno()
        if number not in (errno.EINTR, errno.EAGAIN):
            raise OSError(number, os.strerror(number), path)


def _open_granted(top: int, path: bytes, flags: int) -> Opened:
    """Open step by step, giving the owner what is missing on the way."""
    granted: list[tuple[int, int]] = []
    held = os.dup(top)
    try:
        for name in path.split(b"/"):
            below = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held)
            os.close(held)
            held = below
            mode = _grant(held, granted)
        return Opened(os.open(f"/proc/self/fd/{held}", flags & ~os.O_NOFOLLOW), granted, mode)
    except BaseException:
        take_back(granted)
        raise
    finally:
        os.close(held)


def _grant(held: int, granted: list[tuple[int, int]]) -> int:
    """Give the owner what is missing; returns the mode before."""
    mode = os.fstat(held).st_mode
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    needed = _OWNER_CAN_ENTER if stat.S_ISDIR(mode) else _OWNER_CAN_READ
    if mode & needed != needed:
        os.chmod(f"/proc/self/fd/{held}", stat.S_IMODE(mode) | needed)
        granted.append((os.dup(held), stat.S_IMODE(mode)))
    return mode


def take_back(granted: list[tuple[int, int]]) -> None:
    """Set modes as they were, the last that was changed first."""
    while granted:
        held, mode = granted.pop()
        os.chmod(f"/proc/self/fd/{held}", mode)
        os.close(held)
