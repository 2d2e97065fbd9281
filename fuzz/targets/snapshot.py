"""Exported snapshots in one file: loaded whole and verified, or refused with nothing of it left."""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import zstandard

from cove.archive import tar
from cove.archive.stream import Stream
from cove.core.snapshot_index import layer_file
from cove.errors import CoveError, Internal
from cove.layers.places import FileOrigin
from cove.layers.snapshot_export import load_from
from cove.layers.store import LayerStore
from fuzz.archives import examples
from fuzz.trees import remove, repair

MOST_BYTES = 8192


def check(data: bytes) -> None:
    """The first byte chooses: the file itself, or the archive of a layer, with an index that names it."""
    content = repair(data[1:]) if data[:1] == b"\0" else _export(repair(data[1:]))
    home = Path(tempfile.mkdtemp(prefix="fuzz-"))
    descriptor = os.memfd_create("export")
    try:
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        _load(home, FileOrigin(Stream(descriptor)))
    finally:
        os.close(descriptor)
        remove(home)


def _load(home: Path, origin: FileOrigin) -> None:
    store = LayerStore(home)
    for path in (store.path, home / "sandboxes"):
        path.mkdir(parents=True, exist_ok=True)
    try:
        snapshot = load_from(store, origin, lambda _: None, lambda: None)
    except CoveError as error:
        assert not isinstance(error, Internal), error
        left = [name for name in os.listdir(store.path) if not name.startswith(".")]
        assert left == [], f"what was refused has left {left}"
        return
    assert all(store.has(layer) for layer in snapshot.layers)


def _export(layer: bytes) -> bytes:
    digest = "sha256:" + hashlib.sha256(layer).hexdigest()
    index = {"version": 1, "created_at": "2026-01-01T00:00:00Z", "layers": [{"digest": digest, "size": len(layer)}]}
    members = ((b"index.json", msgspec.json.encode(index)), (layer_file(digest).encode(), zstandard.compress(layer)))
    parts = []
    for name, content in members:
        parts.append(tar.encode_member(tar.Member(tar.FILE, name.split(b"/"), 0o644, len(content))))
        parts.append(content + bytes(tar.padding(len(content))))
    return b"".join((*parts, bytes(1024)))


def seeds() -> Iterator[bytes]:
    """A whole export, and layers."""
    for layer in examples("workspace/"):
        yield b"\1" + layer
        yield b"\0" + _export(layer)
