"""Pack a layer whole for another node of a cluster, and unpack it there: with all its parts, and with owners. Blocks.

The archive is that of `layers.packing`, and has besides the owners of files, as an image counts them, and the times of
directories. So it is the same wherever users have numbers of their own on disk, and where owners are only recorded.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from cove.archive import tar
from cove.archive.stream import Stream
from cove.archive.tar import Refused
from cove.archive.unpacking import OPEN_DIRECTORY
from cove.core.snapshot_index import IndexedLayer
from cove.errors import ValidationFailed, from_errno
from cove.images.layer_unpack import NOBODY
from cove.images.recorded_owner import ATTRIBUTE, read_owner, record_owner
from cove.layers.digest import Hashing
from cove.layers.layer_tar import PARTS
from cove.layers.packing import Packing, Write, read_attributes
from cove.layers.record import ROOT, Owners
from cove.layers.store import LayerStore
from cove.layers.unpacking import LayerUnpacking, VerifiedStream
from cove.linux.file_lock import waiting_lock
from cove.linux.open_below import Opened

_LOCK: Final = "digests.lock"

Check = Callable[[], object]


def has_system(layers: LayerStore, id: str) -> bool:
    """Return whether a layer has a part of an image's root: then its files have owners of their own."""
    return (layers.data(id) / ROOT).is_dir()


def whole_digest(layers: LayerStore, id: str, check: Check) -> IndexedLayer:
    """Return digest and size of a layer's whole archive, which are computed when they are first asked for, and kept."""
    known = layers.read(id).whole
    if known is None:
        hashing = Hashing(lambda _: None)
        pack_whole(layers, id, hashing, check)
        known = IndexedLayer(digest=hashing.digest, size=hashing.size)
        with waiting_lock(layers.path.with_name(_LOCK)):  # others may have computed the same
            layers.write(msgspec.structs.replace(layers.read(id), whole=known))
    return known


def pack_whole(layers: LayerStore, id: str, write: Write, check: Check) -> None:
    """Write the whole archive of a layer. `check` may raise to give up."""
    layer = layers.read(id)
    pack_files(layers.data(id), Owners(layer.owner, layer.users), write, check)


def pack_files(data: Path, owners: Owners, write: Write, check: Check) -> None:
    """Write the whole archive of what is to be a layer, given by the directory with its parts and whose they are."""
    with ExitStack() as stack:
        top = os.open(data, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        stack.callback(os.close, top)
        packing = _WholePacking(top, write, check, owners=owners, has_system=(data / ROOT).is_dir())
        for part in sorted(PARTS):
            if os.path.isdir(data / os.fsdecode(part)):
                packing.run(part)
        packing.finish()


@dataclass(slots=True, kw_only=True)
class _WholePacking(Packing):
    """Writes members with their owners; what is recorded of them is in their headers, and not among attributes."""

    owners: Owners
    has_system: bool

    def meet(self, found: os.stat_result) -> None:
        self.owner = self._inside(found.st_uid), self._inside(found.st_gid)

    def _inside(self, number: int) -> int:
        inside = number - self.owners.first
        return inside if 0 <= inside < self.owners.users else 0

    def _remember(self, opened: Opened) -> None:
        if self.has_system and self.owners.root is None:
            self.owner = read_owner(opened.descriptor)

    def directory(self, path: bytes, opened: Opened) -> None:
        found = os.fstat(opened.descriptor)
        self.meet(found)
        self._remember(opened)
        attributes = read_attributes(opened.descriptor, True)
        self.member(tar.DIRECTORY, path, opened.mode, mtime=int(found.st_mtime), attributes=attributes)

    def content(self, opened: Opened, path: bytes, found: os.stat_result) -> None:
        self._remember(opened)
        Packing.content(self, opened, path, found)

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
        if self.has_system and attributes:
            attributes.pop(ATTRIBUTE, None)
        Packing.member(self, kind, path, mode, size=size, mtime=mtime, link=link, attributes=attributes, ranges=ranges)


def unpack_whole(
    pieces: Iterator[bytes], data: Path, expected: IndexedLayer, owners: Owners, *, opens_all: bool, check: Check
) -> None:
    """Unpack a whole archive into the empty directory `data`: it is what its digest says, or ValidationFailed.

    Files get numbers among the owners; where they have one, whose they are is recorded. With `opens_all`, as layers of
    images have it, one who owns everything can enter every directory.
    """
    verified = VerifiedStream(pieces, expected.size, check)
    top = os.open(data, OPEN_DIRECTORY)
    try:
        _WholeUnpacking(top, verified, expected.size, owners, opens_all).unpack()
        verified.verify(expected.digest)
    except Refused as error:
        raise ValidationFailed(f"refused: {error}") from None
    except OSError as error:
        raise from_errno(error.errno or 0, "the layer") from None
    finally:
        os.close(top)


def pieces_of(stream: Stream, size: int) -> Iterator[bytes]:
    """Yield so many bytes of a stream."""
    while size:
        data = stream.read(min(size, 1 << 18))
        size -= len(data)
        yield data


class _WholeUnpacking(LayerUnpacking):
    """Makes the members of a whole archive, each for its owner."""

    def __init__(self, top: int, stream: Stream, size: int, owners: Owners, opens_all: bool) -> None:
        super().__init__(top, stream, size, None)
        self._owners = owners
        self._opens_all = opens_all and owners.users == 1

    def decode(self, block: bytes, kind: bytes, size: int, extended: dict[bytes, bytes], lenient: bool) -> tar.Member:
        member = super().decode(block, kind, size, extended, lenient)
        member.owner = min(tar.number(block[108:116]), NOBODY), min(tar.number(block[116:124]), NOBODY)
        return member

    def facts(self, member: tar.Member) -> tuple[int, ...]:
        return member.mode, *member.owner, member.mtime

    def content(self, member: tar.Member, fd: int) -> None:
        super().content(member, fd)
        self._own(fd, member.owner)

    def _own(self, fd: int, owner: tuple[int, int]) -> None:
        os.fchown(fd, *self._numbers(owner))
        if self._owners.users == 1:
            record_owner(fd, owner)

    def _numbers(self, owner: tuple[int, int]) -> tuple[int, int]:
        """Return user and group on this machine: none to change where all is the caller's."""
        first, users = self._owners
        if users == 1:
            return (-1, -1) if first == os.geteuid() else (first, first)
        return first + owner[0], first + owner[1]

    def give(self, member: tar.Member) -> None:
        directory = self.descent.enter(member.parts[:-1])
        os.chown(member.parts[-1], *self._numbers(member.owner), dir_fd=directory, follow_symlinks=False)

    def settle(self, directory: int, facts: tuple[int, ...]) -> None:
        mode, user, group, *times = facts if len(facts) > 1 else (*facts, 0, 0)
        self._own(directory, (user, group))
        os.fchmod(directory, mode | (stat.S_IRWXU if self._opens_all else 0))
        for time in times:
            os.utime(directory, (time, time))
