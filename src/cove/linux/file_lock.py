"""File locks that end with their holder, and can be tested without taking them: fcntl(2), F_OFD_SETLK."""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

_FLOCK = struct.Struct("hhqqi4x")
_WHOLE = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def try_lock(path: Path) -> FileIO | None:
    """Return the lock, held until the file is closed; None when another holds it or there is no such file."""
    try:
        file = FileIO(path, "r+")
    except FileNotFoundError:
        return None
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _WHOLE)
    except OSError:  # EAGAIN or EACCES: another holds it
        file.close()
        return None
    return file


def make_locked(path: Path) -> FileIO:
    """Make a new file, locked; others may not even read it: who reads can hold a lock against whoever writes."""
    file = FileIO(path, "x+", opener=lambda name, flags: os.open(name, flags, 0o600))
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, _WHOLE)
    return file


@contextmanager
def waiting_lock(path: Path) -> Iterator[int]:
    """Hold a lock that others wait for, on a file that is made if need be; gives its descriptor. Blocks: flock(2)."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


@contextmanager
def shared_lock(path: Path) -> Iterator[int]:
    """Hold a lock that others can hold too, but not beside `try_exclusive`. Blocks: flock(2)."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield lock
    finally:
        os.close(lock)


@contextmanager
def try_exclusive(path: Path) -> Iterator[bool]:
    """Hold the lock alone, if nobody else has it just now: tells whether."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(lock)


def is_locked(path: Path) -> bool:
    """Return whether anyone holds the lock; asking disturbs nobody."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        kind, *_ = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _WHOLE))
        return bool(kind != fcntl.F_UNLCK)
    finally:
        os.close(descriptor)
