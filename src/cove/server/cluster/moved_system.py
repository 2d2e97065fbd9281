"""A sandbox on the system of an image, as it is moved: its layers by id, and what it wrote on top with owners. Blocks.

Layers keep their ids: the target fetches those that it lacks before anything else comes (`fetching`). What the sandbox
has written is one more layer, whose archive says whose each file is, as the image counts users. So it can come from a
machine where users have numbers of their own to one where owners are only recorded, and back.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from cove.archive.remove_tree import remove_tree
from cove.core.identifier import new_identifier
from cove.core.snapshot_index import IndexedLayer
from cove.errors import SandboxUnavailable, ValidationFailed
from cove.images.store import open_images
from cove.images.whole_layer import Check, pack_files
from cove.layers.digest import Hashing
from cove.layers.place import PlaceLayers
from cove.layers.record import Owners, Stack, System
from cove.layers.store import LayerStore, read_stack
from cove.runtime.home import PlaceUsers
from cove.runtime.slices import SliceFiles
from cove.server.cluster.shipment import ShippedLayer, check_layers, describe_layer, take_in

TOP: Final = "top.tar"


class MovedSystem(msgspec.Struct, frozen=True, kw_only=True):
    """The system, the layers below what the sandbox wrote and those of its creation, by id, and what it wrote."""

    system: System
    layers: tuple[str, ...]
    base: tuple[str, ...]
    top: ShippedLayer


def open_layers(place: Path, users: PlaceUsers, store: LayerStore, *, on_disk_image: bool = False) -> PlaceLayers:
    """Return the layers of a place with these users."""
    layers = PlaceLayers(place, users.user_id, store, on_disk_image=on_disk_image, users=users.users)
    if users.slice is not None:
        files = SliceFiles(users.slice)
        layers.give = files.give
        layers.remove = lambda path: _remove(files, path)
    return layers


def _remove(files: SliceFiles, path: str) -> None:
    try:
        remove_tree(path)
    except PermissionError:
        files.remove(path)


def describe_stack(home: Path, place: Path, check: Check) -> tuple[ShippedLayer, ...]:
    """Describe the layers below what a sandbox wrote; none for one that stands on no image."""
    store = LayerStore(home)
    with store.holding():
        stack = read_stack(place)
        if stack is None or stack.system is None:
            return ()
        return tuple(describe_layer(store, id, check) for id in dict.fromkeys((*stack.base, *stack.layers)))


def pack_system(stack: Stack, data: Path, users: PlaceUsers, target: Path, check: Check) -> MovedSystem:
    """Write what a sandbox wrote to a new file, and describe it with what is below."""
    assert stack.system is not None
    archive = _pack(data, users, target, check)
    below = stack.layers[-1] if stack.layers else None
    top = ShippedLayer(id=new_identifier(), archive=archive, has_system=True, parent=below)
    return MovedSystem(system=stack.system, layers=stack.layers, base=stack.base, top=top)


def _pack(data: Path, users: PlaceUsers, target: Path, check: Check) -> IndexedLayer:
    if users.slice is not None:
        return SliceFiles(users.slice).pack(data, target)
    owners = Owners(data.stat().st_uid if users.user_id is None else users.user_id, users.users)
    with open(target, "xb") as file:
        hashing = Hashing(file.write)
        pack_files(data, owners, hashing, check)
    return IndexedLayer(digest=hashing.digest, size=hashing.size)


def stand_on_system(layers: PlaceLayers, moved: MovedSystem, pieces: Iterator[bytes], check: Check) -> None:
    """Let a new place stand on the layers of a sandbox that comes, with what it wrote. The caller holds the layers."""
    store = layers.store
    missing = [id for id in (*moved.base, *moved.layers) if not store.has(id)]
    if missing:
        raise SandboxUnavailable(f"layer {missing[0]} of the sandbox that comes is not here: try again")
    check_layers("the sandbox", [moved.top])
    if store.has(moved.top.id) or not moved.top.has_system:
        raise ValidationFailed("what the sandbox wrote cannot be a layer that is there")
    take_in(open_images(store.path.parent, store), moved.top, pieces, check)
    stack = Stack(upper="", base=moved.base, system=moved.system)
    layers.commit(layers.stand_on(stack, (*moved.layers, moved.top.id)))
