"""Pack a layer as images have it: equal bytes mean equal content. Blocks.

What overlayfs keeps as devices and attributes is written as OCI writes it (image-spec: layer.md, "Whiteouts"). Pipes,
attributes and set-id bits are left out. Files have their owners; where all on disk have one, those that are recorded.
"""

import os
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from cove.archive import tar
from cove.images.merged_view import OPAQUE
from cove.images.parts import PLACES
from cove.images.recorded_owner import read_owner
from cove.layers.layer_tar import FIFO, WHITEOUT
from cove.layers.packing import Packing, Write
from cove.layers.record import ROOT, Layer
from cove.layers.store import LayerStore
from cove.linux.open_below import Opened

# The parts of a layer that an image has, and where they are in it.
_PLACES: Final = {ROOT.encode(): b"", **{part.encode(): b"/".join(place) for part, place in PLACES.items()}}
_WHITEOUT, _OPAQUE = b".wh.", b".wh..wh..opq"


def pack_image_layer(
    layers: LayerStore,
    id: str,
    write: Write,
    check: Callable[[], object] = lambda: None,
    left_out: Collection[bytes] = (),
) -> None:
    """Write a layer, without the paths in it that are left out."""
    data, layer = layers.data(id), layers.read(id)
    with ExitStack() as stack:
        top = os.open(data, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        stack.callback(os.close, top)
        packing = _ImagePacking(top, write, check, left_out=left_out, layer=layer)
        for part in _PLACES:
            if os.path.isdir(data / os.fsdecode(part)):
                packing.run(part)
        packing.finish()


@dataclass(slots=True, kw_only=True)
class _ImagePacking(Packing):
    """Writes the members of a layer by their paths in the image."""

    left_out: Collection[bytes]
    layer: Layer

    def meet(self, found: os.stat_result) -> None:
        self.owner = self._inside(found.st_uid), self._inside(found.st_gid)

    def _inside(self, number: int) -> int:
        """Return a user or group of the image by its number on the host; whoever is none of them is root."""
        inside = number - self.layer.owner
        return inside if 0 <= inside < self.layer.users else 0

    def _remember(self, opened: Opened) -> None:
        if self.layer.root is None:
            self.owner = read_owner(opened.descriptor)

    def content(self, opened: Opened, path: bytes, found: os.stat_result) -> None:
        self._remember(opened)
        Packing.content(self, opened, path, found)

    def is_left_out(self, path: bytes) -> bool:
        return path in self.left_out

    def directory(self, path: bytes, opened: Opened) -> None:
        found = os.fstat(opened.descriptor)
        self.meet(found)
        self._remember(opened)
        self.member(tar.DIRECTORY, path, opened.mode, mtime=int(found.st_mtime))
        if OPAQUE in os.listxattr(opened.descriptor):
            self.member(tar.FILE, path + b"/" + _OPAQUE, 0)

    def member(
        self,
        kind: bytes,
        path: bytes,
        mode: int,
        *,
        size: int = 0,
        mtime: int = 0,
        link: bytes = b"",
        attributes: dict[bytes, bytes] | None = None,
        ranges: list[tuple[int, int]] | None = None,
    ) -> None:
        if kind == FIFO:
            return
        if kind == WHITEOUT:
            parent, _, name = path.rpartition(b"/")
            kind, path = tar.FILE, parent + b"/" + _WHITEOUT + name
        elif kind == tar.HARD_LINK:
            link = place_of(link.removeprefix(b"./"))
        Packing.member(self, kind, place_of(path), mode, size=size, mtime=mtime, link=link, ranges=ranges)


def place_of(path: bytes) -> bytes:
    """Return the path in the image of a path in a layer."""
    part, slash, rest = path.partition(b"/")
    return (_PLACES[part] + slash + rest).strip(b"/")
