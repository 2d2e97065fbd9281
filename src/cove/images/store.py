"""The images of a state directory: `images/NAME.json`, each a name for layers and a configuration. Calls block.

A layer of an image is a layer as any other, with its files below `root`; its id follows from its content and from what
is below it, so images that share a base share its layers. Nothing is visible before it is complete and verified.
"""

import builtins
import errno
import os
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import BinaryIO

import msgspec

from cove.archive.remove_tree import remove_tree
from cove.archive.tar import Refused
from cove.core.users import FIRST_RANGE, IMAGE_OWNER, RANGE_USERS, RANGES
from cove.errors import ImageInUse, ImageInvalid, ImageNotFound, PermissionDenied
from cove.images.layer_stream import Blob, LayerStream, Told
from cove.images.layer_unpack import unpack_layer
from cove.images.manifest import ImageConfig, RootFs, Settings, chain_ids, digest_of, machine_architecture
from cove.images.parts import split_parts
from cove.images.record import ImageRecord
from cove.images.reference import parse_reference
from cove.images.shortening import shorten_layers
from cove.images.sources import LayerBlob, Source, open_archive_source, open_source
from cove.layers.record import ROOT, Layer, Owners
from cove.layers.store import IMAGES, LayerStore
from cove.linux.file_lock import waiting_lock
from cove.linux.user_map import can_map_users
from cove.local.state import replace_file
from cove.model import TransferProgress

_LOCK = "names.lock"

Progress = Callable[[TransferProgress], None]
Check = Callable[[], object]


def _no_check() -> None:
    """Never give up."""


def _no_progress(_: TransferProgress) -> None:
    """Show nothing."""


@dataclass(slots=True)
class _Counted:
    """Tells how many layers are done, and how many bytes of blobs were read. `check` is called more often."""

    progress: Progress
    check: Check
    total: int
    layers: int = 0
    size: int = 0

    def tell(self) -> None:
        self.progress(TransferProgress(layers=self.layers, total_layers=self.total, bytes=self.size))

    def told(self, blob: Blob) -> Told:
        return Told(blob, partial(self._count, self.size))

    def _count(self, before: int, size: int) -> None:
        self.size = before + size
        self.tell()


class ImageStore:
    """Everything below `images`; the layers are in `layers`.

    A tenant has names of its own, and sees the server's too, which it cannot change.
    """

    def __init__(self, home: Path, layers: LayerStore) -> None:
        self.path = home / IMAGES
        self.layers = layers

    @cached_property
    def _root(self) -> int | None:
        """The host user whose number root's files get, where sandboxes can have several users."""
        return IMAGE_OWNER if can_map_users(FIRST_RANGE, RANGES * RANGE_USERS) else None

    @property
    def owners(self) -> Owners:
        """The users that files of new layers belong to."""
        return Owners(os.geteuid(), 1) if self._root is None else Owners(self._root, RANGE_USERS)

    def open(self) -> None:
        """Make the directory: nobody but us may enter it."""
        self.path.mkdir(mode=0o700, exist_ok=True)

    def load(
        self, path: Path, name: str | None = None, progress: Progress = _no_progress, check: Check = _no_check
    ) -> ImageRecord:
        """Load an archive or a directory: see images/sources. `check` may raise to give up."""
        with open_source(path, self.path, check) as source:
            return self._load(source, name, str(path), progress, check)

    def load_archive(
        self, file: BinaryIO, name: str | None, progress: Progress = _no_progress, check: Check = _no_check
    ) -> ImageRecord:
        """Load an archive that is open. `check` may raise to give up."""
        with open_archive_source(file, "the archive", self.path, check) as source:
            return self._load(source, name, "the archive", progress, check)

    def _load(self, source: Source, name: str | None, shown: str, progress: Progress, check: Check) -> ImageRecord:
        called = name or source.image.name
        if called is None:
            raise ImageInvalid(f"{shown} says no name: give it one")
        return self.load_source(source, str(parse_reference(called)), progress, check)

    def load_source(self, source: Source, name: str, progress: Progress, check: Check = _no_check) -> ImageRecord:
        """Unpack what a source has and is not here yet, and keep it under that name."""
        config = source.image.config
        with self.layers.holding():
            if config is None:
                return self._keep_root(name, self._load_root(source, progress, check))
            ids = self._find_layers(source.image.config_bytes)
            if ids is None:
                counted = _Counted(progress, check, len(source.image.layers))
                ids = self._load_chain(source, source.image.layers, config, counted)
                ids = shorten_layers(self.layers, ids, counted.tell)
            return self._keep_config(name, ids, source.image.config_bytes, config)

    def has_image(self, config_bytes: bytes) -> bool:
        """Return whether an image with this very configuration is here, whatever its name."""
        return self._find_layers(config_bytes) is not None

    def _find_layers(self, config_bytes: bytes) -> tuple[str, ...] | None:
        """Return the layers of an image with this configuration, which names what is in them."""
        id = digest_of(config_bytes)
        found = [each.layers for each in self._seen() if each.id == id]
        return next((ids for ids in found if all(map(self.layers.has, ids))), None)

    def find_here(self, ids: Iterable[str]) -> set[str]:
        """Return those layers that need not be brought.

        For a tenant, a layer of another's is none of them: who knows a digest has not shown what is in it.
        """
        here = set(filter(self.layers.has, ids))
        if not self._tenant:
            return here
        return here & {*self.layers.of_snapshots(), *(id for record in self._seen() for id in record.layers)}

    def _load_chain(
        self, source: Source, layers: Sequence[LayerBlob], config: ImageConfig, counted: _Counted
    ) -> tuple[str, ...]:
        ids: builtins.list[str] = []
        chain = [*map(layer_id, chain_ids(config.rootfs.diff_ids))]
        here = self.find_here(chain)
        for layer, id in zip(layers, chain, strict=True):
            counted.tell()
            if id not in here:
                with source.open_layer(layer) as blob:
                    self.add_layer(id, ids, counted.told(blob), layer, counted.check)
            ids.append(id)
            counted.layers += 1
        counted.tell()
        return tuple(ids)

    def add_layer(
        self, id: str, below: Sequence[str], blob: Blob, expected: LayerBlob, check: Check = _no_check
    ) -> str:
        """Unpack a blob on the layers below it; returns its diff_id. The caller holds them."""
        building = self.layers.building()
        try:
            root = building / "data" / ROOT
            root.mkdir(parents=True, mode=0o755)
            root.chmod(0o755)
            stream = LayerStream(blob)
            lowers = [str(self.layers.data(lower) / ROOT) for lower in below]
            try:
                unpack_layer(str(root), lowers, stream, root=self._root, check=check)
                digest, diff_id = stream.finish()
            except (Refused, OSError) as error:
                raise ImageInvalid(f"a layer of the image cannot be unpacked: {error}") from error
            split_parts(building / "data", [self.layers.data(lower) for lower in below], self._root)
            if expected.digest not in (None, digest) or expected.diff_id not in (None, diff_id):
                raise ImageInvalid(f"a layer of the image is damaged: it is {diff_id}, not {expected.diff_id}")
            self._adopt(building, id or layer_id(diff_id), below, stream.size)
        finally:
            if building.exists():
                remove_tree(str(building))
        return diff_id

    def _adopt(self, building: Path, id: str, below: Sequence[str], size: int) -> None:
        layer = Layer(
            id=id,
            owner=self.owners.first,
            users=self.owners.users,
            created_at=datetime.now(UTC),
            parent=below[-1] if below else None,
            size=size,
        )
        try:
            self.layers.adopt(building, layer)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # else it is here already
                raise

    def _load_root(self, source: Source, progress: Progress, check: Check) -> str:
        """Unpack the tar of a root file system, which is one layer; return its diff_id."""
        counted = _Counted(progress, check, 1)
        with source.open_layer(source.image.layers[0]) as blob:
            diff_id = self.add_layer("", (), counted.told(blob), source.image.layers[0], check)
        counted.layers += 1
        counted.tell()
        return diff_id

    def _keep_root(self, name: str, diff_id: str) -> ImageRecord:
        config = ImageConfig(RootFs([diff_id]), Settings(), machine_architecture())
        return self._keep_config(name, [layer_id(diff_id)], msgspec.json.encode(config), config)

    def _keep_config(self, name: str, ids: Sequence[str], config_bytes: bytes, config: ImageConfig) -> ImageRecord:
        record = ImageRecord(
            id=digest_of(config_bytes),
            name=name,
            created_at=datetime.now(UTC),
            layers=tuple(ids),
            config=config,
            size=sum(self.layers.read(id).size or 0 for id in ids),
        )
        return self.keep(record)

    def keep(self, record: ImageRecord) -> ImageRecord:
        """Write an image down, for good: from here on its layers are kept. One of the same name is replaced."""
        record = msgspec.structs.replace(record, tenant=self._tenant)
        with waiting_lock(self.path / _LOCK):  # two may write the same name
            replace_file(self._file(record), msgspec.json.encode(record), durable=True)
        return record

    @property
    def _tenant(self) -> str:
        return self.layers.tenant

    def find(self, name: str) -> ImageRecord:
        """Return the image of a name: the tenant's, or else the server's. Raises ImageNotFound."""
        reference = str(parse_reference(name))
        for tenant in (self._tenant, ""):
            with suppress(FileNotFoundError):
                return msgspec.json.decode((self.path / _file_name(tenant, reference)).read_bytes(), type=ImageRecord)
        raise ImageNotFound(
            f"there is no image {reference}: `cove image ls` shows those there are, `cove image load` and "
            "`cove image pull` bring others",
            name=reference,
        )

    def list(self) -> builtins.list[ImageRecord]:
        """Return all images by their names: of a tenant its own, and those of the server that it has no other for."""
        found = list(self._seen())
        own = {record.name for record in found if record.tenant == self._tenant}
        seen = [record for record in found if not self._tenant or record.tenant or record.name not in own]
        return sorted(seen, key=lambda record: (record.name, record.tenant))

    def _seen(self) -> Iterator[ImageRecord]:
        """All images: of a tenant its own, and those of the server."""
        return (record for record in self._records() if not self._tenant or record.tenant in ("", self._tenant))

    def _records(self) -> Iterator[ImageRecord]:
        for path in self.path.glob("[!.]*.json"):
            with suppress(FileNotFoundError, msgspec.DecodeError):
                yield msgspec.json.decode(path.read_bytes(), type=ImageRecord)

    def delete(self, name: str, *, force: bool = False) -> None:
        """Forget a name; layers that nothing else stands on go with it. Raises ImageInUse unless it is forced."""
        record = self.find(name)
        if record.tenant != self._tenant:
            raise PermissionDenied(f"{record.name} is the server's image: only an admin can remove it")
        if not force and self.is_used(record):
            raise ImageInUse(
                f"a sandbox or a snapshot stands on {record.name}: remove that first; forced, only its name goes"
            )
        self._file(record).unlink(missing_ok=True)
        self.layers.collect()

    def forget_unused(self) -> builtins.list[str]:
        """Forget all images that no sandbox and no snapshot stands on; returns their names."""
        own = (record for record in self.list() if record.tenant == self._tenant)
        gone = [record for record in own if not self.is_used(record)]
        for record in gone:
            self._file(record).unlink(missing_ok=True)
        return [record.name for record in gone]

    def is_used(self, record: ImageRecord) -> bool:
        """Return whether a sandbox, running or stopped, or a snapshot was made on it."""
        count = len(record.layers)
        return any(
            system.image == record.name and layers[:count] == record.layers for system, layers in self.layers.systems()
        )

    def _file(self, record: ImageRecord) -> Path:
        return self.path / _file_name(record.tenant, record.name)


def _file_name(tenant: str, name: str) -> str:
    """No reference has a tilde."""
    return f"{tenant}~{urllib.parse.quote(name, safe='')}.json".removeprefix("~")


def open_images(home: Path, layers: LayerStore) -> ImageStore:
    """Open the images of a state directory."""
    store = ImageStore(home, layers)
    store.open()
    return store


def layer_id(chain_id: str) -> str:
    """The id of an image's layer, from its chain id."""
    return chain_id.replace(":", "-")
