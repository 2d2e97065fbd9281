"""Make one layer of a run of them, as they are in the store. Calls block."""

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from cove.archive.remove_tree import remove_tree
from cove.layers.merging import NewOwners, merge_layers
from cove.layers.record import Layer, Owners
from cove.layers.store import LayerStore
from cove.linux.disk_usage import measure_disk


def merge_run(
    store: LayerStore, run: Sequence[str], into: str, *, parent: str | None, check: Callable[[], object]
) -> None:
    """Merge layers, bottom first, into a layer of that id, on `parent`; nothing is done where it is there already.

    The caller holds them. Nothing is left of a merge that fails.
    """
    if store.has(into):
        return
    building = store.building()
    try:
        data = building / "data"
        data.mkdir(mode=0o700)
        found = [store.read(id) for id in run]
        owners = Owners(found[0].owner, max(layer.users for layer in found))
        new = NewOwners(*owners, [layer.owner for layer in found]) if os.geteuid() == 0 else None
        merge_layers([store.data(id) for id in run], data, is_bottom=parent is None, owners=new, check=check)
        layer = Layer(
            id=into,
            owner=owners.first,
            users=owners.users,
            created_at=datetime.now(UTC),
            parent=parent,
            size=measure_disk([str(data)]).bytes,
        )
        try:
            store.adopt(building, layer)
        except OSError:
            if not store.has(into):  # else somebody else has made the same meanwhile
                raise
    finally:
        if building.exists():
            remove_tree(str(building))
