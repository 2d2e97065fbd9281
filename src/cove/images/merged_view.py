"""Look into layers that lie on one another, without mounting them. What is in them is an enemy's.

A path is resolved here, within the layers: symbolic links are read, never followed by the kernel, and never lead out.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cove.archive import tar
from cove.archive.tar import Refused

MOST_DEPTH = 200
MOST_LINKS = 40
OPAQUE = "user.overlay.opaque"
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

Parts = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class MergedView:
    """Layers by descriptors of their top directories, the highest first."""

    tops: Sequence[int]

    def resolve(self, parts: Parts) -> Parts:
        """Return where a path really is: no name on the way, nor the last, is a symbolic link. It need not exist."""
        real: list[bytes] = []
        links = 0
        left = list(reversed(parts))
        while left:
            name = left.pop()
            if name in (b"", b"."):
                continue
            if name == b"..":
                del real[-1:]
                continue
            link = self._read_link((*real, name))
            if link is None:
                real.append(name)
                continue
            links += 1
            if links > MOST_LINKS or len(left) > MOST_DEPTH:
                raise Refused(f"a path through too many links: {tar.shown(name)}")
            if link.startswith(b"/"):
                real.clear()
            left.extend(reversed(link.split(b"/")))
        return tuple(real)

    def look(self, parts: Parts) -> os.stat_result | None:
        """Return the facts of what the highest layer has there; None where it is deleted or never was."""
        for top in self.tops:
            with _parent(top, parts) as directory:
                found = None if directory is None else look_at(directory, parts[-1])
            if found is not None:
                return None if is_whiteout(found) else found
            if _hides(top, parts[:-1]):
                return None
        return None

    def read(self, path: str, most: int) -> bytes | None:
        """Return a small regular file by its absolute path, through links; None where there is none."""
        real = self.resolve(tuple(os.fsencode(path).split(b"/")))
        for top in self.tops if real else ():
            with _parent(top, real) as directory:
                found = None if directory is None else look_at(directory, real[-1])
                if found is not None and directory is not None:
                    return _read(directory, real[-1], most) if stat.S_ISREG(found.st_mode) else None
            if _hides(top, real[:-1]):
                return None
        return None

    def has(self, path: str) -> bool:
        """Return whether there is a file at an absolute path, through links."""
        real = self.resolve(tuple(os.fsencode(path).split(b"/")))
        found = self.look(real) if real else None
        return found is not None and stat.S_ISREG(found.st_mode)

    def _read_link(self, parts: Parts) -> bytes | None:
        """Return the target, where the highest layer that has this name has a symbolic link there."""
        for top in self.tops:
            with _parent(top, parts) as directory:
                found = None if directory is None else look_at(directory, parts[-1])
                if found is not None and directory is not None:
                    is_link = stat.S_ISLNK(found.st_mode)
                    return os.readlink(parts[-1], dir_fd=directory) if is_link else None
            if _hides(top, parts[:-1]):
                return None
        return None


@contextmanager
def opened_view(paths: Sequence[str]) -> Iterator[MergedView]:
    """Open layers by the paths of their top directories, the lowest first."""
    held: list[int] = []
    try:
        held += [os.open(path, OPEN_DIRECTORY) for path in reversed(paths)]
        yield MergedView(tuple(held))
    finally:
        for fd in held:
            os.close(fd)


def look_at(directory: int, name: bytes) -> os.stat_result | None:
    """Return the facts of a name in a directory; None where there is none."""
    try:
        return os.lstat(name, dir_fd=directory)
    except FileNotFoundError:
        return None


def is_whiteout(status: os.stat_result) -> bool:
    """Return whether an entry says that what is below it is deleted."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _read(directory: int, name: bytes, most: int) -> bytes:
    fd = os.open(name, _OPEN_FILE, dir_fd=directory)
    try:
        return os.read(fd, most)
    finally:
        os.close(fd)


@contextmanager
def _parent(top: int, parts: Parts) -> Iterator[int | None]:
    """Open the directory that a path of one layer is in, through directories only; None where one is missing."""
    directory = os.dup(top)
    try:
        for name in parts[:-1]:
            try:
                below = os.open(name, OPEN_DIRECTORY, dir_fd=directory)
            except OSError as error:
                if error.errno not in _NOTHING_THERE:
                    raise
                yield None
                return
            os.close(directory)
            directory = below
        yield directory
    finally:
        os.close(directory)


def _hides(top: int, parts: Parts) -> bool:
    """Return whether a directory of one layer, or one on the way to it, hides what is below."""
    directory = os.dup(top)
    try:
        for name in parts:
            try:
                below = os.open(name, OPEN_DIRECTORY, dir_fd=directory)
            except OSError as error:
                return error.errno in (errno.ENOTDIR, errno.ELOOP)
            os.close(directory)
            directory = below
            if OPAQUE in os.listxattr(directory):
                return True
        return False
    finally:
        os.close(directory)
