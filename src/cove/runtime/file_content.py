"""Read and write the contents of files that the agent has opened, in threads."""

import errno
import os
from collections.abc import Iterator
from typing import ParamSpec, TypeVar

from cove.archive.sparse_copy import copy_data, copy_range
from cove.local.threads import Stop

P = ParamSpec("P")
T = TypeVar("T")

CHUNK_BYTES = 1 << 20
_COPY_BYTES = 32 << 20
_WINDOW_BYTES = 64 << 10


def read_range(descriptor: int, start: int, end: int) -> bytes:
    """Return the bytes from start to end, or to the end of the file."""
    data = os.pread(descriptor, end - start, start)
    if len(data) in (0, end - start):
        return data
    chunks = [data]
    at = start + len(data)
    while at < end and (data := os.pread(descriptor, end - at, at)):
        chunks.append(data)
        at += len(data)
    return b"".join(chunks)


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything where the descriptor stands."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def count_text(descriptor: int, text: bytes) -> int:
    """Count the occurrences of a text in a file."""
    return sum(len(parts) - 1 for parts in _split(descriptor, text))


def replace_text(read: int, write: int, old: bytes, new: bytes) -> int:
    """Write a file with another text in the place of one; returns how often."""
    count = 0
    for parts in _split(read, old):
        write_all(write, new.join(parts))
        count += len(parts) - 1
    return count


def _split(descriptor: int, text: bytes) -> Iterator[list[bytes]]:
    """Split a file by a text, a window at a time; what could be its beginning waits for the next window."""
    at, waiting = 0, b""
    window, size = max(_WINDOW_BYTES, len(text)), os.fstat(descriptor).st_size
    while at < size and (data := read_range(descriptor, at, min(at + window, size))):
        at += len(data)
        *parts, last = (waiting + data).split(text)
        cut = max(0, len(last) - len(text) + 1)
        waiting = last[cut:]
        yield [*parts, last[:cut]]
    yield [waiting]


def copy_all(read: int, write: int, most_bytes: int | None, stop: Stop) -> None:
    """Copy what the file holds at the beginning into an empty one; what is appended meanwhile is left out."""
    size = os.fstat(read).st_size
    if most_bytes is not None and size > most_bytes:
        raise OSError(errno.EFBIG, "too large")
    copy_data(read, write, size, _COPY_BYTES, stop.check)


def write_over(read: int, write: int) -> None:
    """Replace the content of an open file by another's, after its space is reserved: a full disk leaves the old one."""
    size, old_size = os.fstat(read).st_size, os.fstat(write).st_size
    if size:
        try:
            os.posix_fallocate(write, 0, size)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                os.ftruncate(write, old_size)
                raise  # otherwise this file system cannot promise anything
    at = 0
    while at < size and (copied := copy_range(read, write, at, min(_COPY_BYTES, size - at))):
        at += copied
    os.ftruncate(write, size)
