"""Pack a layer as a canonical archive: equal bytes mean equal content, whatever disk it lies on. Blocks.

In it are names, kinds, permission bits with the sticky one, contents, targets of links, hard links within the layer,
`user.` attributes, and the times of change of files in whole seconds. Not in it are owners, set-id bits, times of
directories, links and pipes, and where files have holes: whole zero blocks are left out wherever they are. A socket, or
a device that is none of ours, is a whiteout: it hides what is below it as well.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from cove.archive import tar
from cove.archive.sparse_copy import data_ranges
from cove.archive.unpacking import MOST_DEPTH
from cove.core.snapshot_index import MOST_LAYER_BYTES
from cove.errors import FileTooLarge, LimitExceeded
from cove.layers.layer_tar import FIFO, MOST_APPARENT_BYTES, PARTS, WHITEOUT, is_kept, records_of
from cove.linux.open_below import DIRECTORY, FILE, Opened, open_below

MOST_ENTRIES: Final = 1_000_000
_CHUNK_BYTES: Final = 1 << 20
_HOLE_BYTES: Final = 64 << 10
_ZEROS: Final = bytes(_HOLE_BYTES)
_MODES: Final = 0o1777
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

Write = Callable[[bytes], object]


def pack_layer(data: Path, write: Write, check: Callable[[], object] = lambda: None) -> None:
    """Write the archive of a layer, given by the directory with its parts. `check` may raise to give up."""
    with ExitStack() as stack:
        top = os.open(data, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        stack.callback(os.close, top)
        packing = Packing(top, write, check)
        for part in sorted(PARTS):
            if stat.S_ISDIR(_mode(top, part)):
                packing.run(part)
        packing.finish()


def _mode(top: int, part: bytes) -> int:
    try:
        return os.stat(part, dir_fd=top, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return 0


@dataclass(slots=True)
class Packing:
    """Writes members, in order. Collects small writes into large ones; `member` says what each is in the archive."""

    top: int
    write: Write
    check: Callable[[], object]
    _waiting: list[bytes] = field(default_factory=list)
    _size: int = 0
    _entries: int = 0
    _bytes: int = 0
    _links: dict[tuple[int, int], list[bytes]] = field(default_factory=dict)
    owner: tuple[int, int] = (0, 0)

    def run(self, part: bytes) -> None:
        """Pack one part: parents first, names in order, without recursion."""
        pending = [(b"", part)]
        while pending:
            path = b"/".join(filter(None, pending.pop()))
            with open_below(self.top, path, DIRECTORY) as opened:
                self.directory(path, opened)
                names = sorted(read_names(opened.descriptor, MOST_ENTRIES - self._entries))
                wanted = [name for name in names if not self.is_left_out(path + b"/" + name)]
                below = [(path, name) for name in wanted if self._name(opened.descriptor, path, name)]
            pending += reversed(below)

    def directory(self, path: bytes, opened: Opened) -> None:
        """Write the member of a directory."""
        self.member(tar.DIRECTORY, path, opened.mode, attributes=read_attributes(opened.descriptor, True))

    def meet(self, found: os.stat_result) -> None:
        """Hear of the facts of what is written next: a member is nobody's here."""

    def is_left_out(self, path: bytes) -> bool:
        """Return whether a path, and all below it, is no part of the archive."""
        return False

    def finish(self) -> None:
        """Write the end mark."""
        self.put(bytes(2 * tar.BLOCK))
        self._flush()

    def _name(self, directory: int, path: bytes, name: bytes) -> bool:
        """Pack one name that is no directory; True for one that is."""
        self.check()
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            return True
        self.meet(found)
        full = path + b"/" + name
        if stat.S_ISLNK(found.st_mode):
            self.member(tar.SYMLINK, full, 0o777, link=os.readlink(name, dir_fd=directory))
        elif stat.S_ISREG(found.st_mode):
            self._file(directory, full, name, found)
        elif stat.S_ISFIFO(found.st_mode):
            self.member(FIFO, full, found.st_mode)
        else:
            self.member(WHITEOUT, full, 0)
        return False

    def _file(self, directory: int, path: bytes, name: bytes, found: os.stat_result) -> None:
        identity = found.st_dev, found.st_ino
        if found.st_nlink > 1 and (first := self._links.get(identity)) is not None:
            self.member(tar.HARD_LINK, path, 0, link=b"./" + b"/".join(first))
            return
        with self._open(directory, path, name) as opened:
            found = os.fstat(opened.descriptor)
            if not stat.S_ISREG(found.st_mode):  # it was swapped since it was seen
                self.member(WHITEOUT, path, 0)
                return
            if found.st_nlink > 1:
                self._links[identity] = path.split(b"/")
            self.content(opened, path, found)

    def _open(self, directory: int, path: bytes, name: bytes) -> Opened:
        try:
            return Opened(os.open(name, _OPEN, dir_fd=directory))
        except PermissionError:
            return open_below(self.top, path, FILE)

    def content(self, opened: Opened, path: bytes, found: os.stat_result) -> None:
        """Write the member of a regular file, and what is in it."""
        descriptor, size = opened.descriptor, found.st_size
        if size > MOST_APPARENT_BYTES:
            raise FileTooLarge(f"{tar.shown(path)} has more than {MOST_APPARENT_BYTES} bytes")
        ranges = [(0, size)]
        if size >= 2 * _HOLE_BYTES:
            ranges = list(islice(_ranges(descriptor, size, self.check), tar.MOST_RANGES))
        is_whole = ranges == [(0, size)] or len(ranges) >= tar.MOST_RANGES
        ranges = [(0, size)] if is_whole else ranges
        stored = sum(end - start for start, end in ranges)
        self._spend(stored)
        attributes = read_attributes(descriptor, False)
        self.member(
            tar.FILE,
            path,
            opened.mode,
            size=size,
            mtime=int(found.st_mtime),
            attributes=attributes,
            ranges=None if is_whole else ranges,
        )
        for start, end in ranges:
            self._span(descriptor, start, end)
        self.put(bytes(tar.padding(stored)))

    def _span(self, descriptor: int, at: int, end: int) -> None:
        """Write some bytes of a file; what a shrinking file lacks is zero."""
        while at < end:
            self.check()
            data = os.pread(descriptor, min(end - at, _CHUNK_BYTES), at) or bytes(min(end - at, _CHUNK_BYTES))
            self.put(data)
            at += len(data)

    def member(
        self,
        kind: bytes,
        path: bytes,
        mode: int,
        *,
        size: int = 0,
        mtime: int = 0,
        link: bytes = b"",
        attributes: dict[bytes, bytes] | None = None,
        ranges: list[tuple[int, int]] | None = None,
    ) -> None:
        """Write the header of a member; its content follows."""
        self._entries += 1
        if self._entries > MOST_ENTRIES:
            raise LimitExceeded(f"the layer has more than {MOST_ENTRIES} files")
        parts = path.split(b"/") if path else []
        if len(parts) > MOST_DEPTH or len(path) > tar.MOST_PATH - 3:
            raise LimitExceeded(f"directories are nested too deeply: {tar.shown(path)}")
        member = tar.Member(kind, parts, mode & _MODES, size, mtime, link)
        member.ranges = ranges
        member.owner = self.owner
        if attributes:
            member.records = records_of(attributes)
        self.put(tar.encode_member(member))

    def _spend(self, size: int) -> None:
        self._bytes += size
        if self._bytes > MOST_LAYER_BYTES:
            raise FileTooLarge(f"the layer has more than {MOST_LAYER_BYTES} bytes")

    def put(self, data: bytes) -> None:
        """Write some bytes."""
        self._waiting.append(data)
        self._size += len(data)
        if self._size >= _CHUNK_BYTES:
            self._flush()

    def _flush(self) -> None:
        self.write(b"".join(self._waiting))
        self._waiting.clear()
        self._size = 0


def read_names(descriptor: int, most: int) -> Iterator[bytes]:
    """Yield the names in a directory, at most so many: LimitExceeded for more."""
    with os.scandir(descriptor) as entries:
        for number, entry in enumerate(entries):
            if number >= most:
                raise LimitExceeded(f"the layer has more than {MOST_ENTRIES} files")
            yield os.fsencode(entry.name)


def _ranges(descriptor: int, size: int, check: Callable[[], object]) -> Iterator[tuple[int, int]]:
    """Find the blocks that are not all zero, as beginnings and ends: the same on every disk."""
    begin = end = 0
    for start, stop in _blocks(descriptor, size, check):
        if start != end:
            if end > begin:
                yield begin, end
            begin = start
        end = stop
    if end > begin:
        yield begin, end


def _blocks(descriptor: int, size: int, check: Callable[[], object]) -> Iterator[tuple[int, int]]:
    """Find them one by one: of each range of data, the blocks that it touches, up to `seen`."""
    seen = 0
    for start, stop in data_ranges(descriptor, size):
        at = max(start - start % _HOLE_BYTES, seen)
        seen = min(stop + -stop % _HOLE_BYTES, size)
        while at < seen:
            check()
            data = os.pread(descriptor, min(_CHUNK_BYTES, seen - at), at)
            if not data:
                return
            for place in range(0, len(data), _HOLE_BYTES):
                last = min(place + _HOLE_BYTES, len(data))
                if not _ZEROS.startswith(data[place:last]):
                    yield at + place, at + last
            at += len(data)


def read_attributes(descriptor: int, is_directory: bool) -> dict[bytes, bytes]:
    """Return those attributes of a file that belong to a layer."""
    found: dict[bytes, bytes] = {}
    for text in os.listxattr(descriptor):
        name = os.fsencode(text)
        if name.startswith(b"user."):
            value = os.getxattr(descriptor, text)
            if is_kept(name, value, is_directory):
                found[name] = value
    if sum(len(name) + len(value) + 64 for name, value in found.items()) > tar.MOST_EXTENDED // 2:
        raise LimitExceeded(f"a file has more than {tar.MOST_EXTENDED // 2} bytes of attributes")
    return found
