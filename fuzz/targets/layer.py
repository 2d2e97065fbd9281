"""Layers of snapshots from elsewhere: nothing leaves the directory, and what was taken is packed to the same digest."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from cove.errors import CoveError, Internal
from cove.layers.packing import pack_layer
from cove.layers.unpacking import unpack_layer
from fuzz.archives import examples
from fuzz.splitting import cut
from fuzz.trees import guarded_directory, repair

MOST_BYTES = 8192


def check(data: bytes) -> None:
    """Unpack it by its own digest; pack what came of it, and unpack that once more."""
    content = repair(data)
    with guarded_directory() as target:
        try:
            _unpack(content, target)
        except CoveError as error:
            assert not isinstance(error, Internal), error
            return
        first = _pack(target)
    with guarded_directory() as target:
        _unpack(first, target)
        assert _pack(target) == first, "the same files have another digest"


def _unpack(content: bytes, target: Path) -> None:
    unpack_layer(cut(content, 1024), target, "sha256:" + hashlib.sha256(content).hexdigest(), len(content))


def _pack(target: Path) -> bytes:
    pieces: list[bytes] = []
    pack_layer(target, pieces.append)
    return b"".join(pieces)


def seeds() -> Iterator[bytes]:
    """Archives below each part of a layer."""
    yield from examples("workspace/")
    yield from examples("home/")
    yield from examples("root/")
