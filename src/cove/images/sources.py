"""Image sources on disk: OCI layouts, oci-archive, docker-archive, root file systems as tar or directory.

A source gives the configuration and opens the layers' blobs one after the other. An archive is not unpacked: its
members are found once, by their headers, and read in place; a compressed one is decompressed into a temporary file.
"""

import os
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BufferedIOBase, FileIO
from pathlib import Path
from typing import BinaryIO, cast

from cove.archive import tar
from cove.archive.stream import Budget, Stream, pack
from cove.archive.tar import Refused
from cove.errors import ImageInvalid, from_errno
from cove.images.layer_stream import MOST_BYTES, Blob, LayerStream
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
MOST_ENTRIES = 1_000_000
MOST_INDEXES = 4

Check = Callable[[], object]


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
            path = self._path.joinpath(*map(os.fsdecode, tar.check_name(os.fsencode(name))))
            if not path.parent.resolve().is_relative_to(self._path.resolve()):
                raise Refused(f"a path through a link: {name}")
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except Refused as error:
            raise ImageInvalid(f"the image names a file that is not its own: {error}") from None
        except OSError as error:
            raise ImageInvalid(f"the image lacks {name}: {error.strerror}") from None
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            raise ImageInvalid(f"the image lacks {name}: it is no file")
        return Slice(fd, 0, found.st_size)


class ArchiveFiles(Files):
    """The members of a tar file. Symbolic and hard links, as `docker save` writes them, lead to other members."""

    def __init__(self, descriptor: int, check: Check) -> None:
        self._descriptor = descriptor
        self._members: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}
        reader = _Seeking(descriptor)
        for number, member in enumerate(tar.read_members(reader, lenient=True)):
            check()
            name = os.fsdecode(b"/".join(member.parts))
            if number >= MOST_MEMBERS:
                raise Refused("more files than an image has")
            if member.stored is not None:
                raise Refused(f"a sparse file in the archive of an image: {name}")
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


class WholeFile(Files):
    """One file, whatever it is called: the tar archive of a root file system."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def has(self, name: str) -> bool:
        return True

    def open(self, name: str) -> Slice:
        return Slice(os.dup(self._descriptor), 0, os.fstat(self._descriptor).st_size)


@dataclass(frozen=True, slots=True)
class Source:
    """An opened source: `files` has its blobs, and a root file system is one layer without a configuration."""

    image: SourceImage
    files: Files

    @contextmanager
    def open_layer(self, layer: LayerBlob) -> Iterator[Blob]:
        """Open the blob of a layer."""
        with self.files.open(layer.location) as blob:
            yield blob


@contextmanager
def open_source(path: Path, working: Path | None = None, check: Check = lambda: None) -> Iterator[Source]:
    """Recognise what is at a path. ImageInvalid says what it should have been. Blocks; `check` may raise to give up."""
    files = DirectoryFiles(path)
    if files.has("index.json"):
        yield Source(_read_layout(files), files)
    elif files.has("manifest.json"):
        yield Source(_read_saved(files), files)
    else:
        with open_archive(path, working) as file, open_archive_source(file, str(path), working, check) as source:
            yield source


@contextmanager
def open_archive(path: Path, working: Path | None = None) -> Iterator[BinaryIO]:
    """Open an archive; a directory, which may be a root file system, is packed first."""
    try:
        file = _packed(path, working) if path.is_dir() else open(path, "rb")  # noqa: SIM115  # closed below
    except OSError as error:
        raise from_errno(error.errno or 0, str(path)) from None
    with file:
        yield file


def _packed(path: Path, working: Path | None) -> BinaryIO:
    file = tempfile.TemporaryFile(prefix="cove-image-", dir=working)  # noqa: SIM115  # the caller's
    try:
        pack(os.fsencode(path), Stream(file.fileno()), Budget(MOST_BYTES, MOST_ENTRIES))
    except BaseException:
        file.close()
        raise
    return cast("BinaryIO", file)


@contextmanager
def open_archive_source(
    file: BinaryIO, shown: str, working: Path | None = None, check: Check = lambda: None
) -> Iterator[Source]:
    """Recognise an archive that is open; it is read in place, whatever the position of the file is."""
    with ExitStack() as held:
        try:
            yield _open_archive(file, held, working, check)
        except Refused as error:
            raise ImageInvalid(f"{shown} is no image: {error}") from None


def _open_archive(file: BinaryIO, held: ExitStack, working: Path | None, check: Check) -> Source:
    if not _is_tar(file):
        file = held.enter_context(_decompressed(file, working, check))
        if not _is_tar(file):
            raise Refused("this is no image archive, which is a tar archive, plain or compressed by gzip or zstd")
    try:
        files = ArchiveFiles(file.fileno(), check)
    except Refused as error:
        if "more files" not in str(error) and "no file, directory or link" not in str(error):
            raise
        return _root_archive(file)  # a root file system has devices, and more files than any image's archive
    if files.has("index.json"):
        return Source(_read_layout(files), files)
    if files.has("manifest.json"):
        return Source(_read_saved(files), files)
    return _root_archive(file)


def _root_archive(file: BinaryIO) -> Source:
    return Source(SourceImage(b"", None, (LayerBlob(None, None, ""),), None), WholeFile(file.fileno()))


def _is_tar(file: BinaryIO) -> bool:
    block = os.pread(file.fileno(), tar.BLOCK, 0)
    try:
        tar.check_sum(block.ljust(tar.BLOCK, b"\0"))
    except Refused:
        return False
    return any(block)


@contextmanager
def _decompressed(file: BinaryIO, working: Path | None, check: Check) -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile(prefix="cove-image-", dir=working) as whole:
        with Slice(os.dup(file.fileno()), 0, os.fstat(file.fileno()).st_size) as part:
            stream = LayerStream(part)
            if not stream.is_compressed:
                raise Refused("this is no image archive, which is a tar archive, plain or compressed by gzip or zstd")
            while piece := stream.read_some():
                check()
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
