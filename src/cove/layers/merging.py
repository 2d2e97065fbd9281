"""Merge a run of layers into one that shows the same, wherever it takes their place. Blocks.

Of every name the highest layer that has it counts. Directories are merged down to one that is opaque, or to a layer
where the name is something else. What hides names of layers below the run is kept: whiteouts, and directories that are
opaque; at the very bottom there is nothing to hide.

Layers are hostile: nothing is followed, entries and depth have a bound, and names are read from open directories. What
is made is ours alone until it is whole: directories get their modes and times last, the deepest first.
"""

import os
import stat
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cove.archive.sparse_copy import copy_data
from cove.archive.unpacking import MOST_DEPTH
from cove.errors import LimitExceeded
from cove.layers.directory import OPAQUE, is_whiteout, read_attribute
from cove.layers.layer_tar import is_kept
from cove.layers.packing import read_names
from cove.linux.open_below import DIRECTORY, FILE, Opened, open_below

MOST_ENTRIES: Final = 1_000_000
_RIGHTS: Final = ("system.posix_acl_access", "system.posix_acl_default", "security.capability")
_STEP_BYTES: Final = 8 << 20
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_TOP: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAKE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def merge_layers(
    sources: Sequence[Path],
    target: Path,
    *,
    is_bottom: bool,
    owners: "NewOwners | None" = None,
    check: Callable[[], object] = lambda: None,
) -> None:
    """Merge layers, bottom first, into the empty directory `target`. Where `is_bottom` nothing lies below them.

    With `owners` all files are given to users of theirs. Raises LimitExceeded; `check` may raise to give up.
    """
    with ExitStack() as stack:
        tops = [os.open(path, _TOP) for path in reversed(sources)]
        tops.append(os.open(target, _TOP))
        for top in tops:
            stack.callback(os.close, top)
        _Merging(tops[:-1], tops[-1], is_bottom, owners, check).run()


@dataclass(frozen=True, slots=True)
class NewOwners:
    """The owners of what is made: of `users` numbers from `first` on, those that stand for the ones of each layer.

    `before` are the first numbers of the layers, bottom first; a file of somebody else is given to the first.
    """

    first: int
    users: int
    before: Sequence[int]

    def find(self, layer: int, found: os.stat_result) -> tuple[int, int]:
        """Return user and group of what that layer, counted from the top, has."""
        begin = self.before[-1 - layer]
        return self._shift(found.st_uid - begin), self._shift(found.st_gid - begin)

    def _shift(self, number: int) -> int:
        return self.first + (number if 0 <= number < self.users else 0)


@dataclass(frozen=True, slots=True)
class _Directory:
    """One directory to make: the layers that it is merged from, highest first, and whether it hides all below."""

    path: bytes
    layers: tuple[int, ...]
    hides: bool


@dataclass(slots=True)
class _Merging:
    tops: Sequence[int]
    target: int
    is_bottom: bool
    owners: NewOwners | None
    check: Callable[[], object]
    _entries: int = 0
    _links: dict[tuple[int, int, int], bytes] = field(default_factory=dict)
    _made: list[tuple[bytes, int, tuple[int, int]]] = field(default_factory=list)

    def run(self) -> None:
        """Make everything, parents first, without recursion."""
        pending = [_Directory(b"", tuple(range(len(self.tops))), hides=False)]
        while pending:
            pending += self._merge(pending.pop())
        for path, mode, times in reversed(self._made):
            with open_below(self.target, path, DIRECTORY) as opened:
                os.utime(opened.descriptor, ns=times)
                os.fchmod(opened.descriptor, mode)

    def _merge(self, directory: _Directory) -> list[_Directory]:
        with ExitStack() as stack:
            opened = {
                layer: stack.enter_context(open_below(self.tops[layer], directory.path, DIRECTORY))
                for layer in directory.layers
            }
            made = stack.enter_context(open_below(self.target, directory.path, DIRECTORY))
            self._describe(directory, opened[directory.layers[0]], made)
            names: dict[bytes, list[int]] = {}
            for layer, each in opened.items():
                for name in read_names(each.descriptor, MOST_ENTRIES - self._entries):
                    if name not in names:
                        self._check_count(self._entries + len(names) + 1)
                    names.setdefault(name, []).append(layer)
            taken = (self._take(directory, name, layers, opened, made) for name, layers in names.items())
            return [below for below in taken if below is not None]

    def _describe(self, directory: _Directory, source: Opened, made: Opened) -> None:
        """Give a directory what the highest layer says about it; modes and times come when it is filled."""
        found = os.fstat(source.descriptor)
        _copy_attributes(source.descriptor, made.descriptor, is_directory=True)
        if directory.hides and not self.is_bottom:
            os.setxattr(made.descriptor, OPAQUE, b"y")
        if self.owners is not None:
            os.fchown(made.descriptor, *self.owners.find(directory.layers[0], found))
        self._made.append((directory.path, stat.S_IMODE(source.mode), (found.st_atime_ns, found.st_mtime_ns)))

    def _take(
        self, directory: _Directory, name: bytes, layers: list[int], opened: dict[int, Opened], made: Opened
    ) -> _Directory | None:
        """Make a name as the highest layer has it; returns a directory, which is filled later."""
        self._count(directory.path)
        path = directory.path + b"/" + name if directory.path else name
        found = os.stat(name, dir_fd=opened[layers[0]].descriptor, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode):
            self._make(path, name, layers[0], opened[layers[0]].descriptor, made.descriptor, found)
            return None
        merged, hides = [layers[0]], self._is_opaque(layers[0], path)
        for layer in layers[1:]:
            if hides:
                break
            is_directory = stat.S_ISDIR(os.stat(name, dir_fd=opened[layer].descriptor, follow_symlinks=False).st_mode)
            hides = not is_directory or self._is_opaque(layer, path)
            merged += [layer] if is_directory else []
        os.mkdir(name, 0o700, dir_fd=made.descriptor)
        return _Directory(path, tuple(merged), hides)

    def _count(self, path: bytes) -> None:
        self.check()
        self._entries += 1
        self._check_count(self._entries)
        if path.count(b"/") >= MOST_DEPTH:
            raise LimitExceeded("directories are nested too deeply")

    def _check_count(self, entries: int) -> None:
        if entries > MOST_ENTRIES:
            raise LimitExceeded(f"the layers have more than {MOST_ENTRIES} files")

    def _is_opaque(self, layer: int, path: bytes) -> bool:
        with open_below(self.tops[layer], path, DIRECTORY) as opened:
            return read_attribute(opened.descriptor, OPAQUE) == b"y"

    def _make(self, path: bytes, name: bytes, layer: int, source: int, made: int, found: os.stat_result) -> None:
        if is_whiteout(found) and self.is_bottom:
            return
        if stat.S_ISREG(found.st_mode):
            if not self._link(path, name, layer, made, found):
                self._copy(path, name, layer, source, made)
            return
        if stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=made)
        elif stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode):
            os.mknod(name, found.st_mode, dir_fd=made)
        else:
            os.mknod(name, stat.S_IFCHR, 0, dir_fd=made)
        self._finish(name, layer, made, found)

    def _finish(self, name: bytes, layer: int, made: int, found: os.stat_result) -> None:
        if self.owners is not None:
            os.chown(name, *self.owners.find(layer, found), dir_fd=made, follow_symlinks=False)
        if stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode):
            os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=made)
        os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=made, follow_symlinks=False)

    def _link(self, path: bytes, name: bytes, layer: int, made: int, found: os.stat_result) -> bool:
        """Link a file that another name of the same layer has brought already."""
        if found.st_nlink < 2:
            return False
        first = self._links.setdefault((layer, found.st_dev, found.st_ino), path)
        if first == path:
            return False
        os.link(first, name, src_dir_fd=self.target, dst_dir_fd=made, follow_symlinks=False)
        return True

    def _copy(self, path: bytes, name: bytes, layer: int, source: int, made: int) -> None:
        with self._open(path, name, layer, source) as opened:
            found = os.fstat(opened.descriptor)
            write = os.open(name, _MAKE, 0o600, dir_fd=made)
            try:
                copy_data(opened.descriptor, write, found.st_size, _STEP_BYTES, self.check)
                if self.owners is not None:
                    os.fchown(write, *self.owners.find(layer, found))  # before what it would take away
                _copy_attributes(opened.descriptor, write, is_directory=False)
                os.fchmod(write, stat.S_IMODE(opened.mode))
                os.utime(write, ns=(found.st_atime_ns, found.st_mtime_ns))
            finally:
                os.close(write)

    def _open(self, path: bytes, name: bytes, layer: int, source: int) -> Opened:
        try:
            return Opened(os.open(name, _OPEN, dir_fd=source))
        except PermissionError:
            return open_below(self.tops[layer], path, FILE)


def _copy_attributes(source: int, made: int, *, is_directory: bool) -> None:
    """Copy what a user has set. Whether a directory is opaque, who made it says."""
    for name in os.listxattr(source):
        if name in _RIGHTS:
            with suppress(OSError):  # nothing but root may set all of them
                os.setxattr(made, name, os.getxattr(source, name))
        elif name.startswith("user.") and name != OPAQUE:
            value = os.getxattr(source, name)
            if is_kept(os.fsencode(name), value, is_directory):
                os.setxattr(made, name, value)
