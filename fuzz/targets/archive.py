"""tar archives into a directory, plain and compressed: nothing leaves it, and it comes back as it was."""

import os
from collections.abc import Iterator
from pathlib import Path

from cove.archive.compressed import open_stream
from cove.archive.remove_tree import remove_tree
from cove.archive.stream import Budget, Stream, pack, unpack
from cove.archive.tar import Refused
from fuzz.archives import examples
from fuzz.trees import guarded_directory, repair

MOST_BYTES = 8192
_MOST_UNPACKED = 1 << 20
_MOST_ENTRIES = 50


def check(data: bytes) -> None:
    """The first byte chooses: as it is or with checksums, leniently or not."""
    chosen, content = data[:1] or b"\0", data[1:]
    if chosen[0] & 1:
        content = repair(content)
    with guarded_directory() as target:
        try:
            _unpack(content, target, lenient=bool(chosen[0] & 2))
        except (Refused, OSError):
            assert os.listdir(target) == [], "what was refused has left something"
            return
        found = list(target.rglob("*"))
        assert sum(path.lstat().st_size for path in found if path.is_file() and not path.is_symlink()) <= _MOST_UNPACKED
        if not chosen[0] & 2:
            _check_again(target)


def _unpack(content: bytes, target: Path, *, lenient: bool) -> None:
    descriptor = os.memfd_create("archive")
    try:
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        budget = Budget(_MOST_UNPACKED, _MOST_ENTRIES)
        unpack(open_stream(descriptor), os.fsencode(target), budget, remove_tree, lenient=lenient)
    finally:
        os.close(descriptor)


def _check_again(target: Path) -> None:
    """What was taken once is taken again, and makes the same archive."""
    first = _pack(target)
    with guarded_directory() as other:
        _unpack(first, other, lenient=False)
        other.chmod(target.stat().st_mode & 0o777)
        os.utime(other, ns=(0, target.stat().st_mtime_ns))
        assert _members(_pack(other)) == _members(first)


def _members(content: bytes) -> list[tuple[object, ...]]:
    """The members of an archive of our own; directories have the times of their unpacking."""
    from cove.archive import tar

    descriptor = os.memfd_create("archive")
    try:
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        stream = Stream(descriptor)
        found: list[tuple[object, ...]] = []
        for member in tar.read_members(stream, lenient=True):
            size = member.size if member.stored is None else member.stored
            data = stream.read(size + tar.padding(size)) if member.kind == tar.FILE else b""
            time = 0 if member.kind == tar.DIRECTORY else member.mtime
            found.append((member.kind, member.parts, member.mode, member.size, time, member.link, data))
        return found
    finally:
        os.close(descriptor)


def _pack(top: Path) -> bytes:
    descriptor = os.memfd_create("archive")
    try:
        pack(os.fsencode(top), Stream(descriptor), Budget(1 << 24, 1000))
        os.lseek(descriptor, 0, os.SEEK_SET)
        return os.read(descriptor, 1 << 26)
    finally:
        os.close(descriptor)


def seeds() -> Iterator[bytes]:
    """Archives of every kind of member, with and without compression."""
    import bz2
    import gzip
    import lzma

    for made in examples():
        yield b"\1" + made
        yield b"\3" + made
    for compress in (gzip.compress, bz2.compress, lzma.compress):
        yield b"\0" + compress(next(iter(examples())))
