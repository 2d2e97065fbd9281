"""Unpack one layer of an image into a directory, in overlay form. Everything in it is an enemy's.

Each step is made from an open directory and follows no link of its own accord. A path through a symbolic link, as some
builders write them, is resolved here, within the image: links are read, never followed by the kernel.

- `.wh.NAME` becomes a character device 0:0, and `.wh..wh..opq` the attribute `user.overlay.opaque`: overlayfs reads
  them as "deleted below" and "nothing below is seen".
- Devices, pipes, sockets, extended attributes, set-user-id and set-group-id bits are left out: nothing inside could
  use them.
- Owners are those of the image, counted from a user that stands for root; without one everything is the caller's, and
  whose it would be is recorded.
"""

import errno
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from cove.archive import tar
from cove.archive.stream import Budget
from cove.archive.tar import Refused
from cove.archive.unpacking import Directories
from cove.images.layer_stream import LayerStream
from cove.images.merged_view import (
    MOST_DEPTH,
    MOST_LINKS,
    MOST_NAMES,
    OPAQUE,
    OPEN_DIRECTORY,
    MergedView,
    is_whiteout,
    look_at,
)
from cove.images.parts import is_apart
from cove.images.recorded_owner import record_owner

MOST_ENTRIES = 1_000_000
NOBODY = 65534
_WHITEOUT, _OPAQUE_MARK = b".wh.", b".wh..wh..opq"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS = (tar.FILE, tar.HARD_LINK, tar.SYMLINK, tar.DIRECTORY)


@dataclass(frozen=True, slots=True)
class Entry:
    """One member of a layer. `stored` is its size in the archive, where it has holes."""

    kind: bytes
    parts: tuple[bytes, ...]
    link: bytes
    mode: int
    user: int
    group: int
    mtime: int
    member: tar.Member


class LayerUnpacking:
    """Makes the entries of a layer below `top`; `lowers` are the layers that it stands on, the lowest first.

    `root` is the host user whose number root's files get; other owners follow from it. `check` is called for every
    entry, and may raise to give up. Each directory is looked up once in the layers below, by its parent and one name,
    and what is in one that they lack is not looked up there.
    """

    def __init__(
        self, top: int, lowers: Sequence[int], stream: LayerStream, *, root: int | None, check: Callable[[], object]
    ) -> None:
        self._stream = stream
        self._check = check
        self._budget = Budget(1 << 62, MOST_ENTRIES)
        self._view = MergedView((top, *reversed(lowers)))
        self._below = MergedView(tuple(reversed(lowers)), (root,) * len(lowers))
        self._top = top
        self._root = root
        self._alone = MergedView((top,))
        self._links: dict[int, bytes | None] = {}
        self._fresh: set[int] = set() if lowers else {0}
        self._held: list[tuple[bytes, int]] = []
        self._directories = Directories()
        self.skipped = 0

    def run(self) -> None:
        """Unpack everything; the modes of directories last, so that all of them can be written until then."""
        try:
            for block, kind, size, extended in tar.read_headers(self._stream):
                self._check()
                self._budget.spend(0)
                self._make(_decode(block, kind, size, extended))
            for parts, facts in self._directories.deepest_first():
                self._check()
                self._settle(self._enter(tuple(parts)), *facts)
            if self._directories.facts[0] is None:
                os.utime(self._top, (0, 0))  # the same whenever it is unpacked
        finally:
            self._leave(0)

    def _make(self, entry: Entry) -> None:
        if len(entry.parts) > MOST_DEPTH:
            raise Refused(f"nested too deeply: {tar.shown(b'/'.join(entry.parts))}")
        if not entry.parts or entry.kind == tar.DIRECTORY:
            self._make_directory(entry)
            return
        parents, name = self._resolve(entry.parts[:-1]), entry.parts[-1]
        if name.startswith(_WHITEOUT):
            self._make_whiteout(parents, name)
            self._skip(entry.member)
        elif entry.kind not in _KINDS:
            self.skipped += 1
            self._skip(entry.member)
        else:
            self._clear(self._enter(parents), name)
            self._forget_link(parents, name)
            self._make_leaf(entry, parents, name)

    def _make_leaf(self, entry: Entry, parents: tuple[bytes, ...], name: bytes) -> None:
        directory = self._enter(parents)
        if entry.kind == tar.SYMLINK:
            if not entry.link or b"\0" in entry.link:
                raise Refused(f"a link to nothing: {tar.shown(name)}")
            os.symlink(entry.link, name, dir_fd=directory)
            self._own(entry, name, directory)
        elif entry.kind == tar.HARD_LINK:
            self._make_link(entry, parents, name)
        else:
            self._write(entry, directory, name)

    def _write(self, entry: Entry, directory: int, name: bytes) -> None:
        fd = os.open(name, _NEW_FILE, 0o600, dir_fd=directory)
        try:
            self._content(entry.member, fd)
            self._give(fd, entry.user, entry.group)
            os.fchmod(fd, entry.mode & 0o777)
            os.utime(fd, (entry.mtime, entry.mtime))
        finally:
            os.close(fd)

    def _content(self, member: tar.Member, fd: int) -> None:
        if member.stored is None:
            for piece in self._stream.pieces(member.size):
                _write_all(fd, piece)
            self._stream.read(tar.padding(member.size))
            return
        for start, end in tar.read_ranges(self._stream, member):
            os.lseek(fd, start, os.SEEK_SET)
            for piece in self._stream.pieces(end - start):
                _write_all(fd, piece)
        os.ftruncate(fd, member.size)
        self._stream.read(tar.padding(member.stored))

    def _skip(self, member: tar.Member) -> None:
        for _ in self._stream.pieces(member.size + tar.padding(member.size)):
            pass

    def _make_link(self, entry: Entry, parents: tuple[bytes, ...], name: bytes) -> None:
        """Make a hard link to a file of this layer; one of a layer below is a copy of its own in every image."""
        target = tar.check_name(entry.link.lstrip(b"/"))
        if not target:
            raise Refused(f"a hard link to what is no file: {tar.shown(entry.link)}")
        source = os.dup(self._enter(self._resolve(tuple(target[:-1]))))
        try:
            if not stat.S_ISREG(os.lstat(target[-1], dir_fd=source).st_mode):
                raise Refused(f"a hard link to what is no file: {tar.shown(entry.link)}")
            os.link(target[-1], name, src_dir_fd=source, dst_dir_fd=self._enter(parents), follow_symlinks=False)
        except FileNotFoundError:
            raise Refused(f"a hard link to what is not in the layer: {tar.shown(entry.link)}") from None
        finally:
            os.close(source)

    def _make_directory(self, entry: Entry) -> None:
        parts = entry.parts
        if parts:
            parts = (*self._resolve(parts[:-1]), parts[-1])
            directory = self._enter(parts[:-1])
            hides = _is_whiteout(directory, parts[-1])
            if hides:
                os.unlink(parts[-1], dir_fd=directory)
            with suppress(FileExistsError):
                os.mkdir(parts[-1], 0o700, dir_fd=directory)
            made = self._enter(parts)
            if hides:
                os.setxattr(made, OPAQUE, b"y")
        self._directories.set(parts, (entry.mode & 0o1777, entry.user, entry.group, entry.mtime))

    def _make_whiteout(self, parents: tuple[bytes, ...], name: bytes) -> None:
        directory = self._enter(parents)
        if name == _OPAQUE_MARK:
            os.setxattr(directory, OPAQUE, b"y")
            return
        hidden = name[len(_WHITEOUT) :]
        if hidden.startswith(_WHITEOUT):
            return  # aufs kept its own records under such names
        if hidden in (b"", b".", b".."):
            raise Refused(f"a deletion of what has no name: {tar.shown(b'/'.join((*parents, name)))}")
        there = look_at(directory, hidden)
        if there is not None and stat.S_ISDIR(there.st_mode):
            os.setxattr(self._enter((*parents, hidden)), OPAQUE, b"y")
        elif there is None and (is_apart((*parents, hidden)) or self._look_below((*parents, hidden)) is not None):
            os.mknod(hidden, stat.S_IFCHR, os.makedev(0, 0), dir_fd=directory)

    def _clear(self, directory: int, name: bytes) -> None:
        """Clear the way: a later entry of the same name replaces a file or a link, never a directory."""
        try:
            os.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):
            raise Refused(f"a file in the place of a directory: {tar.shown(name)}") from None

    def _own(self, entry: Entry, name: bytes, directory: int) -> None:
        if self._root is not None:
            owner, group = self._root + entry.user, self._root + entry.group
            os.chown(name, owner, group, dir_fd=directory, follow_symlinks=False)

    def _give(self, fd: int, user: int, group: int) -> None:
        if self._root is not None:
            os.fchown(fd, self._root + user, self._root + group)
        else:
            record_owner(fd, (user, group))

    def _settle(self, fd: int, mode: int, user: int, group: int, mtime: int) -> None:
        self._give(fd, user, group)
        if self._root is None:
            mode |= stat.S_IRWXU  # whoever owns everything must be able to enter everything
        os.fchmod(fd, mode)
        os.utime(fd, (mtime, mtime))

    def _resolve(self, parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Return where a directory really is in the image: no name on the way is a symbolic link."""
        number = depth = links = 0
        left = list(reversed(parts))
        while left:
            if len(left) > MOST_NAMES or depth > MOST_DEPTH:
                raise Refused(f"a path of more than {MOST_DEPTH} directories in one another")
            name = left.pop()
            if name == b"..":
                number, depth = self._directories.places[number][0], max(depth - 1, 0)
            elif name not in (b"", b"."):
                below = self._directories.below(number, name)
                link = self._read_link(number, below)
                if link is None:
                    number, depth = below, depth + 1
                    continue
                links += 1
                if links > MOST_LINKS or len(left) > MOST_DEPTH:
                    raise Refused(f"a path through too many links: {tar.shown(name)}")
                if link.startswith(b"/"):
                    number = depth = 0
                left.extend(reversed(link.split(b"/")))
        return tuple(self._directories.parts(number))

    def _read_link(self, parent: int, number: int) -> bytes | None:
        """Return the target of a link that is at a number; it is read once."""
        if number not in self._links:
            parts = tuple(self._directories.parts(number))
            if parent not in self._fresh and self._below.look(parts) is not None:
                link = self._view.read_link(parts)
            else:
                self._fresh.add(number)
                link = self._alone.read_link(parts)
            self._directories.spend(len(link or b""))
            self._links[number] = link
        return self._links[number]

    def _forget_link(self, parents: tuple[bytes, ...], name: bytes) -> None:
        """Let a name that is made anew be looked up again."""
        number = self._directories.numbers.get((self._directories.number(parents), name))
        if number is not None:
            self._links.pop(number, None)

    def _look_below(self, parts: tuple[bytes, ...]) -> os.stat_result | None:
        """Return the facts of what the layers below have there."""
        is_fresh = bool(parts) and self._directories.number(parts[:-1]) in self._fresh
        return None if is_fresh else self._below.look(parts)

    def _enter(self, parts: tuple[bytes, ...]) -> int:
        """Return the directory at these real parts, made if it is missing; what is a file there is refused."""
        common = 0
        while common < min(len(parts), len(self._held)) and self._held[common][0] == parts[common]:
            common += 1
        self._leave(common)
        for at in range(common, len(parts)):
            parent = self._held[-1][1] if self._held else self._top
            self._held.append((parts[at], self._open(parent, parts[: at + 1])))
        return self._held[-1][1] if self._held else self._top

    def _open(self, parent: int, parts: tuple[bytes, ...]) -> int:
        try:
            return os.open(parts[-1], OPEN_DIRECTORY, dir_fd=parent)
        except FileNotFoundError:
            os.mkdir(parts[-1], 0o700, dir_fd=parent)
            self._budget.spend(0)
            self._directories.set(parts, self._as_below(parts))
            return os.open(parts[-1], OPEN_DIRECTORY, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise Refused(f"a path through what is no directory: {tar.shown(b'/'.join(parts))}") from None
            raise

    def _as_below(self, parts: tuple[bytes, ...]) -> tuple[int, int, int, int]:
        """Return mode, owner and time of a directory that the layer does not describe: as the image has it."""
        below = self._look_below(parts)
        if below is None or not stat.S_ISDIR(below.st_mode):
            return 0o755, 0, 0, 0
        return below.st_mode & 0o1777, *self._below.owner(parts), int(below.st_mtime)

    def _leave(self, depth: int) -> None:
        while len(self._held) > depth:
            os.close(self._held.pop()[1])


def _is_whiteout(directory: int, name: bytes) -> bool:
    there = look_at(directory, name)
    return there is not None and is_whiteout(there)


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _decode(block: bytes, kind: bytes, size: int, extended: dict[bytes, bytes]) -> Entry:
    """Decode a header, checked: no path is absolute or goes up."""
    name, link = tar.read_names(block, extended)
    if b"size" in extended:
        size = tar.decimal(extended[b"size"])
    stored = None
    if any(key.startswith(b"GNU.sparse") for key in extended):
        name = tar.check_sparse(extended, kind, name)
        stored, size = size, tar.decimal(extended[b"GNU.sparse.realsize"])
    if kind in tar.REGULAR:
        kind = tar.DIRECTORY if name.endswith(b"/") else tar.FILE
    if kind == b"S":
        raise Refused(f"a sparse file in the old format of GNU tar: {tar.shown(name)}; write it with --format=pax")
    parts = tuple(tar.check_name(name.lstrip(b"/")))
    if not parts and kind != tar.DIRECTORY:
        raise Refused("a file without a name")
    member = tar.Member(kind, list(parts), 0, size if kind not in (tar.HARD_LINK, tar.SYMLINK) else 0)
    member.stored = stored
    return Entry(
        kind=kind,
        parts=parts,
        link=link,
        mode=tar.number(block[100:108]) & 0o7777,
        user=_owner(block[108:116], extended.get(b"uid")),
        group=_owner(block[116:124], extended.get(b"gid")),
        mtime=_seconds(block[136:148]),
        member=member,
    )


def _owner(field: bytes, extended: bytes | None) -> int:
    found = tar.decimal(extended) if extended is not None else tar.number(field)
    return min(found, NOBODY)


def _seconds(field: bytes) -> int:
    """Return a time; one before 1970 is none."""
    return 0 if field[:1] == b"\xff" else min(tar.number(field), 1 << 40)


def unpack_layer(
    target: str,
    lowers: Sequence[str],
    stream: LayerStream,
    *,
    root: int | None,
    check: Callable[[], object] = lambda: None,
) -> None:
    """Unpack a layer into a directory that exists and is empty. Blocks; `check` may raise to give up."""
    held: list[int] = []
    try:
        held += [os.open(path, OPEN_DIRECTORY) for path in (target, *lowers)]
        LayerUnpacking(held[0], held[1:], stream, root=root, check=check).run()
    finally:
        for fd in held:
            os.close(fd)
