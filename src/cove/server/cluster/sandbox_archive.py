"""A stopped sandbox as one archive: its record, its layers by digest, and what else lies at its place. Blocks.

Layers that the other node has are not in it. What the sandbox has written is one more layer, on top. Nothing at its
place changes by packing, but for what the next start would finish too.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from cove.archive.remove_tree import remove_tree
from cove.core.cluster import code_of
from cove.core.identifier import KEY_LENGTH, check_sandbox_id
from cove.core.journal import NOBODY, Actor, make_document
from cove.core.snapshot_index import IndexedLayer, layer_file
from cove.errors import SandboxUnavailable, ValidationFailed
from cove.layers.export import Export, Transfer
from cove.layers.places import Origin, archive_of
from cove.layers.record import Stack
from cove.layers.snapshot_export import layers_by_digest, once, take_in
from cove.layers.store import LayerStore
from cove.linux.sync import sync_file_system
from cove.model import JournalKind, SandboxStatus
from cove.model.journal import JournalFields
from cove.runtime.disk import IMAGE, MOUNT_POINT, attach_disk, detach_disk
from cove.runtime.home import Home, Place, PlaceUsers
from cove.runtime.journal_files import JOURNAL, JournalFiles
from cove.server.cluster.moved_system import TOP, MovedSystem, open_layers, pack_system, stand_on_system
from cove.server.preview.exposures import read_exposures, write_exposures
from cove.server.sandboxes.directory import Directory, Record
from cove.server.sandboxes.moves import Move

_FILES: Final = re.compile(
    r"sessions/(?:index|[0-9]{1,6})|journal/[0-9]{20}\.jsonl|ports\.json|e2b\.json|network\.totals"
    r"|bucket-credentials\.json"
)
_MOST_FILES: Final = 10_000
_MOST_FILE_BYTES: Final = 256 << 20
_KEY: Final = re.compile(rf"[a-z2-7]{{{KEY_LENGTH}}}")
Check = Callable[[], object]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning of an archive: the move, the record, the layers and those of its creation, and its files.

    One with a `system` has its layers there.
    """

    move: Move
    record: Record
    layers: tuple[IndexedLayer, ...]
    base: tuple[IndexedLayer, ...]
    files: tuple[str, ...]
    actor: Actor
    system: MovedSystem | None = None


def check_key(key: str) -> str:
    """Return the key of a place; ValidationFailed for what is none."""
    if not _KEY.fullmatch(key):
        raise ValidationFailed("no sandbox has such a key")
    return key


def check_manifest(manifest: Manifest) -> Manifest:
    """Return it; ValidationFailed for one that no node sends."""
    move, record = manifest.move, manifest.record
    check_sandbox_id(move.id)
    check_key(move.key)
    if (move.id, move.key, move.tenant) != (record.id, record.key, record.tenant):
        raise ValidationFailed("the record is not that of the sandbox that comes")
    if len(manifest.files) > _MOST_FILES or not all(map(_FILES.fullmatch, manifest.files)):
        raise ValidationFailed("a sandbox does not have such files")
    return manifest


@dataclass(slots=True)
class _Sender:
    """A place of an export that the target is: it has some layers, and takes the others as files of an archive."""

    has_digests: frozenset[str]
    layers: list[tuple[str, Path]] = field(default_factory=list)

    def has(self, name: str) -> bool:
        """Return whether the layer need not be sent, or is sent already."""
        return name in self.has_digests or any(name == each for each, _ in self.layers)

    def put(self, name: str, file: Path, check: Check) -> None:
        """Remember it."""
        self.layers.append((name, file))

    def finish(self, name: str, index: bytes, check: Check) -> str:
        """Do nothing: the manifest is the index."""
        return name


@contextmanager
def packed(
    directory: Directory, move: Move, record: Record, actor: Actor, there: Sequence[str], transfer: Transfer
) -> Iterator[Iterator[bytes]]:
    """Hold the archive of a stopped sandbox that nobody starts, in pieces; layers that are `there` are left out."""
    store, place = LayerStore(directory.home), directory.place(record.key)
    with store.holding():  # until it is sent: a working directory is garbage to whoever collects
        working = store.building()
        try:
            with _disk(place, record) as has_disk:
                users = Home(directory.home).users_of(record.key)
                stack = _stack(store, place, users, has_disk=has_disk)
                top = place / MOUNT_POINT if has_disk else place
                data = top / "uppers" / stack.upper / "data" if stack.upper else top
                manifest = Manifest(
                    move=move, record=record, layers=(), base=(), files=tuple(_files(place)), actor=actor
                )
                if stack.system is None:
                    sender = _Sender(frozenset(map(layer_file, there)))
                    manifest = _pack_layers(store, stack, data, manifest, Export(sender, working, transfer))
                    packs = sender.layers
                else:
                    system = pack_system(stack, data, users, working / TOP, transfer.check)
                    manifest = msgspec.structs.replace(manifest, system=system)
                    packs = [(TOP, working / TOP)]
            files = [(name, place / name) for name in manifest.files]
            yield archive_of(msgspec.json.encode(manifest), [*files, *packs])
        finally:
            remove_tree(str(working))


def _pack_layers(store: LayerStore, stack: Stack, data: Path, manifest: Manifest, export: Export) -> Manifest:
    """Pack the layers of a sandbox, and what it wrote as one more; returns the manifest with them."""
    known = {id: _add(store, export, id) for id in dict.fromkeys((*stack.base, *stack.layers))}
    layers = (*(known[id] for id in stack.layers), export.add_layer(data, None))
    return msgspec.structs.replace(manifest, layers=layers, base=tuple(known[id] for id in stack.base))


def _stack(store: LayerStore, place: Path, users: PlaceUsers, *, has_disk: bool) -> Stack:
    """Return what the sandbox stands on; without an upper while its directories are plain."""
    layers = open_layers(place, users, store)
    layers.recover(on_disk_image=has_disk)
    return layers.stack or Stack(upper="")


def _add(store: LayerStore, export: Export, id: str) -> IndexedLayer:
    layer = store.read(id)
    known = None
    if layer.digest is not None and layer.archive_size is not None:
        known = IndexedLayer(digest=layer.digest, size=layer.archive_size)
    found = export.add_layer(store.data(id), known)
    if found != known:
        store.write(msgspec.structs.replace(layer, digest=found.digest, archive_size=found.size))
    return found


@contextmanager
def _disk(place: Path, record: Record) -> Iterator[bool]:
    """Have the file system of a sandbox that has one, while its files are read or written."""
    if not (place / IMAGE).exists():
        yield False
        return
    has_disk = attach_disk(place, record.spec.limits, record.user_id)
    try:
        yield has_disk
    finally:
        detach_disk(place)


def _files(place: Path) -> Iterator[str]:
    for name in ("ports.json", "e2b.json", "network.totals", "bucket-credentials.json"):
        if (place / name).is_file():
            yield name
    for directory in ("sessions", JOURNAL):
        for path in sorted((place / directory).glob("*")):
            if _FILES.fullmatch(f"{directory}/{path.name}") and path.is_file():
                yield f"{directory}/{path.name}"


def unpack(directory: Directory, place: Place, manifest: Manifest, origin: Origin, check: Check) -> Record:
    """Fill a new place with a sandbox that comes, on disk when this returns; returns its record, which it writes."""
    store = LayerStore(directory.home)
    record = msgspec.structs.replace(
        manifest.record, user_id=place.user_id, status=SandboxStatus.STOPPED, key=place.key
    )
    for name in manifest.files:
        _take_file(place.path, name, origin.pieces(name))
    _keep_labels(place.path, code_of(manifest.move.source))
    _note(place.path / JOURNAL, manifest)
    with store.holding():
        ids = _load(LayerStore(directory.home, record.tenant), manifest, origin, Transfer(0, check=check))
        has_disk = attach_disk(place.path, record.spec.limits, place.user_id)
        try:
            users = PlaceUsers(place.user_id, place.users, place.slice)
            layers = open_layers(place.path, users, store, on_disk_image=has_disk)
            if manifest.system is not None:
                stand_on_system(layers, manifest.system, origin.pieces(TOP), check)
            else:
                base, own = (once([ids[each.digest] for each in some]) for some in (manifest.base, manifest.layers))
                layers.commit(layers.stand_on(Stack(upper="", base=base), own))
        finally:
            if has_disk:
                detach_disk(place.path)
    directory.write(record, durable=True)
    descriptor = os.open(place.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file_system(descriptor)
    finally:
        os.close(descriptor)
    return record


def _load(store: LayerStore, manifest: Manifest, origin: Origin, transfer: Transfer) -> dict[str, str]:
    """Load the layers that are not here, in the order in which they were packed; returns ids by digest."""
    here = layers_by_digest(store)
    parent: str | None = None
    for layer in dict.fromkeys((*manifest.base, *manifest.layers)):
        if layer.digest not in here:
            here[layer.digest] = take_in(store, origin, layer, transfer, parent)
        parent = here[layer.digest]
    return here


def _take_file(place: Path, name: str, pieces: Iterator[bytes]) -> None:
    path = place / name
    path.parent.mkdir(mode=0o700, exist_ok=True)
    left = _MOST_FILE_BYTES
    with open(path, "xb", opener=lambda each, flags: os.open(each, flags | os.O_NOFOLLOW, 0o600)) as file:
        for piece in pieces:
            left -= len(piece)
            if left < 0:
                raise ValidationFailed(f"{name} of the sandbox that comes is too large")
            file.write(piece)


def _keep_labels(place: Path, code: str) -> None:
    """Let exposed ports keep their URLs: a label says where it was made."""
    exposures = read_exposures(place)
    if exposures:
        write_exposures(place, [msgspec.structs.replace(each, code=each.code or code) for each in exposures])


def _note(path: Path, manifest: Manifest) -> None:
    """Write into the journal that the sandbox was moved, and by whom."""
    try:
        files = JournalFiles(path)
        files.open()
        actor = NOBODY if manifest.actor == NOBODY else manifest.actor
        fields: JournalFields = {"host": manifest.move.source, "target": manifest.move.target}
        event = make_document(files.next, datetime.now(UTC), JournalKind.MOVED, actor, fields)
        files.append(files.next, [event])
        files.close()
    except OSError as error:
        raise SandboxUnavailable(f"the journal of the sandbox cannot be written: {error.strerror}") from error
