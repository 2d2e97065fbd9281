"""Messages between nodes of a cluster: what a node describes is within bounds and has no path in it, or is refused."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from cove.core.snapshot_index import MOST_LAYERS, decode_index, encode_index
from cove.errors import CoveError, Internal, LimitExceeded, ValidationFailed
from cove.server.cluster.arrivals import _decode as decode_manifest
from cove.server.cluster.sandbox_archive import check_manifest
from cove.server.cluster.shipment import IMAGE, SNAPSHOT, _write_sessions, decode_shipment

_NAME = "s" * 16


def check(data: bytes) -> None:
    """Read it as each of the messages."""
    for noun in (IMAGE, SNAPSHOT):
        try:
            shipment = decode_shipment(data, noun, _NAME)
        except (ValidationFailed, LimitExceeded):
            continue
        assert len(shipment.layers) <= MOST_LAYERS
        assert all("/" not in layer.id and not layer.id.startswith(".") for layer in shipment.layers)
    _check_index(data)
    try:
        manifest = check_manifest(decode_manifest(data))
    except ValidationFailed:
        pass
    else:
        assert not any(name.startswith("/") or ".." in name.split("/") for name in manifest.files)
    _check_sessions(data)


def _check_index(data: bytes) -> None:
    try:
        index = decode_index(data)
    except CoveError as error:
        assert not isinstance(error, Internal)
        return
    assert decode_index(encode_index(index)) == index


def _check_sessions(data: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        place = Path(name) / "sessions"
        try:
            _write_sessions(place, data)
        except ValidationFailed:
            assert not place.exists()
        else:
            assert {path.name for path in Path(name).iterdir()} == {"sessions"}
            assert all(path.is_file() for path in place.iterdir())


def seeds() -> Iterator[bytes]:
    """Descriptions of an image, a snapshot, its index, and sessions."""
    digest = "sha256:" + "0" * 64
    layer = {"id": "i" * 16, "archive": {"digest": digest, "size": 12}, "has_system": True, "parent": None}
    time = "2026-01-01T00:00:00Z"
    snapshot = {"id": _NAME, "created_at": time, "layers": ["i" * 16]}
    yield msgspec.json.encode({"record": snapshot, "layers": [layer], "sessions": {"digest": digest, "size": 1}})
    image = {"id": digest, "name": "a:b", "created_at": time, "layers": ["i" * 16], "config": {}}
    yield msgspec.json.encode({"record": image, "layers": [layer]})
    index = {"version": 1, "created_at": time, "layers": [{"digest": digest, "size": 5}], "labels": {"a": "b"}}
    yield msgspec.json.encode(index)
    yield msgspec.msgpack.encode({"index": b"[]", "1": b"content"})
    yield b'{"x":' + b"[" * 1500 + b"]" * 1500 + b"}"
    move = {"id": "a", "key": "k" * 16, "source": "n1", "target": "n2", "epoch": 1}
    yield msgspec.json.encode({"move": move, "record": {"id": "a"}, "layers": [], "base": [], "files": ["sessions/1"]})
