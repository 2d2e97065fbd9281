"""Decompress archives, recognised by how they begin (magic numbers)."""

from __future__ import annotations

import os

from cove.archive.stream import CHUNK, Stream
from cove.archive.tar import Refused, Truncated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Decompressor(Protocol):
        """The interface that the decompressors of bz2 and lzma share."""

        @property
        def eof(self) -> bool:
            """Return whether the compressed stream has ended."""

        @property
        def unused_data(self) -> bytes:
            """The bytes after its end."""

        @property
        def needs_input(self) -> bool:
            """Return whether nothing more comes without more data."""

        def decompress(self, data: bytes, most: int, /) -> bytes:
            """Decompress at most so many bytes."""


MOST_MAGIC = 6


def open_stream(fd: int) -> Stream:
    """Open a pipe, decompressed if it has to be."""
    stream = Stream(fd)
    first = b""
    while len(first) < MOST_MAGIC and (more := stream.ready(1, os.read, fd, MOST_MAGIC - len(first))):
        first += more
    for magic, make in FORMATS.items():
        if first.startswith(magic):
            return Decompressing(fd, first, make)
    stream.pending = first
    return stream


class Decompressing(Stream):
    """Reads as if it were not compressed. Several compressed streams, one after the other, are one."""

    def __init__(self, fd: int, first: bytes, make: Callable[[], Decompressor]) -> None:
        Stream.__init__(self, fd)
        self.can_splice = False
        self.make = make
        self.inner = make()
        self.input = first
        self.output = bytearray()

    def read(self, size: int) -> bytes:
        while len(self.output) < size:
            self.output += self.more()
        data = bytes(self.output[:size])
        del self.output[:size]
        return data

    def more(self) -> bytes:
        if self.inner.eof:
            self.input = self.inner.unused_data
            self.inner = self.make()
        if not self.input and self.inner.needs_input:
            self.input = self.ready(1, os.read, self.fd, CHUNK)
            if not self.input:
                raise Truncated("the archive ends in the middle")
        data, self.input = self.input, b""
        try:
            return self.inner.decompress(data, CHUNK)
        except Exception as error:  # noqa: BLE001  # each format has its own; nothing else happens in there
            raise Refused("the compressed archive is damaged: %s" % error) from None


class Gzip:
    """Looks like the decompressors of the other formats."""

    def __init__(self) -> None:
        import zlib

        self.inner = zlib.decompressobj(31)  # zlib.h: 15 bits of window, with the gzip header

    eof = property(lambda self: self.inner.eof)
    unused_data = property(lambda self: self.inner.unused_data)
    needs_input = property(lambda self: not self.inner.unconsumed_tail)

    def decompress(self, data: bytes, most: int) -> bytes:
        return self.inner.decompress(self.inner.unconsumed_tail + data, most)


def bzip2() -> Decompressor:
    """Decompress bzip2(1)."""
    import bz2

    return bz2.BZ2Decompressor()


def xz() -> Decompressor:
    """Decompress xz(1)."""
    import lzma

    return lzma.LZMADecompressor()


FORMATS = {b"\x1f\x8b": Gzip, b"BZh": bzip2, b"\xfd7zXZ\0": xz}
