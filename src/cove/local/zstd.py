"""Compress and decompress streams with Zstandard (RFC 8878), in bounded memory. Blocks."""

import os
from collections.abc import Callable, Iterator
from typing import IO, Final, Protocol, cast

from cove.errors import ValidationFailed

CHUNK_BYTES: Final = 1 << 20
_LEVEL: Final = 3
_THREADS: Final = min(2, os.cpu_count() or 1)
# What a decompressor may take for its window: what `zstd` itself allows without --long.
_MOST_WINDOW_BYTES: Final = 128 << 20


class Compressor:
    """Compresses what it is given, with a checksum at the end, into what `write` takes."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        import zstandard  # most programs never need it

        made = zstandard.ZstdCompressor(level=_LEVEL, threads=_THREADS, write_checksum=True)
        self._inner = made.compressobj()
        self._write = write

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        if out := self._inner.compress(data):
            self._write(out)

    def finish(self) -> None:
        """Write what is left."""
        self._write(self._inner.flush())


class Source(Protocol):
    """The source of compressed bytes."""

    def read(self, size: int = -1, /) -> bytes:
        """Return at most so many bytes; none at the end."""


def decompress(source: Source) -> Iterator[bytes]:
    """Yield what a compressed stream holds, a bounded piece at a time; ValidationFailed if it is damaged.

    Of a stream that ends too early all that is there is given: whoever needs the whole knows its length or its digest.
    """
    import zstandard

    inner = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW_BYTES)
    readable = cast(IO[bytes], source)  # nothing else is done with it
    with inner.stream_reader(readable, read_size=CHUNK_BYTES, closefd=False) as reader:
        try:
            while data := reader.read(CHUNK_BYTES):
                yield data
        except zstandard.ZstdError as error:
            raise ValidationFailed(f"the compressed data is damaged: {error}") from None
