"""The files of a journal: segments of lines in a directory, the oldest of which go first. Calls block.

One process writes at a time: whoever holds the sandbox's place. `open` stands in the directory while it does; it goes
when everything is on disk. A writer that finds it there was not the last one to end in good order.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from cove.core.journal import (
    NOBODY,
    STRIDE,
    Document,
    choose_segment,
    decode_lines,
    encode_lines,
    first_of,
    make_document,
    segment_name,
    segments_in,
    with_gaps,
)
from cove.local.state import sync_directory
from cove.model.journal import JournalEvent, JournalKind

JOURNAL = "journal"
SEGMENT_BYTES = 2 << 20
MOST_SEGMENTS = 8
_OPEN = "open"
_READ_BYTES = 1 << 20
_MOST_EVENTS = 256


class JournalFiles:
    """Writes one journal."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._segment: Path | None = None
        self.next = 1

    def open(self) -> None:
        """Find where to go on. After a writer that was killed, a gap says so."""
        with suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
        found = segments_in(os.listdir(self.path))
        if found:
            self._segment = self.path / found[-1]
            self.next = max(_last_number(self._segment) + 1, first_of(found[-1]))
        mark = self.path / _OPEN
        was_open = mark.exists()
        mark.touch(mode=0o600)
        if was_open:
            self.next += STRIDE
            self.next += 1
            self.append(self.next - 1, [make_document(self.next - 1, datetime.now(UTC), JournalKind.GAP, NOBODY, {})])

    def append(self, first: int, events: Sequence[Document]) -> None:
        """Write events, from that number on; on a full disk none of them is there afterwards. Raises OSError."""
        segment = self._segment
        if segment is None or _size(segment) >= SEGMENT_BYTES:
            segment = self._segment = self.path / segment_name(first)
            self._drop_oldest()
        _append(segment, encode_lines(events), durable=False)

    def _drop_oldest(self) -> None:
        for name in segments_in(os.listdir(self.path))[: 1 - MOST_SEGMENTS]:
            (self.path / name).unlink()

    def close(self) -> None:
        """Have everything on disk, and say that the end was in good order."""
        with suppress(OSError):
            if self._segment is not None:
                _append(self._segment, b"", durable=True)
                sync_directory(self.path)
            (self.path / _OPEN).unlink(missing_ok=True)


class JournalReader:
    """Reads a journal from a position on; `paths` are where it may be, as it is moved when its sandbox is destroyed."""

    def __init__(self, paths: Sequence[Path], position: int) -> None:
        self._paths = paths
        self._position = position
        self._segment: str | None = None
        self._offset = 0

    def read(self) -> list[JournalEvent] | None:
        """Return some events that come next, none when there are none yet; None when there is no journal."""
        for path in self._paths:
            while path.is_dir():
                with suppress(FileNotFoundError):  # it was moved, or the oldest segment dropped, just now
                    return self._read(path)
        return None

    def _read(self, path: Path) -> list[JournalEvent]:
        found = segments_in(os.listdir(path))
        if self._segment not in found:
            self._segment, self._offset = choose_segment(found, self._position), 0
        for name in found[found.index(self._segment) :] if self._segment is not None else ():
            if name != self._segment:  # the one before was whole when this one was made
                self._segment, self._offset = name, 0
            with (path / name).open("rb") as file:
                if events := self._read_segment(file):
                    return events
        return []

    def _read_segment(self, file: BinaryIO) -> list[JournalEvent]:
        while True:
            file.seek(self._offset)
            lines = file.read(_READ_BYTES).splitlines(keepends=True)[:_MOST_EVENTS]
            if lines and not lines[-1].endswith(b"\n"):  # it is being written
                lines.pop()
            if not lines:
                return []
            data = b"".join(lines)
            self._offset += len(data)
            events = list(with_gaps(decode_lines(data), self._position))
            if events:
                self._position = int(events[-1].cursor)
                return events


def _last_number(segment: Path) -> int:
    """Return the number of the last whole event, and cut off what was written of another one."""
    data = segment.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(segment, whole)
    return max((int(event.cursor) for event in decode_lines(data[:whole])), default=0)


def _append(segment: Path, data: bytes, *, durable: bool) -> None:
    descriptor = os.open(segment, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        before = os.fstat(descriptor).st_size
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        except OSError:
            os.ftruncate(descriptor, before)
            raise
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
