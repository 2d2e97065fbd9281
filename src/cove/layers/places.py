"""Places of exports: a directory, or one file. Blocks.

An export is a file for each layer, named by its digest, and an index for each snapshot, written last. In one file, the
index comes first, then the layers, as a plain tar archive.
"""

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from cove.archive import tar
from cove.archive.stream import Stream
from cove.archive.tar import Refused
from cove.core.snapshot_index import MOST_INDEX_BYTES, MOST_LAYER_BYTES, decode_index, index_file, layer_file
from cove.errors import FileNotFound, ValidationFailed, from_errno
from cove.local.state import sync_directory
from cove.model import ExportInfo

INDEX: Final = "snapshot.json"
_CHUNK_BYTES: Final = 1 << 20
_OPEN: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class Place(Protocol):
    """A place that an export is written to. Each file is there whole, or not at all."""

    def has(self, name: str) -> bool:
        """Return whether a file of that name need not be written."""

    def put(self, name: str, file: Path, check: Callable[[], object]) -> None:
        """Take a file in."""

    def finish(self, name: str, index: bytes, check: Callable[[], object]) -> str:
        """Write the index, which makes the export complete; returns where it can be loaded from."""


class Origin(Protocol):
    """A place that an export is read from. Nothing in it is trusted."""

    def index(self) -> bytes:
        """Return the index."""

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield the content of a file. Files are asked for in the order of the index."""


class DirectoryPlace:
    """A directory, which many exports can share with their layers."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def has(self, name: str) -> bool:
        """Return whether that layer is there."""
        return (self._path / name).is_file()

    def put(self, name: str, file: Path, check: Callable[[], object]) -> None:
        """Copy it to the disk, and give it its name then."""
        with open(file, "rb") as source:
            self._write(name, iter(lambda: source.read(_CHUNK_BYTES), b""), check)

    def finish(self, name: str, index: bytes, check: Callable[[], object]) -> str:
        """Write the index."""
        self._write(name, iter([index]), check)
        return str(self._path / name)

    def _write(self, name: str, pieces: Iterator[bytes], check: Callable[[], object]) -> None:
        path = self._path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_beside(path) as write:
            for piece in pieces:
                check()
                write(piece)


class FilePlace:
    """One file. Layers are kept where they are until all of them can be written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._layers: list[tuple[str, Path]] = []

    def has(self, name: str) -> bool:
        """Return whether it is to be written already."""
        return any(name == each for each, _ in self._layers)

    def put(self, name: str, file: Path, check: Callable[[], object]) -> None:
        """Remember it."""
        self._layers.append((name, file))

    def finish(self, name: str, index: bytes, check: Callable[[], object]) -> str:
        """Write everything."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with write_beside(self._path) as write:
            for piece in archive_of(index, self._layers):
                check()
                write(piece)
        return str(self._path)


def archive_of(index: bytes, layers: "list[tuple[str, Path]]") -> Iterator[bytes]:
    """Yield an export as one archive."""
    yield _header(INDEX, len(index)) + index + bytes(tar.padding(len(index)))
    for name, file in layers:
        size = file.stat().st_size
        yield _header(name, size)
        with open(file, "rb") as source:
            while data := source.read(_CHUNK_BYTES):
                yield data
        yield bytes(tar.padding(size))
    yield bytes(2 * tar.BLOCK)


def _header(name: str, size: int) -> bytes:
    return tar.encode_member(tar.Member(tar.FILE, name.encode().split(b"/"), 0o644, size))


class write_beside:  # noqa: N801  # used as a function
    """Give a function that writes a new file; at the end it takes the name, and after a failure it is gone."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Callable[[bytes], None]:
        self.descriptor, self._temporary = tempfile.mkstemp(prefix=".cove-", dir=self._path.parent)
        return self._write

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.descriptor, view) :]

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                os.fsync(self.descriptor)
                os.rename(self._temporary, self._path)
                sync_directory(self._path.parent)
        finally:
            os.close(self.descriptor)
            with suppress(FileNotFoundError):
                os.unlink(self._temporary)


class DirectoryOrigin:
    """A directory with one export, or the index of one of many."""

    def __init__(self, path: Path) -> None:
        self._index = path if path.suffix == ".json" else _only_index(path)
        self._top = self._index.parent.parent

    def index(self) -> bytes:
        """Return the index."""
        data = b"".join(_read_file(self._index, MOST_INDEX_BYTES))
        if len(data) > MOST_INDEX_BYTES:
            raise ValidationFailed(f"{self._index} is too large for an index")
        return data

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield a layer."""
        return _read_file(self._top / name, MOST_LAYER_BYTES)


def place_of(target: str) -> Place:
    """Return where an export to that path or URL is written: a directory that is there or ends with `/`, or a file."""
    if "://" in target:
        from cove.layers.bucket import Bucket

        return Bucket(target)
    path = Path(target)
    return DirectoryPlace(path) if path.is_dir() or target.endswith("/") else FilePlace(path)


@contextmanager
def open_origin(source: str) -> Iterator[Origin]:
    """Open what was exported to a path or URL."""
    if "://" in source:
        from cove.layers.bucket import Bucket

        yield Bucket(source)
    elif Path(source).is_dir() or source.endswith(".json"):
        yield DirectoryOrigin(Path(source))
    else:
        try:
            descriptor = os.open(source, _OPEN)
        except OSError as error:
            raise from_errno(error.errno or 0, source) from None
        try:
            yield FileOrigin(Stream(descriptor))
        finally:
            os.close(descriptor)


def copy_export(origin: Origin, id: str, place: Place, working: Path, check: Callable[[], object]) -> ExportInfo:
    """Copy an export from one place to another, as it is."""
    data = origin.index()
    index = decode_index(data)
    sent = size = 0
    for digest in dict.fromkeys(layer.digest for layer in index.layers):
        if place.has(layer_file(digest)):
            continue
        file = working / f"{sent}.tar.zst"
        with write_beside(file) as write:
            for piece in origin.pieces(layer_file(digest)):
                check()
                write(piece)
        sent, size = sent + 1, size + file.stat().st_size
        place.put(layer_file(digest), file, check)
    location = place.finish(index_file(id), data, check)
    return ExportInfo(
        location=location, digest=index.digest, layers=len(index.layers), sent_layers=sent, sent_bytes=size
    )


def _only_index(path: Path) -> Path:
    found = sorted((path / "snapshots").glob("*.json"))
    if not found:
        raise FileNotFound(f"{path} has no export of a snapshot")
    if len(found) > 1:
        names = ", ".join(str(each) for each in found[:10])
        raise ValidationFailed(f"{path} has {len(found)} exports, name one of them: {names}")
    return found[0]


def _read_file(path: Path, most: int) -> Iterator[bytes]:
    try:
        descriptor = os.open(path, _OPEN)
    except OSError as error:
        raise from_errno(error.errno or 0, str(path)) from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValidationFailed(f"{path} is no regular file")
        while most >= 0 and (data := os.read(descriptor, _CHUNK_BYTES)):
            most -= len(data)
            yield data
    finally:
        os.close(descriptor)


class FileOrigin:
    """One file, or a stream of its bytes, read from its beginning to its end. Opened by whoever made the descriptor."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._members = tar.read_members(stream)
        self._rest = 0

    def index(self) -> bytes:
        """Return the index, which comes first."""
        size = self._next(INDEX)
        if size > MOST_INDEX_BYTES:
            raise ValidationFailed("the index of the export is too large")
        return b"".join(self._content(size))

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield the next layer, after those that nobody wants."""
        while True:
            size = self._next(None)
            if self._name == name:
                yield from self._content(size)
                return
            for _ in self._content(size):
                pass

    def _next(self, name: str | None) -> int:
        try:
            member = next(self._members, None)
        except Refused as error:
            what = "this is no export of a snapshot" if name == INDEX else "refused"
            raise ValidationFailed(f"{what}: {error}") from None
        if member is None or member.kind != tar.FILE or member.stored is not None:
            raise ValidationFailed("the export has not all that its index names")
        self._name = os.fsdecode(b"/".join(member.parts))
        if name is not None and self._name != name:
            raise ValidationFailed("this is no export of a snapshot")
        return member.size

    def _content(self, size: int) -> Iterator[bytes]:
        left = size
        try:
            while left:
                data = self._stream.read(min(left, _CHUNK_BYTES))
                left -= len(data)
                yield data
            self._stream.read(tar.padding(size))
        except Refused as error:
            raise ValidationFailed(f"refused: {error}") from None
