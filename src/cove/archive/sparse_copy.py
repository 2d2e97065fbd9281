"""Copy a regular file sparsely, by the kernel alone (copy_file_range(2)): holes stay holes. Used on both sides.

A file system that cannot tell where holes are says that all is data: lseek(2).
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# copy_file_range(2): not between these file systems.
UNABLE = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def copy_range(read: int, write: int, at: int, size: int) -> int:
    """Copy up to so many bytes from and to the same place; returns how many, 0 at the end."""
    try:
        return os.copy_file_range(read, write, size, at, at)
    except OSError as error:
        if error.errno not in UNABLE:
            raise
    os.lseek(write, at, os.SEEK_SET)
    return os.sendfile(write, read, at, size)


def data_ranges(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Find the data in the first so many bytes of a file (SEEK_DATA, SEEK_HOLE): beginnings and ends."""
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
            end = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # only a hole is left, or the file has shrunk
            if error.errno != errno.EINVAL:
                raise
            start, end = at, size
        if start >= size:
            return
        yield start, end
        at = end


def copy_data(read: int, write: int, size: int, step: int, check: Callable[[], object] = lambda: None) -> None:
    """Copy the first so many bytes into an empty file, `check` called before each step."""
    for start, end in data_ranges(read, size):
        reached = copy_span(read, write, start, end, step, check)
        if reached < end:
            size = reached  # it has shrunk
            break
    os.ftruncate(write, size)


def copy_span(read: int, write: int, at: int, end: int, step: int, check: Callable[[], object]) -> int:
    """Copy up to an end; returns how far it came."""
    while at < end:
        check()
        copied = copy_range(read, write, at, min(step, end - at))
        if not copied:
            break
        at += copied
    return at
