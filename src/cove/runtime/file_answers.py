"""Decode what errands find in trees, with a budget: forged is a ProtocolError, too large LimitExceeded."""

from cove.agent.protocol import ProtocolError
from cove.core.errand_protocol import check_relative
from cove.core.file_path import MOST_PATH_BYTES, below, decode_path
from cove.errors import LimitExceeded
from cove.model import FileEvent, FileEventKind, FileInfo, FileKind, SearchMatch
from cove.runtime.file_access import kind_of, make_info, signed

MOST_ENTRIES = 200_000
_MOST_TEXT_BYTES = 64 << 20
_MOST_LINE_BYTES = 8000
_KINDS = {kind.value.encode(): kind for kind in FileEventKind if kind is not FileEventKind.WATCHING}


class Entries:
    """Entries and bytes of text that one answer may still have; `advice` says what to do about too many."""

    def __init__(self, most: int, advice: str) -> None:
        self._left = most
        self._bytes_left = _MOST_TEXT_BYTES
        self._advice = advice
        self._last = b""

    def spend(self, *texts: bytes) -> None:
        """Charge one more entry with these texts to the budget."""
        self._left -= 1
        self._bytes_left -= sum(map(len, texts))
        if self._left < 0:
            raise ProtocolError("more entries than agreed")
        if self._bytes_left < 0:
            raise LimitExceeded(f"more than {_MOST_TEXT_BYTES >> 20} MiB of paths: {self._advice}")

    def next_path(self, path: bytes) -> bytes:
        """Return the path, which must come after those before: nobody sorts here, and none comes twice."""
        if path <= self._last:
            raise ProtocolError("a path out of order")
        self._last = check_relative(path)
        return path


class Listing(Entries):
    """The entries of `list`, below a directory."""

    def __init__(self, directory: bytes) -> None:
        super().__init__(MOST_ENTRIES, "list its directories one by one")
        self._directory = directory

    def decode(self, message: list[bytes]) -> FileInfo:
        """Decode one entry."""
        kind, mode, size, modified, relative, target = message
        full = below(self._directory, self.next_path(relative))
        bits = signed(mode)
        if kind != b"entry" or not 0 <= bits <= 0o177777 or len(target) > MOST_PATH_BYTES:
            raise ProtocolError("an unexpected entry")
        self.spend(full, target)
        is_link = kind_of(bits) is FileKind.SYMLINK
        return make_info(full, bits, signed(size), signed(modified), target if is_link else None)


class Paths(Entries):
    """The paths of `glob`."""

    def __init__(self) -> None:
        super().__init__(MOST_ENTRIES, "make the pattern narrower")

    def decode(self, message: list[bytes]) -> str:
        """Decode one path."""
        kind, path = message
        if kind != b"path":
            raise ProtocolError("an unexpected path")
        self.spend(path)
        return decode_path(self.next_path(path))


class Matches(Entries):
    """The lines of `search`, below a directory or in a file."""

    def __init__(self, top: bytes, limit: int) -> None:
        super().__init__(limit, "make the expression narrower")
        self._top = top

    def decode(self, message: list[bytes]) -> SearchMatch:
        """Decode one line."""
        kind, relative, line_number, line = message
        full = below(self._top, check_relative(relative)) if relative else self._top
        if kind != b"match" or len(line) > _MOST_LINE_BYTES:
            raise ProtocolError("an unexpected match")
        self.spend(full, line)
        text = line.decode("utf-8", "replace")
        return SearchMatch(path=decode_path(full), line_number=signed(line_number), line=text)


class Events:
    """The events of `watch`, at a path that is a directory or a file in one."""

    def __init__(self, path: bytes) -> None:
        self._path = path
        self._top = path.rstrip(b"/") or b"/"

    def decode(self, message: list[bytes]) -> FileEvent:
        """Decode one event."""
        match message:
            case [b"watching", is_file] if is_file in (b"0", b"1"):
                if is_file == b"1":
                    self._top = self._top.rpartition(b"/")[0] or b"/"
                return FileEvent(
                    kind=FileEventKind.WATCHING, path=decode_path(self._path), is_directory=is_file == b"0"
                )
            case [b"event", kind, relative, is_directory, old] if kind in _KINDS:
                return FileEvent(
                    kind=_KINDS[kind],
                    path=decode_path(below(self._top, check_relative(relative)) if relative else self._top),
                    is_directory=is_directory == b"1",
                    old_path=decode_path(below(self._top, check_relative(old))) if old else None,
                )
        raise ProtocolError("an unexpected event")
