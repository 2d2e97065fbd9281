"""The layers and snapshots of a state directory: kept while something stands on them, removed when nothing does.

A layer is `layers/ID/` with `data` and `layer.json`; a snapshot is `snapshots/ID.json`, and `snapshots/ID.sessions` is
what its sessions come back from, written before it. What a layer is kept for is
written down before it is there, or under the shared lock: a layer that no snapshot and no sandbox names is garbage to
whoever gets the exclusive one. All calls here block.
"""

import builtins
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from cove.archive.remove_tree import remove_tree
from cove.core.identifier import check_id, new_identifier
from cove.errors import SnapshotNotFound
from cove.layers.record import Layer, Snapshot, Stack, System
from cove.linux.disk_usage import measure_disk
from cove.linux.file_lock import is_locked, shared_lock, try_exclusive
from cove.local.state import replace_file, sync_directory
from cove.model import SnapshotInfo

STACK = "layers.json"
IMAGES = "images"
BUILD_CACHE = "cache"
IMAGE_LAYER = "sha256-"
_LAYER = "layer.json"
_BUILDING = ".new-"
_SESSIONS = ".sessions"

T = TypeVar("T")


class _Named(msgspec.Struct, frozen=True):
    """The layers in the record of an image."""

    layers: tuple[str, ...]


class LayerStore:
    """Everything below `layers` and `snapshots` of one state directory. A tenant's sees its own snapshots only."""

    def __init__(self, home: Path, tenant: str = "") -> None:
        self.tenant = tenant
        # Raises where there may be no snapshot more; what it returns gives back the room, which it holds until then.
        self.admit: Callable[[], Callable[[], None]] = lambda: _do_nothing
        self.path = home / "layers"
        self.snapshots = home / "snapshots"
        self._sandboxes = home / "sandboxes"
        self._images = home / IMAGES
        self._lock = home / "layers.lock"

    def open(self) -> None:
        """Make the directories: nobody but us may enter them."""
        for path in (self.path, self.snapshots):
            path.mkdir(mode=0o700, exist_ok=True)

    def holding(self) -> AbstractContextManager[int]:
        """Keep every layer that is there, until it is written down who needs it."""
        return shared_lock(self._lock)

    def data(self, id: str) -> Path:
        """Return the directory with the files of a layer."""
        return self.path / id / "data"

    def read(self, id: str) -> Layer:
        """Return the record of a layer. Raises FileNotFoundError."""
        return msgspec.json.decode((self.path / id / _LAYER).read_bytes(), type=Layer)

    def write(self, layer: Layer) -> None:
        """Replace the record of a layer that is there."""
        replace_file(self.path / layer.id / _LAYER, msgspec.json.encode(layer))

    def has(self, id: str) -> bool:
        """Return whether the layer is there."""
        return (self.path / id / _LAYER).exists()

    def adopt(self, directory: Path, layer: Layer) -> None:
        """Take a directory with `data` in, by renaming it. Idempotent: a killed caller does it again."""
        if not directory.exists():
            return
        replace_file(directory / _LAYER, msgspec.json.encode(layer))
        directory.rename(self.path / layer.id)

    def tidy(self, id: str) -> None:
        """Remove what only an upper needs from a layer that was one. Idempotent."""
        remove_tree(str(self.path / id / "work"))

    def building(self) -> Path:
        """Return a new place for a layer that is being made: garbage unless `adopt` takes it in."""
        path = self.path / f"{_BUILDING}{new_identifier()}"
        path.mkdir(mode=0o700)
        return path

    def find(self, id: str) -> Snapshot:
        """Return a snapshot by its id. Raises SnapshotNotFound."""
        with suppress(FileNotFoundError):
            found = msgspec.json.decode(self._record(check_id("snapshot", id)).read_bytes(), type=Snapshot)
            if self.tenant in ("", found.tenant):
                return found
        raise SnapshotNotFound(f"there is no snapshot {id}", id=id)

    def list(self) -> builtins.list[Snapshot]:
        """Return all snapshots, oldest first, but for those that are there while a sandbox is copied."""
        found = [each for each in self._read_all() if each.holder is None and self.tenant in ("", each.tenant)]
        return sorted(found, key=lambda snapshot: snapshot.created_at)

    def of_snapshots(self) -> set[str]:
        """Return the layers of all snapshots; of a tenant's store, of its own."""
        return {id for snapshot in self.list() for id in snapshot.layers}

    def _read_all(self) -> Iterator[Snapshot]:
        return filter(None, map(self._read, self.snapshots.glob("[!.]*.json")))

    @staticmethod
    def _read(path: Path) -> Snapshot | None:
        """None for a record that is gone, or that a crash of the machine spoilt."""
        with suppress(FileNotFoundError, msgspec.DecodeError):
            return msgspec.json.decode(path.read_bytes(), type=Snapshot)
        return None

    def keep(self, snapshot: Snapshot) -> Snapshot:
        """Write a snapshot down: from here on its layers are kept. `sync` makes that outlive a crash of the machine."""
        owned = msgspec.structs.replace(snapshot, tenant=self.tenant or snapshot.tenant)
        replace_file(self._record(snapshot.id), msgspec.json.encode(owned))
        return owned

    def sync(self, id: str) -> None:
        """Wait until the disk has the record of a snapshot."""
        with suppress(FileNotFoundError):
            descriptor = os.open(self._record(id), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            sync_directory(self.snapshots)

    def sessions(self, id: str) -> Path:
        """Return the directory with a snapshot's sessions, which is not there where it has none.

        Who writes it holds the layers until the snapshot is kept.
        """
        return self.snapshots / f"{check_id('snapshot', id)}{_SESSIONS}"

    def delete(self, id: str) -> None:
        """Remove a snapshot; layers that nothing else stands on go with it. Raises SnapshotNotFound."""
        self.find(id)
        self.forget(id)
        self.collect()

    def forget(self, id: str) -> None:
        """Remove the record of a snapshot that nobody wants: its layers are garbage from here on."""
        self._record(id).unlink(missing_ok=True)
        remove_tree(str(self.sessions(id)))

    def describe(self, snapshot: Snapshot) -> SnapshotInfo:
        """Describe a snapshot with its size, which is counted when it is first asked for."""
        return snapshot.info(self.size(snapshot.layers[-1]) if snapshot.layers else 0)

    def describe_all(self) -> builtins.list[SnapshotInfo]:
        """Describe all snapshots, oldest first."""
        return [self.describe(each) for each in self.list()]

    def size(self, id: str) -> int | None:
        """Return how much a layer takes, counted when it is first asked for; None of one that is gone."""
        try:
            layer = self.read(id)
        except FileNotFoundError:
            return None  # deleted meanwhile
        if layer.size is None:
            layer = msgspec.structs.replace(layer, size=measure_disk([str(self.data(id))]).bytes)
            self.write(layer)
        return layer.size

    def collect(self) -> int:
        """Remove what nothing stands on; returns how many layers those were. None while somebody holds them."""
        with try_exclusive(self._lock) as is_ours:
            if not is_ours:
                return 0
            for each in self._read_all():
                if each.holder is not None and self._is_abandoned(each.holder):
                    self.forget(each.id)
            try:
                needed = self._needed()
            except msgspec.DecodeError:
                return 0  # a crash of the machine spoilt a record: nobody can tell what it needs
            doomed = [self._set_aside(path) for path in self.path.iterdir() if path.name not in needed]
            orphans = [path for path in self.snapshots.glob(f"[!.]*{_SESSIONS}*") if not self._is_kept(path)]
            for half in self.snapshots.glob(".*.new"):  # of whoever was killed while it wrote a record
                half.unlink(missing_ok=True)
        for path in (*doomed, *orphans):
            remove_tree(str(path))
        return len(doomed)

    def _is_kept(self, sessions: Path) -> bool:
        return sessions.suffix == _SESSIONS and self._record(sessions.stem).exists()

    def _is_abandoned(self, holder: str) -> bool:
        """Return whether whoever makes copies of that sandbox was killed: it is the program that has the sandbox."""
        return not is_locked(self._sandboxes / holder / "lock")

    def _set_aside(self, path: Path) -> Path:
        """Rename what goes, so that nobody takes a half of it for a layer; removing it takes its time."""
        if path.name.startswith(_BUILDING):
            return path
        aside = self.path / f"{_BUILDING}{new_identifier()}"
        path.rename(aside)
        return aside

    def _needed(self) -> set[str]:
        needed = {*self._in_use(), *self._of_images()}
        for path in self.snapshots.glob("[!.]*.json"):
            with suppress(FileNotFoundError):
                needed |= set(msgspec.json.decode(path.read_bytes(), type=Snapshot).layers)
        return needed

    def _of_images(self) -> Iterator[str]:
        """Those of the build cache too. As with snapshots, a record that cannot be read fails all."""
        for path in (*self._images.glob("[!.]*.json"), *self._images.glob(f"{BUILD_CACHE}/[!.]*.json")):
            with suppress(FileNotFoundError):
                yield from msgspec.json.decode(path.read_bytes(), type=_Named).layers

    def _in_use(self) -> Iterator[str]:
        for entry in os.scandir(self._sandboxes):
            stack = read_stack(Path(entry.path))
            if stack is not None:
                merged = (each.into for each in stack.merges)
                yield from (*stack.layers, *stack.base, *(stack.undo or ()), *merged)

    def systems(self) -> Iterator[tuple[System, tuple[str, ...]]]:
        """Give the systems of all sandboxes and snapshots that have one, and the layers that each stands on."""
        for name in os.listdir(self._sandboxes):
            with suppress(msgspec.DecodeError):
                stack = read_stack(self._sandboxes / name)
                if stack is not None and stack.system is not None:
                    yield stack.system, stack.layers
        for snapshot in self._read_all():
            if snapshot.system is not None:
                yield snapshot.system, snapshot.layers

    def _record(self, id: str) -> Path:
        return self.snapshots / f"{id}.json"


def _do_nothing() -> None:
    """Give nothing back: any number of snapshots may be made."""


def is_of_image(id: str) -> bool:
    """Return whether a layer came with an image: it is named by a digest."""
    return id.startswith(IMAGE_LAYER)


def read_stack(place: Path) -> Stack | None:
    """Return what the sandbox at that place stands on; None for one that has its plain directories."""
    try:
        return msgspec.json.decode((place / STACK).read_bytes(), type=Stack)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        return None
