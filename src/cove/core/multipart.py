"""Parse multipart/form-data as it comes (RFC 7578), with file names as they were sent: they are whole paths here."""

import re
from dataclasses import dataclass, field
from typing import Final

from cove.errors import ValidationFailed

_MOST_HEAD_BYTES: Final = 16 << 10
_MOST_BOUNDARY: Final = 70
_PARAMETER = re.compile(r';\s*([a-z-]+\*?)=(?:"((?:[^"\\]|\\.)*)"|([^;\s]*))', re.IGNORECASE)
_BOUNDARY = re.compile(r'boundary=(?:"([^"]+)"|([^;\s]+))', re.IGNORECASE)


def boundary_of(content_type: str) -> bytes:
    """Return the boundary that a Content-Type names; raises ValidationFailed."""
    found = _BOUNDARY.search(content_type)
    boundary = (found[1] or found[2]) if found is not None else ""
    if not 0 < len(boundary) <= _MOST_BOUNDARY:
        raise ValidationFailed("multipart/form-data needs a boundary of 1 to 70 characters")
    return boundary.encode("latin-1", "replace")


@dataclass(frozen=True, slots=True)
class Part:
    """The head of a part: what its Content-Disposition says. `file_name` has its escapes still."""

    name: str
    file_name: str | None

    @classmethod
    def parse(cls, head: bytes) -> "Part":
        """Read the head of a part."""
        values: dict[str, str] = {}
        for line in head.decode("utf-8", "surrogateescape").split("\r\n"):
            header, _, rest = line.partition(":")
            if header.strip().lower() == "content-disposition":
                values = {found[1].lower(): found[3] or found[2] or "" for found in _PARAMETER.finditer(rest)}
        return cls(values.get("name", ""), values.get("filename"))


@dataclass(frozen=True, slots=True)
class PartEnd:
    """The end of a part."""


Event = Part | bytes | PartEnd


@dataclass(slots=True)
class MultipartParser:
    """Takes a body in pieces of any size. What it stores is bounded by one head and one piece."""

    boundary: bytes
    is_over: bool = False
    _buffer: bytearray = field(default_factory=lambda: bytearray(b"\r\n"))
    _is_in_part: bool = False
    _is_in_head: bool = False

    def feed(self, data: bytes) -> list[Event]:
        """Return what these bytes bring; raises ValidationFailed for what is no such body."""
        events: list[Event] = []
        if not self.is_over:  # what comes after the last boundary is nobody's
            self._buffer += data
        while not self.is_over and (self._take_head(events) if self._is_in_head else self._take_body(events)):
            pass
        return events

    def finish(self) -> None:
        """Check that the body was complete."""
        if not self.is_over:
            raise ValidationFailed("the multipart body ends before its last boundary")

    def _take_body(self, events: list[Event]) -> bool:
        """Take what comes before the next boundary, and the boundary if it is there; False when more must come."""
        delimiter = b"\r\n--" + self.boundary
        at = self._buffer.find(delimiter)
        is_found = at >= 0 and len(self._buffer) >= at + len(delimiter) + 2
        content = at if at >= 0 else max(len(self._buffer) - len(delimiter) + 1, 0)
        if self._is_in_part and content:
            events.append(bytes(self._buffer[:content]))
        del self._buffer[:content]
        if not is_found:
            return False
        if self._is_in_part:
            events.append(PartEnd())
        self._take_delimiter(len(delimiter))
        return True

    def _take_delimiter(self, length: int) -> None:
        follows = bytes(self._buffer[length : length + 2])
        self._is_in_part = False
        if follows == b"--":
            self.is_over = True
            self._buffer.clear()
        elif follows == b"\r\n":
            # The line end stays: a head that has no lines ends at once.
            del self._buffer[:length]
            self._is_in_head = True
        else:
            raise ValidationFailed("a boundary of the multipart body is followed by something else")

    def _take_head(self, events: list[Event]) -> bool:
        at = self._buffer.find(b"\r\n\r\n")
        if max(at, 0) > _MOST_HEAD_BYTES or (at < 0 and len(self._buffer) > _MOST_HEAD_BYTES):
            raise ValidationFailed("the head of a part is larger than any needs to be")
        if at < 0:
            return False
        events.append(Part.parse(bytes(self._buffer[:at])))
        del self._buffer[: at + 4]
        self._is_in_head, self._is_in_part = False, True
        return True
