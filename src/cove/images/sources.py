"""Image sources on disk: OCI layouts, oci-archive, docker-archive, root file systems as tar or directory.

A source gives the configuration and opens the layers' blobs one after the other. An archive is not unpacked: its
members are found once, by their headers, and read in place; a compressed one is decompressed into a temporary file.
"""

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BufferedIOBase, FileIO
from pathlib import Path
from typing import BinaryIO

from cove.archive import tar
from cove.archive.tar import Refused
from cove.errors import ImageInvalid
from cove.images.layer_stream import Blob, LayerStream
from cove.images.manifest import (
    INDEX_TYPES,
    MOST_JSON_BYTES,
    Descriptor,
    ImageConfig,
    Index,
    Manifest,
    SavedImage,
    check_layers,
    choose,
    decode,
    digest_of,
    machine_architecture,
)

MOST_MEMBERS = 10_000
MOST_INDEXES = 4


@dataclass(frozen=True, slots=True)
class LayerBlob:
    """One layer: `digest` is of the blob where a manifest says one, `diff_id` of what is in it."""

    digest: str | None
    diff_id: str | None
    location: str


@dataclass(frozen=True, slots=True)
class SourceImage:
    """An image before it is loaded; `name` is what the source calls it."""

    config_bytes: bytes
    config: ImageConfig | None
    layers: tuple[LayerBlob, ...]
    name: str | None


class Files(ABC):
    """Named files of a source: of a directory, or of an archive read in place."""

    @abstractmethod
    def open(self, name: str) -> "Slice":
        """Open a file; ImageInvalid when it is not there."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Return whether there is such a file."""

    def read(self, name: str, what: str) -> bytes:
        """Return a small file whole."""
        with self.open(name) as file:
            data = file.read(MOST_JSON_BYTES + 1)
        if len(data) > MOST_JSON_BYTES:
            raise ImageInvalid(f"the {what} of the image is larger than {MOST_JSON_BYTES >> 20} MiB")
        return data


class Slice(BufferedIOBase):
    """A part of a file. It has a descriptor of its own."""

    def __init__(self, descriptor: int, start: int, size: int) -> None:
        super().__init__()
        self._file = FileIO(descriptor)
        self._at = start
        self._end = start + size

    def read(self, size: int | None = -1, /) -> bytes:
        left = self._end - self._at
        data = os.pread(self._file.fileno(), left if size is None or size < 0 else min(size, left), self._at)
        self._at += len(data)
        return data

    def close(self) -> None:
        self._file.close()
        super().close()


class DirectoryFiles(Files):
    """The files of a directory, opened without following a link."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def has(self, name: str) -> bool:
        return (self._path / name).is_file()

    def open(self, name: str) -> Slice:
        try:
            fd = os.open(self._path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise ImageInvalid(f"the image lacks {name}: {error.strerror}") from None
        return Slice(fd, 0, os.fstat(fd).st_size)


class ArchiveFiles(Files):
    """The members of a tar file. Symbolic and hard links, as `docker save` writes them, lead to other members."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._members: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}
        reader = _Seeking(descriptor)
        for member in tar.read_members(reader, lenient=True):
            name = os.fsdecode(b"/".join(member.parts))
            if len(self._members) + len(self._links) > MOST_MEMBERS:
                raise Refused("more files than an image has")
            if member.kind == tar.FILE:
                self._members[name] = (reader.at, member.size)
                reader.at += member.size + tar.padding(member.size)
            elif member.kind == tar.SYMLINK:
                self._links[name] = os.path.normpath(os.path.join(os.path.dirname(name), os.fsdecode(member.link)))
            elif member.kind == tar.HARD_LINK:
                self._links[name] = os.path.normpath(os.fsdecode(member.link))

    def has(self, name: str) -> bool:
        return self._links.get(name, name) in self._members

    def open(self, name: str) -> Slice:
        found = self._members.get(self._links.get(name, name))
        if found is None:
            raise ImageInvalid(f"the image lacks {name}")
        return Slice(os.dup(self._descriptor), *found)


class _Seeking:
    """Reads headers; the content of members is passed over."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size
        self.at = 0

    def read(self, size: int) -> bytes:
        if self.at + size > self._size:
            raise tar.Truncated("the archive ends in the middle")
        data = os.pread(self._descriptor, size, self.at)
        self.at += size
        return data


@dataclass(frozen=True, slots=True)
class Source:
    """An opened source: `files` has its blobs, and a root file system is one layer without a configuration."""

    image: SourceImage
    files: Files | None
    root: Path | None

    @contextmanager
    def open_layer(self, layer: LayerBlob) -> Iterator[Blob]:
        """Open the blob of a layer."""
        if self.files is not None:
            with self.files.open(layer.location) as blob:
                yield blob
        else:
            with open(layer.location, "rb") as file:
                yield file


@contextmanager
def open_source(path: Path) -> Iterator[Source]:
    """Recognise what is at a path. ImageInvalid says what it should have been. Blocks."""
    with ExitStack() as held:
        if path.is_dir():
            yield _open_directory(path)
            return
        try:
            file = held.enter_context(open(path, "rb"))
        except OSError as error:
            raise ImageInvalid(f"cannot read {path}: {error.strerror}") from None
        try:
            yield _open_archive(path, file, held)
        except Refused as error:
            raise ImageInvalid(f"{path} is no image: {error}") from None


def _open_directory(path: Path) -> Source:
    files = DirectoryFiles(path)
    if files.has("index.json"):
        return Source(_read_layout(files), files, None)
    if files.has("manifest.json"):
        return Source(_read_saved(files), files, None)
    return Source(SourceImage(b"", None, (), None), None, path)


def _open_archive(path: Path, file: BinaryIO, held: ExitStack) -> Source:
    if not _is_plain(file):
        file = held.enter_context(_decompressed(file))
    try:
        files = ArchiveFiles(file.fileno())
    except Refused as error:
        if "more files" not in str(error) and "no file, directory or link" not in str(error):
            raise
        return _root_archive(path)  # a root file system has devices, and more files than any image's archive
    if files.has("index.json"):
        return Source(_read_layout(files), files, None)
    if files.has("manifest.json"):
        return Source(_read_saved(files), files, None)
    return _root_archive(path)


def _root_archive(path: Path) -> Source:
    return Source(SourceImage(b"", None, (LayerBlob(None, None, str(path)),), None), None, None)


def _is_plain(file: BinaryIO) -> bool:
    block = os.pread(file.fileno(), tar.BLOCK, 0)
    return block[257:262] == b"ustar"


@contextmanager
def _decompressed(file: BinaryIO) -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile(prefix="cove-image-") as whole:
        stream = LayerStream(file)
        while piece := stream.read_some():
            whole.write(piece)
        whole.flush()
        yield whole


def _read_layout(files: Files) -> SourceImage:
    """Read an OCI layout: from index.json by digests to one manifest."""
    index = decode(files.read("index.json", "index"), Index, "index")
    chosen = choose(index.manifests, machine_architecture())
    name = chosen.annotations.get("io.containerd.image.name") or chosen.annotations.get(
        "org.opencontainers.image.ref.name"
    )
    for _ in range(MOST_INDEXES):
        data = _verified(files, chosen, "manifest")
        if chosen.media_type not in INDEX_TYPES and b'"manifests"' not in data:
            return _from_manifest(files, decode(data, Manifest, "manifest"), name)
        chosen = choose(decode(data, Index, "index").manifests, machine_architecture())
    raise ImageInvalid("the image's index leads from one index to the next")


def _from_manifest(files: Files, manifest: Manifest, name: str | None) -> SourceImage:
    config_bytes = _verified(files, manifest.config, "configuration")
    config = decode(config_bytes, ImageConfig, "configuration")
    check_layers(len(manifest.layers), config)
    layers = [
        LayerBlob(layer.digest, diff_id, blob_path(layer.digest))
        for layer, diff_id in zip(manifest.layers, config.rootfs.diff_ids, strict=True)
    ]
    return SourceImage(config_bytes, config, tuple(layers), name)


def _read_saved(files: Files) -> SourceImage:
    """Read what `docker save` wrote: one image, its layers by their names in the archive."""
    saved = decode(files.read("manifest.json", "manifest"), list[SavedImage], "manifest")
    if len(saved) != 1:
        raise ImageInvalid(f"the archive has {len(saved)} images: save one at a time")
    config_bytes = files.read(saved[0].Config, "configuration")
    config = decode(config_bytes, ImageConfig, "configuration")
    check_layers(len(saved[0].Layers), config)
    pairs = zip(saved[0].Layers, config.rootfs.diff_ids, strict=True)
    layers = [LayerBlob(None, diff_id, location) for location, diff_id in pairs]
    return SourceImage(config_bytes, config, tuple(layers), next(iter(saved[0].RepoTags or ()), None))


def _verified(files: Files, descriptor: Descriptor, what: str) -> bytes:
    data = files.read(blob_path(descriptor.digest), what)
    if digest_of(data) != descriptor.digest:
        raise ImageInvalid(f"the {what} of the image is damaged: its digest is not {descriptor.digest}")
    return data


def blob_path(digest: str) -> str:
    """Return the path of a blob in a layout."""
    algorithm, _, encoded = digest.partition(":")
    return f"blobs/{algorithm}/{encoded}"
