"""The build cache: `images/cache/KEY.json` names the layers that a step made, and keeps them. Calls block.

A key is the digest of all that a step's result depends on: the layers it stands on, the instruction, and the content
that it copies. It names the layer too, but for what a command makes, which may differ each time: a random number is
added. A layer is there, whole, before its key is written. The least recently used keys go when there are many.
"""

import errno
import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from cove.archive.remove_tree import remove_tree
from cove.core.identifier import new_identifier
from cove.images.manifest import chain_ids
from cove.images.store import layer_id
from cove.layers.record import Layer, Owners
from cove.layers.store import BUILD_CACHE, LayerStore
from cove.linux.disk_usage import measure_disk
from cove.linux.sync import sync_file_system

MOST_KEYS = 500


class Built(msgspec.Struct, frozen=True):
    """The layers of an image that is being built, bottom first, with the digest that names each."""

    layers: tuple[str, ...] = ()
    diff_ids: tuple[str, ...] = ()


def step_key(below: Built, *fields: object) -> str:
    """Return the key of a step on these layers; the fields are all that it does."""
    return hashlib.sha256(msgspec.json.encode([below.layers, *fields])).hexdigest()


class BuildCache:
    """The keys of a state directory, and the layers that they lead to."""

    def __init__(self, images: Path, layers: LayerStore) -> None:
        self._path = images / BUILD_CACHE
        self._layers = layers

    def open(self) -> None:
        """Make the directory."""
        self._path.mkdir(mode=0o700, exist_ok=True)

    def find(self, key: str) -> Built | None:
        """Return what a step made before, where all of it is still there."""
        path = self._file(key)
        try:
            built = msgspec.json.decode(path.read_bytes(), type=Built)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        if not all(self._layers.has(id) for id in built.layers):
            return None
        with suppress(FileNotFoundError):
            os.utime(path)
        return built

    def add(self, key: str, below: Built, make: Callable[[Path], Owners], *, repeats: bool = True) -> Built:
        """Add a layer: `make` puts its `data` into a directory and returns who owns it. Nothing is left of a failure.

        The caller holds all layers. A step that `repeats` makes the same layer whenever it is done. The disk has the
        layer before the key.
        """
        building = self._layers.building()
        try:
            digest = key if repeats else hashlib.sha256(f"{key} {new_identifier()}".encode()).hexdigest()
            built = self._adopt(building, below, make(building), f"sha256:{digest}")
            self._write(key, built)
            return built
        finally:
            if building.exists():
                remove_tree(str(building))

    def _adopt(self, building: Path, below: Built, owners: Owners, digest: str) -> Built:
        diff_ids = (*below.diff_ids, digest)
        layer = Layer(
            id=layer_id(chain_ids(diff_ids)[-1]),
            owner=owners.first,
            users=owners.users,
            created_at=datetime.now(UTC),
            parent=below.layers[-1] if below.layers else None,
            size=measure_disk([str(building / "data")]).bytes,
        )
        _sync(building)
        try:
            self._layers.adopt(building, layer)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # else it is here already
                raise
        return Built((*below.layers, layer.id), diff_ids)

    def trim(self) -> None:
        """Forget the least recently used keys beyond the most; layers that nothing else needs go with them."""
        self._forget(MOST_KEYS)

    def clear(self) -> None:
        """Forget all keys."""
        self._forget(0)

    def _forget(self, kept: int) -> None:
        ages: list[tuple[int, str]] = []
        for entry in os.scandir(self._path) if self._path.exists() else ():
            with suppress(FileNotFoundError):
                if (entry.name.partition("~")[0] if "~" in entry.name else "") != self._layers.tenant:
                    continue
                ages.append((entry.stat().st_mtime_ns, entry.path))
        for _, path in sorted(ages, reverse=True)[kept:]:
            Path(path).unlink(missing_ok=True)
        self._layers.collect()

    def _write(self, key: str, built: Built) -> None:
        """Write a key whole; two builds may write the same one."""
        building = self._path / f".{new_identifier()}"
        building.write_bytes(msgspec.json.encode(built))
        building.rename(self._file(key))

    def _file(self, key: str) -> Path:
        """A tenant takes no step's result from another, who may have made it by means of his own."""
        tenant = self._layers.tenant
        return self._path / (f"{tenant}~{key}.json" if tenant else f"{key}.json")


def _sync(directory: Path) -> None:
    """Wait until the disk has all: a sandbox's overlay does not wait for it, file by file."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file_system(fd)
    finally:
        os.close(fd)
