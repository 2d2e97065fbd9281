"""Save an image as an OCI archive: the same image gives the same bytes. Blocks.

Layers are packed anew from what is on disk, uncompressed, straight into the archive: the header of a blob, which is
named by its digest, is written when its content is there. image-spec: image-layout.md.
"""

import hashlib
import os
from collections.abc import Callable
from typing import Final

import msgspec

from cove.archive import tar
from cove.errors import FileTooLarge
from cove.images.layer_pack import pack_image_layer
from cove.images.manifest import MANIFEST_TYPES, ImageConfig, digest_of
from cove.images.record import ImageRecord
from cove.images.reference import parse_reference
from cove.images.sources import blob_path
from cove.layers.store import LayerStore

_LAYER_TYPE: Final = "application/vnd.oci.image.layer.v1.tar"
_CONFIG_TYPE: Final = "application/vnd.oci.image.config.v1+json"

Progress = Callable[[int, int], object]


def save_image(record: ImageRecord, layers: LayerStore, file: int, progress: Progress) -> None:
    """Write the archive to an empty file. `progress` hears of layers and bytes, and may raise to give up."""
    with layers.holding():
        archive = _Archive(file, progress)
        for id in record.layers:
            archive.add_layer(layers, id)
    config = _encode(_config(record.config, [digest for digest, _ in archive.layers]))
    manifest = _encode(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPES[0],
            "config": _describe(config, _CONFIG_TYPE),
            "layers": [{"mediaType": _LAYER_TYPE, "digest": digest, "size": size} for digest, size in archive.layers],
        }
    )
    names = {"io.containerd.image.name": record.name, "org.opencontainers.image.ref.name": _tag(record.name)}
    index = {"schemaVersion": 2, "manifests": [{**_describe(manifest, MANIFEST_TYPES[0]), "annotations": names}]}
    for data in (config, manifest):
        archive.add(blob_path(digest_of(data)), data)
    archive.add("index.json", _encode(index))
    archive.add("oci-layout", _encode({"imageLayoutVersion": "1.0.0"}))
    archive.finish()


def _tag(name: str) -> str:
    reference = parse_reference(name)
    return reference.digest or reference.tag


def _config(config: ImageConfig, diff_ids: list[str]) -> dict[str, object]:
    settings = msgspec.to_builtins(config.settings)
    return {
        "architecture": config.architecture,
        "os": config.os,
        "config": {name: value for name, value in settings.items() if value},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    }


def _describe(data: bytes, media_type: str) -> dict[str, object]:
    return {"mediaType": media_type, "digest": digest_of(data), "size": len(data)}


def _encode(value: object) -> bytes:
    return msgspec.json.encode(value, order="sorted")


class _Archive:
    """A tar file that is written at its end; a blob that it has already is not written again."""

    def __init__(self, file: int, progress: Progress) -> None:
        self._file = file
        self._progress = progress
        self._at = 0
        self._names: set[str] = set()
        self.layers: list[tuple[str, int]] = []
        for name in ("blobs/", "blobs/sha256/"):
            self._write(tar.header(name.encode(), tar.DIRECTORY, 0o755, 0, 0, b""))

    def add(self, name: str, data: bytes) -> None:
        """Add a small file."""
        if name not in self._names:
            self._names.add(name)
            self._write(_header(name, len(data)) + data + bytes(tar.padding(len(data))))

    def add_layer(self, layers: LayerStore, id: str) -> None:
        """Add the blob of a layer, and remember its digest and size."""
        start, hashed = self._at, hashlib.sha256()
        self._write(bytes(tar.BLOCK))

        def write(data: bytes) -> None:
            hashed.update(data)
            self._write(data)
            self._progress(len(self.layers), self._at)

        pack_image_layer(layers, id, write, lambda: self._progress(len(self.layers), self._at))
        size, name = self._at - start - tar.BLOCK, blob_path(f"sha256:{hashed.hexdigest()}")
        if size >= tar.MOST_OCTAL:
            raise FileTooLarge(f"a layer has more than {tar.MOST_OCTAL >> 30} GiB: it cannot be saved")
        if name in self._names:
            self._at = start
        else:
            self._names.add(name)
            os.pwrite(self._file, _header(name, size), start)
        self.layers.append((f"sha256:{hashed.hexdigest()}", size))
        self._progress(len(self.layers), self._at)

    def finish(self) -> None:
        """Write the end mark, and nothing behind it."""
        self._write(bytes(2 * tar.BLOCK))
        os.ftruncate(self._file, self._at)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._file, view, self._at)
            view, self._at = view[written:], self._at + written


def _header(name: str, size: int) -> bytes:
    return tar.header(name.encode(), tar.FILE, 0o644, size, 0, b"")
