"""Make layers and archives of images by hand, also such as no honest builder makes."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import zstandard

Compression = Literal["none", "gzip", "zstd"]


@dataclass(frozen=True)
class Item:
    """One member of a layer."""

    name: str
    content: bytes = b""
    kind: bytes = tarfile.REGTYPE
    mode: int = 0o644
    link: str = ""
    uid: int = 0
    gid: int = 0
    pax: Mapping[str, str] = field(default_factory=dict)


def directory(name: str, mode: int = 0o755) -> Item:
    return Item(name, kind=tarfile.DIRTYPE, mode=mode)


def symlink(name: str, target: str) -> Item:
    return Item(name, kind=tarfile.SYMTYPE, link=target)


def hard_link(name: str, target: str) -> Item:
    return Item(name, kind=tarfile.LNKTYPE, link=target)


def make_layer(items: Iterable[Item]) -> bytes:
    """The uncompressed tar of a layer."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for item in items:
            info = tarfile.TarInfo(item.name)
            info.type, info.mode, info.linkname = item.kind, item.mode, item.link
            info.uid, info.gid, info.mtime = item.uid, item.gid, 1_700_000_000
            info.size = len(item.content)
            info.pax_headers = dict(item.pax)
            archive.addfile(info, io.BytesIO(item.content))
    return whole.getvalue()


def compress(data: bytes, how: Compression) -> bytes:
    match how:
        case "gzip":
            return gzip.compress(data, 1, mtime=0)  # the same bytes whenever it is done
        case "zstd":
            return zstandard.compress(data)
    return data


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass
class ImageFiles:
    """An image as named files, which tests change before they are written."""

    files: dict[str, bytes]

    def write(self, path: Path) -> Path:
        """Write them as an archive."""
        with tarfile.open(path, "w") as archive:
            for name, data in self.files.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        return path

    def write_directory(self, path: Path) -> Path:
        """Write them as a directory."""
        for name, data in self.files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
        return path


def config_of(layers: list[bytes], settings: Mapping[str, object] | None = None) -> bytes:
    found: dict[str, object] = {
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]},
    }
    if settings is not None:
        found["config"] = settings
    return json.dumps(found).encode()


def make_oci(
    layers: list[bytes],
    settings: Mapping[str, object] | None = None,
    how: Compression = "gzip",
    name: str | None = None,
) -> ImageFiles:
    """An OCI layout."""
    config = config_of(layers, settings)
    blobs = [compress(layer, how) for layer in layers]
    suffix = {"none": "tar", "gzip": "tar+gzip", "zstd": "tar+zstd"}[how]
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": describe(config, "application/vnd.oci.image.config.v1+json"),
            "layers": [describe(blob, f"application/vnd.oci.image.layer.v1.{suffix}") for blob in blobs],
        }
    ).encode()
    entry = describe(manifest, "application/vnd.oci.image.manifest.v1+json")
    if name is not None:
        entry["annotations"] = {"io.containerd.image.name": name}
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}
    files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
    for data in (config, manifest, *blobs):
        files[f"blobs/sha256/{hashlib.sha256(data).hexdigest()}"] = data
    return ImageFiles(files)


def make_docker(layers: list[bytes], settings: Mapping[str, object] | None = None, name: str = "made:1") -> ImageFiles:
    """An archive as `docker save` writes it."""
    config = config_of(layers, settings)
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    names = [f"{index}/layer.tar" for index in range(len(layers))]
    saved = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": names}]).encode()
    return ImageFiles({config_name: config, **dict(zip(names, layers, strict=True)), "manifest.json": saved})


def describe(data: bytes, media_type: str) -> dict[str, object]:
    return {"mediaType": media_type, "digest": digest(data), "size": len(data)}


def saved_owners(path: Path) -> dict[str, tuple[int, int]]:
    """What a saved image says of the owners of its files, the highest layer's word last."""
    found: dict[str, tuple[int, int]] = {}
    with tarfile.open(path) as whole:
        for blob in whole.getmembers():
            content = whole.extractfile(blob)
            data = b"" if content is None else content.read()
            if data[257:262] == b"ustar":
                with tarfile.open(fileobj=io.BytesIO(data)) as layer:
                    found |= {each.name.removeprefix("./").rstrip("/"): (each.uid, each.gid) for each in layer}
    return found
