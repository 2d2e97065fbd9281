"""Export snapshots as compressed layers by digest, and load them. Blocks.

Both go through a thread of their own: `check` is called again and again and may raise to give up, `progress` hears how
far it is. Whatever fails leaves nothing half: a layer is named when it is whole, an index when all its layers are.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from cove.core.snapshot_index import (
    IndexedLayer,
    SnapshotIndex,
    decode_index,
    encode_index,
    index_file,
    layer_file,
)
from cove.errors import ValidationFailed
from cove.layers.digest import Hashing
from cove.layers.packing import pack_layer
from cove.layers.places import Origin, Place, write_beside
from cove.layers.unpacking import unpack_layer
from cove.local.zstd import Compressor, decompress
from cove.model import ExportInfo, TransferProgress

Progress = Callable[[TransferProgress], object]


@dataclass(slots=True)
class Transfer:
    """One export or load under way."""

    total_layers: int
    progress: Progress = lambda _: None
    check: Callable[[], object] = lambda: None
    _layers: int = 0
    _bytes: int = 0

    def add(self, size: int) -> None:
        """Note bytes that have passed."""
        self.check()
        self._bytes += size
        self._say()

    def add_layer(self) -> None:
        """Note that a layer is done."""
        self.check()
        self._layers += 1
        self._say()

    def _say(self) -> None:
        self.progress(TransferProgress(layers=self._layers, total_layers=self.total_layers, bytes=self._bytes))


@dataclass(slots=True)
class Export:
    """One export: `working` is a directory for files on their way, which the caller removes."""

    place: Place
    working: Path
    transfer: Transfer
    sent_layers: int = 0
    sent_bytes: int = 0
    _done: dict[str, IndexedLayer] = field(default_factory=dict)

    def add_layer(self, data: Path, known: IndexedLayer | None) -> IndexedLayer:
        """Write a layer unless it is there; returns what it is. One that is `known` to be there is not even read."""
        if known is not None and self.place.has(layer_file(known.digest)):
            self.transfer.add_layer()
            return known
        packed = self.working / f"{len(self._done)}.tar.zst"
        layer = self._pack(data, packed)
        if layer.digest not in self._done and not self.place.has(layer_file(layer.digest)):
            self.sent_layers += 1
            self.sent_bytes += packed.stat().st_size
            self.place.put(layer_file(layer.digest), packed, self.transfer.check)
        self._done[layer.digest] = layer
        self.transfer.add_layer()
        return layer

    def _pack(self, data: Path, packed: Path) -> IndexedLayer:
        with write_beside(packed) as write:
            compressor = Compressor(write)
            hashing = Hashing(compressor.feed)

            def take(piece: bytes) -> None:
                hashing(piece)
                self.transfer.add(len(piece))

            pack_layer(data, take, self.transfer.check)
            compressor.finish()
        return IndexedLayer(digest=hashing.digest, size=hashing.size)

    def finish(self, id: str, index: SnapshotIndex) -> ExportInfo:
        """Write the index, which makes it complete."""
        location = self.place.finish(index_file(id), encode_index(index), self.transfer.check)
        return ExportInfo(
            location=location,
            digest=index.digest,
            layers=len(index.layers),
            sent_layers=self.sent_layers,
            sent_bytes=self.sent_bytes,
        )


def export_snapshot(
    export: Export, id: str, facts: SnapshotIndex, layers: Sequence[tuple[Path, IndexedLayer | None]]
) -> ExportInfo:
    """Export layers, bottom first, each with what is known of it, and the index with those `facts`."""
    made = tuple(export.add_layer(data, known) for data, known in layers)
    return export.finish(id, msgspec.structs.replace(facts, layers=made))


def read_index(origin: Origin) -> SnapshotIndex:
    """Return the index of an export, checked."""
    return decode_index(origin.index())


def load_layer(origin: Origin, layer: IndexedLayer, data: Path, transfer: Transfer, owner: int | None = None) -> None:
    """Unpack a layer of an export into the empty directory `data`: it is what its digest says, or this fails."""
    stored = origin.pieces(layer_file(layer.digest))
    unpack_layer(
        _counted(decompress(_Pieces(stored)), transfer),
        data,
        layer.digest,
        layer.size,
        owner=owner,
        check=transfer.check,
    )
    if any(stored):
        raise ValidationFailed(f"the file of layer {layer.digest} goes on after its end")
    transfer.add_layer()


def _counted(pieces: Iterator[bytes], transfer: Transfer) -> Iterator[bytes]:
    for piece in pieces:
        transfer.add(len(piece))
        yield piece


class _Pieces:
    """Pieces as something that is read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int = -1, /) -> bytes:
        """Return at most so many bytes; none at the end."""
        self._rest = self._rest or next(self._pieces, b"")
        data, self._rest = self._rest[:size], self._rest[size:]
        return data
