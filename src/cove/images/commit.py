"""Make an image of a sandbox: its image, and what the sandbox has written as further layers. Blocks.

A layer of a sandbox is packed as an image has it, and unpacked again: what comes of it is what would come of a saved
image, whatever the sandbox has put there.
"""

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import IO, Final

import msgspec

from cove.core.squash import plan_merge
from cove.errors import ImageNotFound
from cove.images.layer_pack import pack_image_layer
from cove.images.manifest import ImageConfig, RootFs, Settings, digest_of, machine_architecture
from cove.images.record import ImageRecord
from cove.images.reference import parse_reference
from cove.images.shortening import shorten_layers
from cove.images.sources import LayerBlob
from cove.images.store import ImageStore, layer_id
from cove.layers.merge_run import merge_run
from cove.layers.record import Snapshot, System
from cove.layers.store import is_of_image

# What every sandbox has of its own in its root: mount points, and files that tell about its network.
_FURNITURE: Final = frozenset(
    (
        *(b"root/dev", b"root/proc", b"root/run", b"root/tmp", b"root/workspace", b"root/home/user"),
        *(b"root/etc/hosts", b"root/etc/hostname", b"root/etc/resolv.conf"),
    )
)


def commit_image(store: ImageStore, snapshot: Snapshot, name: str, check: Callable[[], object]) -> ImageRecord:
    """Make an image of the files of a snapshot that has a system. An image with the same name is replaced."""
    reference = str(parse_reference(name))
    assert snapshot.system is not None
    with store.layers.holding():
        base = tuple(id for id in snapshot.layers if is_of_image(id))
        made = [*base]
        if own := snapshot.layers[len(base) :]:
            made.append(_add_layer(store, _merged(store, base, own, check), made, check))
        layers = shorten_layers(store.layers, made, check)
        config = ImageConfig(
            RootFs([_digest(id) for id in made]), _settings(store, snapshot.system, base), machine_architecture()
        )
        record = ImageRecord(
            id=digest_of(msgspec.json.encode(config)),
            name=reference,
            created_at=datetime.now(UTC),
            layers=layers,
            config=config,
            size=sum(store.layers.read(id).size or 0 for id in layers),
        )
        store.keep(record)
    return record


def _merged(store: ImageStore, base: Sequence[str], own: tuple[str, ...], check: Callable[[], object]) -> str:
    """Return the layer that shows what all layers of a sandbox do; one that is made here is garbage afterwards."""
    if len(own) == 1:
        return own[0]
    merge = plan_merge(own, is_bottom=False)
    merge_run(store.layers, own, merge.into, parent=base[-1], check=check)
    return merge.into


def _add_layer(store: ImageStore, id: str, below: list[str], check: Callable[[], object]) -> str:
    with tempfile.TemporaryFile(prefix="cove-image-", dir=store.path) as file:
        diff_id = _pack(store, id, file, check)
        made = layer_id(digest_of(f"{_digest(below[-1])} {diff_id}".encode()))
        if not store.layers.has(made):
            store.add_layer(made, below, file, LayerBlob(None, diff_id, ""), check)
        return made


def _pack(store: ImageStore, id: str, file: IO[bytes], check: Callable[[], object]) -> str:
    hashed = hashlib.sha256()

    def write(data: bytes) -> None:
        check()
        hashed.update(data)
        file.write(data)

    pack_image_layer(store.layers, id, write, check, _FURNITURE)
    file.seek(0)
    return f"sha256:{hashed.hexdigest()}"


def _digest(id: str) -> str:
    """Return the digest that an image's layer is named by."""
    return id.replace("-", ":", 1)


def _settings(store: ImageStore, system: System, base: tuple[str, ...]) -> Settings:
    """Take those of the image, if it still has its name, with the user and the variables of the sandbox's system."""
    try:
        found = store.find(system.image)
    except ImageNotFound:
        found = None
    settings = found.config.settings if found is not None and found.layers == base else Settings()
    return msgspec.structs.replace(
        settings,
        Env=[f"{name}={value}" for name, value in system.env.items()],
        WorkingDir=system.workdir,
        User=system.user if system.groups else f"{system.user_id}:{system.group_id}",
    )
