"""Look into layers that lie on one another, without mounting them. What is in them is an enemy's.

A path is resolved here, within the layers: symbolic links are read, never followed by the kernel, and never lead out.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from cove.archive import tar
from cove.archive.tar import Refused
from cove.images.recorded_owner import read_owner

MOST_DEPTH = 200
MOST_LINKS = 40
# A path has at most PATH_MAX bytes, half of which are slashes.
MOST_NAMES = 2048
_MOST_ID = 65535
OPAQUE = "user.overlay.opaque"
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

Parts = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class MergedView:
    """Layers by descriptors of their top directories, the highest first.

    `owners` are for each the host user that stands for root, or None where owners are recorded (recorded_owner);
    without them everything is root's.
    """

    tops: Sequence[int]
    owners: Sequence[int | None] = ()

    def resolve(self, parts: Parts) -> Parts:
        """Return where a path really is: no name on the way, nor the last, is a symbolic link. It need not exist."""
        real: list[bytes] = []
        links = 0
        left = list(reversed(parts))
        while left:
            if len(left) > MOST_NAMES or len(real) > MOST_DEPTH:
                raise Refused(f"a path of more than {MOST_DEPTH} directories in one another")
            name = left.pop()
            if name in (b"", b"."):
                continue
            if name == b"..":
                del real[-1:]
                continue
            link = self.read_link((*real, name))
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
        with self._find(parts) as found:
            return None if found is None or is_whiteout(found[1]) else found[1]

    def owner(self, parts: Parts) -> tuple[int, int]:
        """Return the user and group of the image that something belongs to."""
        with self._find(parts) as found:
            if found is None or not self.owners:
                return 0, 0
            first = self.owners[found[2]]
            if first is None:
                return read_owner(f"/proc/self/fd/{found[0]}/{os.fsdecode(self.place(parts)[-1])}")
            user, group = (each - first for each in (found[1].st_uid, found[1].st_gid))
            return user if 0 <= user < _MOST_ID else 0, group if 0 <= group < _MOST_ID else 0

    def names(self, parts: Parts) -> list[bytes]:
        """Return the names in a directory, in order. The parts are real ones: see `resolve`."""
        at = self.place(parts)
        seen: dict[bytes, bool] = {}
        for number, top in enumerate(self.tops):
            with _parent(top, (*at, b"")) as directory:
                for name in [] if directory is None else map(os.fsencode, os.listdir(directory)):
                    if name not in seen and directory is not None:
                        there = look_at(directory, name)
                        seen[name] = there is not None and not is_whiteout(there)
            if number + 1 < len(self.tops) and _hides(top, at):
                break
        return sorted(name for name, is_there in seen.items() if is_there)

    def open(self, parts: Parts) -> int | None:
        """Open a regular file for reading by its real parts; None where there is none."""
        with self._find(parts) as found:
            if found is None or not stat.S_ISREG(found[1].st_mode):
                return None
            return os.open(self.place(parts)[-1], _OPEN_FILE, dir_fd=found[0])

    def read(self, path: str, most: int) -> bytes | None:
        """Return a small regular file by its absolute path, through links; None where there is none."""
        real = self.resolve(tuple(os.fsencode(path).split(b"/")))
        fd = self.open(real) if real else None
        if fd is None:
            return None
        try:
            return os.read(fd, most)
        finally:
            os.close(fd)

    def has(self, path: str) -> bool:
        """Return whether there is a file at an absolute path, through links."""
        real = self.resolve(tuple(os.fsencode(path).split(b"/")))
        found = self.look(real) if real else None
        return found is not None and stat.S_ISREG(found.st_mode)

    def read_link(self, parts: Parts) -> bytes | None:
        """Return the target, where the highest layer that has this name has a symbolic link there."""
        with self._find(parts) as found:
            if found is None or not stat.S_ISLNK(found[1].st_mode):
                return None
            return os.readlink(self.place(parts)[-1], dir_fd=found[0])

    def place(self, parts: Parts) -> Parts:
        """Return where in a layer something is."""
        return parts

    @contextmanager
    def _find(self, parts: Parts) -> Iterator[tuple[int, os.stat_result, int] | None]:
        """Find the highest layer that has this name: its directory there, open, the facts, and which layer it is.

        The facts may say that it is deleted.
        """
        at = self.place(parts)
        for number, top in enumerate(self.tops if at else ()):
            with _parent(top, at) as directory:
                found = None if directory is None else look_at(directory, at[-1])
                if found is not None and directory is not None:
                    yield directory, found, number
                    return
            if number + 1 < len(self.tops) and _hides(top, at[:-1]):
                break
        yield None


@dataclass(frozen=True, slots=True)
class StillView(MergedView):
    """Layers that nobody changes: each link is read once."""

    links: dict[Parts, bytes | None] = field(default_factory=dict)

    def read_link(self, parts: Parts) -> bytes | None:
        """Return the target, as it was found first."""
        if parts not in self.links:
            self.links[parts] = MergedView.read_link(self, parts)
        return self.links[parts]


@contextmanager
def opened_view(paths: Sequence[str]) -> Iterator[MergedView]:
    """Open layers by the paths of their top directories, the lowest first."""
    held: list[int] = []
    try:
        held += [os.open(path, OPEN_DIRECTORY) for path in reversed(paths)]
        yield StillView(tuple(held))
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
