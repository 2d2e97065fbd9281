"""Describe an image or a snapshot for another node, and take in what another node describes. Blocks.

A copy is a record as any other, with the node that it is a copy of: layers keep their ids, so that what is there
already is not fetched. What another node says is believed no further than that it may say what a name stands for: ids
have no path in them, bytes are those that a digest names, and everything has a bound.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from cove.archive.remove_tree import remove_tree
from cove.core.identifier import check_id
from cove.core.snapshot_index import MOST_LAYER_BYTES, MOST_LAYERS, IndexedLayer
from cove.errors import LimitExceeded, NotFound, SnapshotNotFound, ValidationFailed
from cove.images.record import ImageRecord
from cove.images.store import ImageStore, open_images
from cove.images.whole_layer import Check, has_system, unpack_whole, whole_digest
from cove.layers.record import Layer, Owners, Snapshot
from cove.layers.store import LayerStore, is_of_image
from cove.runtime.kept_sessions import MOST_INDEX_BYTES, MOST_KEPT_BYTES

IMAGE: Final = "image"
SNAPSHOT: Final = "snapshot"
MOST_BYTES: Final = 32 << 30
MOST_SESSIONS_BYTES: Final = MOST_INDEX_BYTES + MOST_KEPT_BYTES + (1 << 20)
_SPARE_BYTES: Final = 256 << 20  # what a fetch leaves free on the disk
_NOBODY: Final = 65534
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_SESSION_FILE: Final = re.compile(r"index|[0-9]{1,6}")


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """The thing that a node has under a name. With an `origin` it is a copy of what that node has."""

    id: str
    origin: str = ""


class ShippedLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer and its whole archive; `has_system` says that its files have owners."""

    id: str
    archive: IndexedLayer
    has_system: bool
    parent: str | None = None


class Shipment(msgspec.Struct, frozen=True, kw_only=True):
    """An image or a snapshot with all that it stands on, the lowest layer first."""

    record: ImageRecord | Snapshot
    layers: tuple[ShippedLayer, ...]
    sessions: IndexedLayer | None = None


class _ImageShipment(msgspec.Struct, frozen=True, kw_only=True):
    record: ImageRecord
    layers: tuple[ShippedLayer, ...]
    sessions: IndexedLayer | None = None


class _SnapshotShipment(msgspec.Struct, frozen=True, kw_only=True):
    record: Snapshot
    layers: tuple[ShippedLayer, ...]
    sessions: IndexedLayer | None = None


def find_record(home: Path, noun: str, name: str, tenant: str) -> ImageRecord | Snapshot:
    """Return an image or a snapshot as a tenant sees it. Raises NotFound, or ValidationFailed."""
    layers = LayerStore(home, tenant)
    if noun == IMAGE:
        return open_images(home, layers).find(name)
    if noun != SNAPSHOT:
        raise ValidationFailed(f"no node is asked for a {noun}")
    found = layers.find(name)
    if found.holder is not None:
        raise SnapshotNotFound(f"there is no snapshot {name}", id=name)
    return found


def find_holding(home: Path, noun: str, name: str, tenant: str) -> Holding | None:
    """Return what is here under a name; None for nothing."""
    try:
        found = find_record(home, noun, name, tenant)
    except (NotFound, ValidationFailed):
        return None
    return Holding(id=found.id, origin=found.origin)


def forget_copy(home: Path, noun: str, name: str, tenant: str) -> None:
    """Remove what is here under a name, if it is a copy of the tenant's own. What stands on its layers keeps them."""
    try:
        found = find_record(home, noun, name, tenant)
    except (NotFound, ValidationFailed):
        return
    if found.origin and found.tenant == tenant:
        layers = LayerStore(home, found.tenant)
        if isinstance(found, ImageRecord):
            ImageStore(home, layers).delete(name, force=True)
        else:
            layers.delete(name)


# Where it is


def describe_shipment(home: Path, noun: str, name: str, tenant: str, check: Check) -> Shipment:
    """Describe what another node fetches. The digests of layers are computed when they are first asked for."""
    layers = LayerStore(home)
    with layers.holding():
        record = find_record(home, noun, name, tenant)
        shipped = tuple(describe_layer(layers, id, check) for id in record.layers)
        sessions = None if isinstance(record, ImageRecord) else read_sessions(layers, record.id)
    index = None if sessions is None else IndexedLayer(digest=_digest(sessions), size=len(sessions))
    return Shipment(record=record, layers=shipped, sessions=index)


def describe_layer(layers: LayerStore, id: str, check: Check) -> ShippedLayer:
    """Describe a layer. The caller holds it."""
    archive = whole_digest(layers, id, check)
    return ShippedLayer(id=id, archive=archive, has_system=has_system(layers, id), parent=layers.read(id).parent)


def read_sessions(layers: LayerStore, id: str) -> bytes | None:
    """Return the files of a snapshot's sessions in one piece; None where it has none."""
    directory = layers.sessions(id)
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return None
    return msgspec.msgpack.encode({name: (directory / name).read_bytes() for name in names})


# Where it goes


def decode_shipment(data: bytes, noun: str, name: str) -> Shipment:
    """Read what another node says of a name; ValidationFailed for what cannot be."""
    found: _ImageShipment | _SnapshotShipment
    try:
        if noun == IMAGE:
            found = msgspec.json.decode(data, type=_ImageShipment)
        else:
            found = msgspec.json.decode(data, type=_SnapshotShipment)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValidationFailed(f"refused: this is no {noun}: {error}") from None
    shipment = Shipment(record=found.record, layers=found.layers, sessions=found.sessions)
    _check(shipment, noun, name)
    return shipment


def _check(shipment: Shipment, noun: str, name: str) -> None:
    record, layers = shipment.record, shipment.layers
    if noun == SNAPSHOT and (record.id != name or isinstance(record, ImageRecord) or record.holder is not None):
        raise ValidationFailed(f"refused: this is snapshot {record.id[:200]!r}, not {name}")
    if tuple(layer.id for layer in layers) != record.layers:
        raise ValidationFailed(f"refused: {noun} {name} has other layers than it names")
    check_layers(f"{noun} {name}", layers)
    if shipment.sessions is not None:
        _check_archive(shipment.sessions, MOST_SESSIONS_BYTES)


def check_layers(what: str, layers: Sequence[ShippedLayer]) -> None:
    """Raise ValidationFailed for layers that cannot be, LimitExceeded for those that are too large together."""
    if len(layers) > MOST_LAYERS:
        raise ValidationFailed(f"refused: {what} has more than {MOST_LAYERS} layers")
    for layer in layers:
        check_id("layer", layer.id)
        _check_archive(layer.archive, MOST_LAYER_BYTES)
        if layer.id.startswith(".") or (layer.parent is not None and check_id("layer", layer.parent) != layer.parent):
            raise ValidationFailed(f"refused: a layer cannot be called {layer.id}")
    if sum(layer.archive.size for layer in layers) > MOST_BYTES:
        raise LimitExceeded(f"{what} has more than {MOST_BYTES >> 30} GiB: it is not fetched from another node")


def _check_archive(archive: IndexedLayer, most: int) -> None:
    if not _DIGEST.fullmatch(archive.digest) or not 0 <= archive.size <= most:
        raise ValidationFailed(f"refused: an archive that cannot be: {archive.digest[:100]!r}, {archive.size} bytes")


def check_disk(home: Path, size: int) -> None:
    """Raise LimitExceeded where so many bytes more would fill the disk."""
    free = shutil.disk_usage(home).free
    if free < size + _SPARE_BYTES:
        raise LimitExceeded(f"{size} bytes are to be fetched, and the disk has {free} left: remove some images")


def take_in(images: ImageStore, layer: ShippedLayer, pieces: Iterator[bytes], check: Check) -> None:
    """Unpack a layer that comes in pieces, and take it in: it is what its digest says, or nothing is left of it."""
    owners = images.owners if layer.has_system else _loaded_owners()
    building = images.layers.building()
    try:
        data = building / "data"
        data.mkdir(mode=0o755)
        data.chmod(0o755)
        unpack_whole(pieces, data, layer.archive, owners, opens_all=is_of_image(layer.id), check=check)
        if owners.first != os.geteuid():
            os.chown(data, owners.first, owners.first)
        made = Layer(
            id=layer.id,
            owner=owners.first,
            users=owners.users,
            created_at=datetime.now(UTC),
            parent=layer.parent,
            size=layer.archive.size if is_of_image(layer.id) else None,
            whole=layer.archive,
        )
        if not images.layers.has(layer.id):
            images.layers.adopt(building, made)
    finally:
        remove_tree(str(building))


def _loaded_owners() -> Owners:
    """Return whose the files of layers without a system are: never root's own, which is never mapped."""
    return Owners(_NOBODY if os.geteuid() == 0 else os.geteuid(), 1)


def keep_copy(home: Path, shipment: Shipment, sessions: bytes | None, origin: str) -> Holding:
    """Write down what is here now: from here on its layers are kept."""
    record = msgspec.structs.replace(shipment.record, origin=shipment.record.origin or origin)
    layers = LayerStore(home, record.tenant)
    if isinstance(record, ImageRecord):
        open_images(home, layers).keep(record)
    else:
        if sessions is not None:
            _write_sessions(layers.sessions(record.id), sessions)
        layers.keep(record)
        layers.sync(record.id)
    return Holding(id=record.id, origin=record.origin)


def check_sessions(data: bytes, expected: IndexedLayer) -> None:
    """Raise ValidationFailed for what is not what its digest says."""
    if len(data) != expected.size or _digest(data) != expected.digest:
        raise ValidationFailed("refused: the sessions of the snapshot are not what their digest says")


def _write_sessions(directory: Path, data: bytes) -> None:
    try:
        files = msgspec.msgpack.decode(data, type=dict[str, bytes])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValidationFailed(f"refused: these are no sessions of a snapshot: {error}") from None
    if any(_SESSION_FILE.fullmatch(name) is None for name in files):
        raise ValidationFailed("refused: the sessions of the snapshot have a file that none has")
    new = directory.with_name(f"{directory.name}.new")
    for stale in (new, directory):
        remove_tree(str(stale))
    new.mkdir(mode=0o700)
    for name, content in files.items():
        (new / name).touch(mode=0o600)
        (new / name).write_bytes(content)
    new.rename(directory)


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()
