"""Read a layer's blob: decompressed, with the digests of both forms, and never more than may come.

A blob is gzip, zstd or plain tar. The digest of the blob names it in a manifest; the digest of what it decompresses to,
the `diff_id`, names the layer. Both are known when the blob has been read to its end.
"""

import hashlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Protocol, cast

import zstandard

from cove.archive.tar import Refused, Truncated

CHUNK = 1 << 18
# A blob that decompresses to more than this is refused: no image has so large a layer.
MOST_BYTES = 64 << 30
_MOST_WINDOW = 128 << 20  # zstd(1) refuses more without --long
_GZIP_PIECE = 4 << 10
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class Blob(Protocol):
    """The bytes of a layer as they are stored or come from a registry."""

    def read(self, size: int, /) -> bytes:
        """Return at most so many bytes; none at the end."""


@dataclass(slots=True)
class Told:
    """A blob that tells how many bytes are read, before every piece; who is told may raise to give up."""

    blob: Blob
    tell: Callable[[int], object]
    size: int = 0

    def read(self, size: int, /) -> bytes:
        """Return at most so many bytes; none at the end."""
        self.tell(self.size)
        data = self.blob.read(size)
        self.size += len(data)
        return data


class LayerStream:
    """The tar stream in a blob. `read` is exact, as `archive.tar` wants its source."""

    def __init__(self, blob: Blob, most: int = MOST_BYTES) -> None:
        self._hashed = _Hashed(blob)
        first = self._hashed.read()
        self.is_compressed = first.startswith((_GZIP, _ZSTD))
        self._chunks = _decompressed(first, self._hashed)
        self._diff = hashlib.sha256()
        self._chunk = memoryview(b"")
        self._left = most
        self.size = 0

    def read(self, size: int) -> bytes:
        """Return exactly so many bytes; Truncated when the blob ends before."""
        if size <= len(self._chunk):
            data, self._chunk = self._chunk[:size], self._chunk[size:]
            return bytes(data)
        pieces = []
        while size:
            if not self._chunk and not self._fill():
                raise Truncated("the layer ends in the middle")
            pieces.append(self._chunk[:size])
            size -= len(pieces[-1])
            self._chunk = self._chunk[len(pieces[-1]) :]
        return b"".join(pieces)

    def pieces(self, size: int) -> Iterator[memoryview]:
        """Give the next so many bytes as they lie in memory."""
        while size:
            if not self._chunk and not self._fill():
                raise Truncated("the layer ends in the middle")
            piece = self._chunk[:size]
            self._chunk = self._chunk[len(piece) :]
            size -= len(piece)
            yield piece

    def read_some(self) -> bytes:
        """Return what comes next; nothing at the end."""
        if not self._chunk:
            self._fill()
        data, self._chunk = bytes(self._chunk), memoryview(b"")
        return data

    def finish(self) -> tuple[str, str]:
        """Read what is left and return the digest of the blob and the diff_id."""
        while self._fill():
            pass
        return self._hashed.digest(), f"sha256:{self._diff.hexdigest()}"

    def _fill(self) -> bool:
        data = next(self._chunks, b"")
        self._diff.update(data)
        self._left -= len(data)
        self.size += len(data)
        if self._left < 0:
            raise Refused("the layer decompresses to more than may be unpacked")
        self._chunk = memoryview(data)
        return bool(data)


class _Hashed:
    """The blob as it is, hashed on the way."""

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self._hash = hashlib.sha256()

    def read(self) -> bytes:
        data = self._blob.read(CHUNK)
        self._hash.update(data)
        return data

    def digest(self) -> str:
        while self.read():
            pass
        return f"sha256:{self._hash.hexdigest()}"


def _decompressed(first: bytes, blob: _Hashed) -> Iterator[bytes]:
    if first.startswith(_GZIP):
        return _gunzip(first, blob.read)
    if first.startswith(_ZSTD):
        return _unzstd(first, blob.read)
    return _plain(first, blob.read)


def _plain(data: bytes, read: Callable[[], bytes]) -> Iterator[bytes]:
    while data:
        yield data
        data = read()


def _gunzip(data: bytes, read: Callable[[], bytes]) -> Iterator[bytes]:
    """Decompress gzip; several members, one after the other, are one stream.

    What a member leaves over is copied, so little is given at once: a blob may have one member in every 20 bytes.
    """
    inner, is_between = zlib.decompressobj(31), False  # zlib.h: 15 bits of window, with the gzip header
    while data:
        at = 0
        while at < len(data):
            piece = data[at : at + _GZIP_PIECE]
            if is_between:
                at += len(piece)
                piece = piece.lstrip(b"\0")  # tar(1) and others pad with zeros
                at -= len(piece)
                if not piece:
                    continue
            try:
                made = inner.decompress(piece, CHUNK)
            except zlib.error as error:
                raise Refused(f"the compressed layer is damaged: {error}") from None
            if made:
                yield made
            is_between = inner.eof
            at += len(piece) - len(inner.unused_data if is_between else inner.unconsumed_tail)
            if is_between:
                inner = zlib.decompressobj(31)
        data = read()


class _Rest:
    """The blob with the bytes before it that were read already."""

    def __init__(self, first: bytes, read: Callable[[], bytes]) -> None:
        self._first = first
        self._read = read

    def read(self, _: int = -1) -> bytes:
        data, self._first = self._first, b""
        return data or self._read()


def _unzstd(data: bytes, read: Callable[[], bytes]) -> Iterator[bytes]:
    """Decompress zstd frames; neither a window nor a piece is larger than its bound."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW)
    with decompressor.stream_reader(cast("IO[bytes]", _Rest(data, read)), read_across_frames=True) as reader:
        try:
            while made := reader.read(CHUNK):
                yield made
        except zstandard.ZstdError as error:
            raise Refused(f"the compressed layer is damaged: {error}") from None
