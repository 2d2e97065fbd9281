"""Files and trees of this machine: one end of every upload and download.

What comes from a sandbox is not trusted: a tree is unpacked into a new directory, and no link is followed.
"""

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from cove.archive.remove_tree import remove_tree
from cove.archive.stream import Budget, Stream, pack, unpack
from cove.errors import FileTooLarge, ValidationFailed, from_errno

MOST_BYTES = 64 << 30
MOST_ENTRIES = 1_000_000
_HOLE_BYTES = 64 << 10
_OPEN_LOCAL = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


@contextmanager
def translated(subject: str) -> Iterator[None]:
    """A kernel error becomes one of ours."""
    try:
        yield
    except OSError as error:
        raise from_errno(error.errno or 0, subject) from None


@contextmanager
def limited(subject: str, max_bytes: int) -> Iterator[None]:
    """Name the limit in FileTooLarge."""
    try:
        yield
    except FileTooLarge:
        raise FileTooLarge(f"{subject} has more than {max_bytes} bytes: give a larger max_bytes") from None


def check_most(max_bytes: int) -> int:
    """Return the limit of a transfer, or raise ValidationFailed."""
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 0:
        raise ValidationFailed(f"max_bytes must be a number of bytes, not {max_bytes!r}")
    return max_bytes


def open_local(local: str) -> int:
    """Return a regular file of this machine."""
    descriptor = os.open(local, _OPEN_LOCAL)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValidationFailed(f"{local} is neither a regular file nor a directory")
    return descriptor


def make_local(local: str) -> tuple[int, str]:
    """Return a new file beside the one that it will replace."""
    if os.path.isdir(local):
        raise IsADirectoryError(errno.EISDIR, "a directory is there", local)
    directory = os.path.dirname(local) or "."
    os.makedirs(directory, exist_ok=True)
    return tempfile.mkstemp(prefix=".cove-", dir=directory)


def write_sparse(descriptor: int, data: bytes, at: int) -> None:
    """Write at that place of a new file; whole blocks of zeros stay holes. The size is for the caller to set."""
    begin = 0
    while begin < len(data):
        end = begin + _HOLE_BYTES - (at + begin) % _HOLE_BYTES
        block = data[begin:end]
        if block.count(0) != len(block):
            write_at(descriptor, block, at + begin)
        begin = end


def write_at(descriptor: int, data: bytes, at: int) -> None:
    """Write everything at that place."""
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, at)
        view, at = view[count:], at + count


def pack_tree(local: str, stream: Stream) -> None:
    """Write a directory as a tar stream."""
    pack(os.fsencode(local), stream, Budget(MOST_BYTES, MOST_ENTRIES))


def unpack_tree(stream: Stream, local: str, max_bytes: int) -> None:
    """Make or replace a directory from a tar stream."""
    os.makedirs(os.path.dirname(local) or ".", exist_ok=True)
    unpack(stream, os.fsencode(local), Budget(max_bytes, MOST_ENTRIES), remove_tree)
