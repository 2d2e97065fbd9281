"""Layers of images: nothing leaves the directory or changes the layer below, whatever links there are."""

import gzip
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import zstandard

from cove.archive.tar import Refused
from cove.images.layer_stream import LayerStream
from cove.images.layer_unpack import unpack_layer
from fuzz.archives import examples
from fuzz.trees import guarded_directory, remove, repair

MOST_BYTES = 8192
_MOST_UNPACKED = 1 << 20


def check(data: bytes) -> None:
    """The first byte says how the rest is: an archive, or one with checksums put right."""
    content = repair(data[1:]) if data[:1] == b"\1" else data[1:]
    lower = _lower()
    before = _facts(lower)
    try:
        with guarded_directory() as target:
            try:
                stream = LayerStream(io.BytesIO(content), _MOST_UNPACKED)
                unpack_layer(str(target), [str(lower)], stream, root=None)
                blob, diff = stream.finish()
            except (Refused, OSError):
                return
            assert blob.startswith("sha256:")
            assert (blob == diff) == (not stream.is_compressed)
            assert stream.size <= _MOST_UNPACKED
        assert _facts(lower) == before, "the layer below has changed"
    finally:
        remove(lower)


def _lower() -> Path:
    """A layer with a file, a directory and links that lead everywhere."""
    top = Path(tempfile.mkdtemp(prefix="fuzz-"))
    (top / "etc").mkdir()
    (top / "etc/passwd").write_text("root")
    (top / "up").symlink_to("../../..")
    (top / "abs").symlink_to("/etc")
    (top / "loop").symlink_to("loop")
    return top


def _facts(top: Path) -> list[tuple[str, int, int, int]]:
    found = []
    for path in sorted([top, *top.rglob("*")]):
        status = os.lstat(path)
        found.append((str(path), status.st_mode, status.st_mtime_ns, status.st_nlink))
    return found


def seeds() -> Iterator[bytes]:
    """Archives at the top, through links of the layer below, and compressed."""
    for top in ("", "etc/", "up/", "abs/", "loop/"):
        for made in examples(top):
            yield b"\1" + made
    first = next(iter(examples()))
    yield b"\0" + gzip.compress(first)
    yield b"\0" + gzip.compress(first[:700]) + bytes(20) + gzip.compress(first[700:])
    yield b"\0" + zstandard.compress(first)
