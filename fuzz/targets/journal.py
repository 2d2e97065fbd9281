"""Files of journals: whatever is in them, events come in order with a gap for each hole, and writing goes on."""

import os
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from cove.core.journal import NOBODY, decode_lines, encode_lines, make_document, segment_name, with_gaps
from cove.model.journal import JournalKind
from cove.runtime.journal_files import JournalFiles, JournalReader

_NOW = datetime(2026, 1, 1, tzinfo=UTC)


def check(data: bytes) -> None:
    """Read it as a segment; write another event behind it, and read that."""
    numbers = [int(event.cursor) for event in with_gaps(decode_lines(data), 0)]
    assert numbers == sorted(set(numbers))
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        path = Path(name) / "journal"
        path.mkdir()
        (path / segment_name(1)).write_bytes(data)
        files = JournalFiles(path)
        files.open()
        number = files.next
        files.append(number, [make_document(number, _NOW, JournalKind.STARTED, NOBODY, {})])
        files.close()
        assert not (path / "open").exists()
        _check_read(path, number)


def _check_read(path: Path, number: int) -> None:
    reader = JournalReader([path], 0)
    seen: list[int] = []
    while events := reader.read():
        seen += [int(event.cursor) for event in events]
    assert seen == sorted(set(seen))
    assert seen[-1] == number, "what was written last is not read"
    assert os.listdir(path)


def seeds() -> Iterator[bytes]:
    """Segments with events, holes and a torn end."""
    events = [make_document(number, _NOW, JournalKind.STARTED, NOBODY, {}) for number in (1, 2, 5)]
    yield encode_lines(events)
    yield encode_lines(events)[:-7]
    yield encode_lines(events).replace(b'"5"', b'"-5"')
    yield encode_lines(events) + b'{"x":' + b"[" * 1500 + b"]" * 1500 + b"}\n"
