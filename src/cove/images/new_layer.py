"""Write a new layer on an image: files, directories and links at paths of the image. Blocks.

A path is resolved in the image, by reading its links (`MergedView.resolve`); below that, what is no directory in the
image is refused. Within the layer, which nobody else writes to, no link is followed.
"""

import errno
import os
import posixpath
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cove.archive import tar
from cove.archive.sparse_copy import copy_data
from cove.archive.tar import Refused
from cove.images.build_source import BuildSource, Check, Item, Named
from cove.images.image_view import ImageView
from cove.images.merged_view import OPEN_DIRECTORY, Parts, look_at
from cove.images.recorded_owner import Owner, record_owner
from cove.linux.disk_usage import BLOCK_BYTES

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_STEP_BYTES = 16 << 20
_MOST_HELD = 100


@dataclass(frozen=True, slots=True)
class _Mode:
    """Mode, time and owner that a directory gets: `mtime` is None for one that is new."""

    mode: int
    mtime: int | None
    owner: Owner


class NewLayer:
    """A layer that is being written: `top` is its `data`. Modes of directories are set by `settle`, at the end.

    `root` is the host user whose number root's files get; without one, all belong to the caller, with a record. Where
    `most_bytes` is given, Refused for files that take more.
    """

    def __init__(self, top: int, image: ImageView, root: int | None, check: Check, most_bytes: int | None) -> None:
        self._top = top
        self._image = image
        self._root = root
        self._check = check
        self._left = most_bytes
        self._held: dict[Parts, int] = {}
        self._modes: dict[Parts, _Mode] = {}

    def make_directory(self, path: str) -> None:
        """Make a directory, and those above it, where there is none."""
        self._enter(self._image.resolve(_parts(path)))

    def copy(self, source: BuildSource, found: list[Named], target: str, mode: int | None, owner: Owner | None) -> None:
        """Copy files to a path or into a directory, and what is in directories into a directory, as COPY does.

        A mode and an owner are those of all, where they are given.
        """
        real = self._image.resolve(_parts(target))
        there = self._image.look(real)
        into = target.endswith("/") or (there is not None and stat.S_ISDIR(there.st_mode))
        if len(found) > 1 and not into:
            raise Refused(f"several files need a directory: write {target}/")
        for named in found:
            base = (*real, named.name) if into and not named.is_directory else real
            if named.is_directory:
                self._enter(base)
            for item in source.walk(named, self._check):
                whose = source.view.owner(item.real) if owner is None else owner
                self._add(source, item, (*base, *item.relative), mode, whose)

    def _add(self, source: BuildSource, item: Item, parts: Parts, mode: int | None, owner: Owner) -> None:
        if item.is_directory:
            self._enter(parts)
            self._modes[parts] = _Mode((item.status.st_mode & 0o777) if mode is None else mode, None, owner)
            return
        directory, name = self._clear(parts)
        if item.link is not None:
            os.symlink(item.link, name, dir_fd=directory)
            if self._root is not None:
                user, group = owner
                os.chown(name, self._root + user, self._root + group, dir_fd=directory, follow_symlinks=False)
            return
        read = source.open(item.real)
        try:
            write = os.open(name, _NEW_FILE, 0o600, dir_fd=directory)
            try:
                status = os.fstat(read)
                self._spend(status)
                copy_data(read, write, status.st_size, _STEP_BYTES, self._check)
                self._own(write, owner)
                os.fchmod(write, (status.st_mode & 0o777) if mode is None else mode)
                os.utime(write, ns=(status.st_mtime_ns, status.st_mtime_ns))
            finally:
                os.close(write)
        finally:
            os.close(read)

    def _clear(self, parts: Parts) -> tuple[int, bytes]:
        """Clear the way for a file: a file or a link is replaced, never a directory. Give its directory and name."""
        below = self._image.look(parts)
        directory, name = self._enter(parts[:-1]), self._image.place(parts)[-1]
        there = look_at(directory, name)
        if any(each is not None and stat.S_ISDIR(each.st_mode) for each in (below, there)) or not parts:
            raise Refused(f"{_shown(parts)} is a directory: a file cannot take its place")
        if there is not None:
            os.unlink(name, dir_fd=directory)
        return directory, name

    def _enter(self, parts: Parts) -> int:
        """Return the directory at real parts of the image, made as the image has it, or new."""
        held = self._held.get(parts)
        if held is not None:
            return held
        at = self._image.place(parts)
        parent = self._top if len(at) == 1 else self._enter(parts[:-1])
        opened = self._open(parent, at[-1], parts)
        if len(self._held) > _MOST_HELD:
            self._let_go()
        self._held[parts] = opened
        return opened

    def _open(self, parent: int, name: bytes, parts: Parts) -> int:
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
            self._modes.setdefault(parts, self._as_below(parts))
        except FileExistsError:
            pass
        try:
            return os.open(name, OPEN_DIRECTORY, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise Refused(f"{_shown(parts)} is no directory") from None
            raise

    def _spend(self, status: os.stat_result) -> None:
        """Count a file by what it takes on the disk that it comes from."""
        if self._left is not None:
            self._left -= status.st_blocks * BLOCK_BYTES
            if self._left < 0:
                raise Refused("the files take more than the limit on disk")

    def _own(self, descriptor: int, owner: Owner) -> None:
        if self._root is None:
            record_owner(descriptor, owner)
            return
        user, group = owner
        os.fchown(descriptor, self._root + user, self._root + group)

    def _as_below(self, parts: Parts) -> _Mode:
        found = self._image.look(parts)
        if found is None:
            return _Mode(0o1777 if parts == (b"tmp",) else 0o755, None, (0, 0))
        if not stat.S_ISDIR(found.st_mode):
            raise Refused(f"{_shown(parts)} is no directory in the image")
        return _Mode(found.st_mode & 0o1777, found.st_mtime_ns, self._image.owner(parts))

    def settle(self) -> None:
        """Set the modes of directories, and the times of those that are as they were."""
        for parts in sorted(self._modes, key=len, reverse=True):
            wanted = self._modes[parts]
            fd = self._enter(parts)
            self._own(fd, wanted.owner)
            os.fchmod(fd, wanted.mode | stat.S_IRWXU)  # whoever owns everything must be able to enter everything
            if wanted.mtime is not None:
                os.utime(fd, ns=(wanted.mtime, wanted.mtime))

    def close(self) -> None:
        """Close all directories."""
        self._let_go()

    def _let_go(self) -> None:
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()


@contextmanager
def new_layer(
    data: Path, image: ImageView, root: int | None, check: Check, most_bytes: int | None
) -> Iterator[NewLayer]:
    """Write a layer into a new directory `data`."""
    data.mkdir(mode=0o755)
    data.chmod(0o755)
    top = os.open(data, OPEN_DIRECTORY)
    layer = NewLayer(top, image, root, check, most_bytes)
    try:
        layer.make_directory("/")
        yield layer
        layer.settle()
    finally:
        layer.close()
        os.close(top)


def join(workdir: str, path: str) -> str:
    """Return an absolute path of the image, with the slash at its end that says it is a directory."""
    joined = posixpath.join("/", workdir, path)
    clean = "/" + posixpath.normpath(joined).lstrip("/")
    return f"{clean}/" if joined.endswith(("/", "/.")) and clean != "/" else clean


def _parts(path: str) -> Parts:
    return tuple(os.fsencode(path).split(b"/"))


def _shown(parts: Parts) -> str:
    return tar.shown(b"/" + b"/".join(parts))
