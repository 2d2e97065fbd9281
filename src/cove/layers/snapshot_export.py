"""Export the snapshots of a state directory, and load others into it. Blocks.

While it works the layers that are there are kept. A load that fails leaves layers that nothing names: garbage, which is
collected as any other.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from cove.archive.remove_tree import remove_tree
from cove.core.identifier import new_identifier
from cove.core.snapshot_index import VERSION, IndexedLayer, SnapshotIndex, snapshot_digest
from cove.errors import ValidationFailed
from cove.layers.digest import Hashing
from cove.layers.export import Export, Progress, Transfer, load_layer, read_index
from cove.layers.packing import pack_layer
from cove.layers.places import FilePlace, Origin, Place
from cove.layers.record import PARTS, Layer, Snapshot
from cove.layers.store import LayerStore
from cove.model import ExportInfo

# Whose files loaded layers are where root has them: never root's own, which is never mapped.
_NOBODY: Final = 65534
Check = Callable[[], object]


def export_to(store: LayerStore, id: str, place: Place, progress: Progress, check: Check) -> ExportInfo:
    """Write a snapshot to a place; layers that are there by digest are not written again."""
    with store.holding(), _working(store) as working:
        snapshot = store.find(id)
        if snapshot.system is not None:
            raise ValidationFailed(f"snapshot {id} stands on the image {snapshot.system.image}: it cannot be exported")
        export = Export(place, working, Transfer(len(snapshot.layers), progress, check))
        layers = tuple(_add(store, export, layer) for layer in snapshot.layers)
        return export.finish(id, index_of(snapshot, layers))


def export_file(store: LayerStore, id: str, check: Check) -> int:
    """Export a snapshot to one file without a name; returns its descriptor."""
    with store.holding(), _working(store) as working:
        path = working / "archive.tar"
        export_to(store, id, FilePlace(path), lambda _: None, check)
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def index_of(snapshot: Snapshot, layers: tuple[IndexedLayer, ...]) -> SnapshotIndex:
    """Return the index of a snapshot that has these layers; sessions stay here, for their variables may be secrets."""
    return SnapshotIndex(
        version=VERSION,
        created_at=snapshot.created_at,
        layers=layers,
        name=snapshot.name,
        labels=snapshot.labels,
        env=snapshot.env,
        workdir=snapshot.workdir,
    )


def digest_of(store: LayerStore, id: str, check: Check) -> str:
    """Return the digest of a snapshot; those of its layers are computed when they are first asked for, and kept."""
    with store.holding():
        return snapshot_digest([_digest(store, layer, check) for layer in store.find(id).layers])


def _digest(store: LayerStore, id: str, check: Check) -> str:
    known = _known(store.read(id))
    if known is None:
        hashing = Hashing(lambda _: None)
        pack_layer(store.data(id), hashing, check)
        known = IndexedLayer(digest=hashing.digest, size=hashing.size)
        _note(store, id, known)
    return known.digest


def _add(store: LayerStore, export: Export, id: str) -> IndexedLayer:
    known = _known(store.read(id))
    found = export.add_layer(store.data(id), known)
    if found != known:
        _note(store, id, found)
    return found


def _known(layer: Layer) -> IndexedLayer | None:
    if layer.digest is None or layer.archive_size is None:
        return None
    return IndexedLayer(digest=layer.digest, size=layer.archive_size)


def _note(store: LayerStore, id: str, found: IndexedLayer) -> None:
    store.write(msgspec.structs.replace(store.read(id), digest=found.digest, archive_size=found.size))


def load_from(store: LayerStore, origin: Origin, progress: Progress, check: Check) -> Snapshot:
    """Load a snapshot, verified by its digests; layers that are here already are not loaded again."""
    try:
        with store.holding():
            return _load(store, origin, progress, check)
    except BaseException:
        store.collect()
        raise


def _load(store: LayerStore, origin: Origin, progress: Progress, check: Check) -> Snapshot:
    index = read_index(origin)
    transfer = Transfer(len(index.layers), progress, check)
    here = layers_by_digest(store)
    layers: list[str] = []
    for layer in index.layers:
        if layer.digest in here:
            transfer.add_layer()
        else:
            here[layer.digest] = take_in(store, origin, layer, transfer, layers[-1] if layers else None)
        layers.append(here[layer.digest])
    snapshot = Snapshot(
        id=new_identifier(),
        created_at=index.created_at,
        layers=once(layers),
        name=index.name,
        labels=index.labels,
        env=index.env,
        workdir=index.workdir,
    )
    store.keep(snapshot)
    return snapshot


def once(layers: Sequence[str]) -> tuple[str, ...]:
    """Leave out layers that come again above: all that they show, the same one shows there."""
    return tuple(id for number, id in enumerate(layers) if id not in layers[number + 1 :])


def layers_by_digest(store: LayerStore) -> dict[str, str]:
    """Return the layers that are here, by their digests, as far as those are known.

    For a tenant, those of its own snapshots: who knows a digest has not shown what is in it.
    """
    found: dict[str, str] = {}
    for name in store.of_snapshots() if store.tenant else os.listdir(store.path):
        if not name.startswith(".") and store.has(name) and (digest := store.read(name).digest) is not None:
            found[digest] = name
    return found


def take_in(store: LayerStore, origin: Origin, layer: IndexedLayer, transfer: Transfer, parent: str | None) -> str:
    """Load one layer, verified by its digest; returns its id. The caller holds the layers."""
    owner = _NOBODY if os.geteuid() == 0 else None
    with _working(store) as building:
        data = building / "data"
        data.mkdir(mode=0o700)
        load_layer(origin, layer, data, transfer, owner)
        for part in PARTS:
            _complete(data / part, owner)
        if owner is not None:
            os.chown(data, owner, owner)
        id = new_identifier()
        store.adopt(
            building,
            Layer(
                id=id,
                owner=os.geteuid() if owner is None else owner,
                created_at=datetime.now(UTC),
                parent=parent,
                digest=layer.digest,
                archive_size=layer.size,
            ),
        )
    return id


def _complete(part: Path, owner: int | None) -> None:
    """Make a part that the archive did not name: a layer has them all."""
    if not part.exists():
        part.mkdir(mode=0o700)
        if owner is not None:
            os.chown(part, owner, owner)


@contextmanager
def _working(store: LayerStore) -> Iterator[Path]:
    """A directory for what is on its way, which is gone at the end."""
    path = store.building()
    try:
        yield path
    finally:
        remove_tree(str(path))
