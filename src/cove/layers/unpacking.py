"""Unpack a layer that comes from outside into a new directory, and verify its digest. Blocks.

Whoever made the archive may be an enemy: names are checked by `layer_tar`, every step is made from an open directory
and follows no link, and bytes and files have a bound. A layer that is not what its digest says is never used.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from cove.archive import tar
from cove.archive.stream import Budget, Stream
from cove.archive.tar import Refused, Truncated
from cove.archive.unpacking import MOST_DEPTH, OPEN_DIRECTORY, Unpacking
from cove.errors import ValidationFailed, from_errno
from cove.layers.layer_tar import FIFO, WHITEOUT, attributes_of, decode_member
from cove.layers.packing import MOST_ENTRIES

_NO_DEVICE: Final = os.makedev(0, 0)
_CHUNK_BYTES: Final = 1 << 20


class VerifiedStream(Stream):
    """Reads pieces as one stream of an agreed length, and hashes it."""

    def __init__(self, pieces: Iterator[bytes], size: int, check: Callable[[], object]) -> None:
        super().__init__(-1)
        self._pieces = pieces
        self._left = size
        self._hash = hashlib.sha256()
        self._check = check
        self._buffer = b""
        self._at = 0

    def read(self, size: int) -> bytes:
        chunks = []
        while size:
            chunk = self._take(size)
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)

    def receive_file(self, file: int, size: int) -> None:
        """Receive the next so many bytes into a file."""
        while size:
            data = memoryview(self._take(size))
            size -= len(data)
            while data:
                data = data[os.write(file, data) :]

    def verify(self, digest: str) -> None:
        """Check that this was all, and what was agreed."""
        if self._at < len(self._buffer) or self._left or next(self._pieces, b""):
            raise Refused("the archive of the layer has another length than agreed")
        found = "sha256:" + self._hash.hexdigest()
        if found != digest:
            raise Refused(f"the layer is not what its digest says: {found}, not {digest}")

    def _take(self, most: int) -> bytes:
        """Return some of the next bytes."""
        if self._at >= len(self._buffer):
            self._check()
            self._buffer, self._at = next(self._pieces, b""), 0
            if not self._buffer:
                raise Truncated("the archive ends in the middle")
            self._left -= len(self._buffer)
            if self._left < 0:
                raise Refused("the archive of the layer has another length than agreed")
            self._hash.update(self._buffer)
        data = self._buffer[self._at : self._at + most]
        self._at += len(data)
        return data


def unpack_layer(
    pieces: Iterator[bytes],
    data: Path,
    digest: str,
    size: int,
    *,
    owner: int | None = None,
    check: Callable[[], object] = lambda: None,
) -> None:
    """Unpack an archive of that digest and size into the empty directory `data`; its files get that owner.

    What is refused, or fails, raises one of our errors and leaves what is there to the caller to remove.
    """
    stream = VerifiedStream(pieces, size, check)
    top = os.open(data, OPEN_DIRECTORY)
    try:
        LayerUnpacking(top, stream, size, owner).unpack()
        stream.verify(digest)
    except Refused as error:
        raise ValidationFailed(f"refused: {error}") from None
    except OSError as error:
        raise from_errno(error.errno or 0, "the layer") from None
    finally:
        os.close(top)


class LayerUnpacking(Unpacking):
    """Makes the members of a layer. What takes room is what is stored, not what a file with holes seems to have."""

    def __init__(self, top: int, stream: Stream, size: int, owner: int | None) -> None:
        super().__init__(top, stream, Budget(size, MOST_ENTRIES))
        self._owner = owner

    def decode(self, block: bytes, kind: bytes, size: int, extended: dict[bytes, bytes], lenient: bool) -> tar.Member:
        """Make a member of its header, checked."""
        return decode_member(block, kind, size, extended, lenient)

    def unpack(self) -> None:
        """Make everything; directories get their modes last."""
        try:
            for member in tar.read_members(self.stream, lenient=True, decode=self.decode):
                self.budget.spend(0)
                self.make(member)
            for parts, facts in self.directories.deepest_first():
                self.settle(self.descent.enter(parts), facts)
        finally:
            self.descent.leave(0)

    def make(self, member: tar.Member) -> None:
        if not member.parts:
            return
        if member.kind in (WHITEOUT, FIFO):
            self._make_special(member)
            return
        super().make(member)
        if member.kind == tar.DIRECTORY:
            self._set_attributes(self.descent.enter(member.parts), member)
        elif member.kind == tar.SYMLINK:
            self.give(member)

    def _make_special(self, member: tar.Member) -> None:
        if len(member.parts) > MOST_DEPTH:
            raise Refused(f"nested too deeply: {tar.shown(b'/'.join(member.parts))}")
        directory, name = self.descent.enter(member.parts[:-1]), member.parts[-1]
        self.clear(directory, name)
        if member.kind == WHITEOUT:
            os.mknod(name, stat.S_IFCHR, _NO_DEVICE, dir_fd=directory)
        else:
            os.mkfifo(name, member.mode, dir_fd=directory)
        self.give(member)

    def content(self, member: tar.Member, fd: int) -> None:
        super().content(member, fd)
        self._set_attributes(fd, member)
        if self._owner is not None:
            os.fchown(fd, self._owner, self._owner)

    def _set_attributes(self, fd: int, member: tar.Member) -> None:
        for name, value in attributes_of(member).items():
            os.setxattr(fd, os.fsdecode(name), value)

    def give(self, member: tar.Member) -> None:
        """Give a link, a pipe or a whiteout to its owner."""
        if self._owner is not None:
            directory = self.descent.enter(member.parts[:-1])
            os.chown(member.parts[-1], self._owner, self._owner, dir_fd=directory, follow_symlinks=False)

    def settle(self, directory: int, facts: tuple[int, ...]) -> None:
        """Give a directory to its owner, with its mode."""
        if self._owner is not None:
            os.fchown(directory, self._owner, self._owner)
        os.fchmod(directory, facts[0])
