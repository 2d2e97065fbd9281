"""A bounded log of two byte streams, addressed by cursor: what is kept, where, and what a reader gets next.

Theory of operation. A cursor is the number of payload bytes, of both streams together, that came
before. New records stay in memory. When memory holds more than its window, the oldest records leave
it as one Batch, which the caller writes to the end of a segment file and then reports as written;
until then they stay readable in memory. Disk is therefore a queue of batches in a queue of segments.
When more than `limit` bytes are on disk, the oldest segment is dropped, and readers that still wanted
it get a Missing. This module never touches a file: it says what to write and what to drop.

Invariants: batches and memory are adjacent, without overlap: `batches[-1].end == memory[0].start`; a reader
that follows the answers of `read` sees every cursor exactly once or in exactly one Missing.
"""

import bisect
import struct
from collections import deque
from dataclasses import dataclass, field

from cove.model.event import StreamName

STREAMS: tuple[StreamName, StreamName] = ("stdout", "stderr")
STDOUT, STDERR = 0, 1

_HEADER = struct.Struct("<BI")
# The cost of a record beside its bytes: many tiny records fill the window too.
_RECORD_OVERHEAD = 160
# How many windows memory may hold while a write is under way: the next write is then a large one.
FULL_WINDOWS = 2


@dataclass(frozen=True, slots=True)
class Record:
    """Bytes of one stream that start at a cursor."""

    start: int
    stream: int
    data: bytes

    @property
    def end(self) -> int:
        """The cursor right after these bytes."""
        return self.start + len(self.data)


@dataclass(frozen=True, slots=True)
class Batch:
    """Records from cursor `start` to `end`, encoded at `position` of a segment."""

    segment: int
    position: int
    size: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Write:
    """Append these encoded records to the segment, then call `written`."""

    batch: Batch
    chunks: list[bytes]


@dataclass(frozen=True, slots=True)
class Missing:
    """The bytes from the reader's cursor up to `end` are gone."""

    start: int
    end: int


@dataclass(slots=True)
class OutputLog:
    """The state of one process's log."""

    limit_bytes: int
    window_bytes: int
    segment_bytes: int
    end: int = 0
    disk_bytes: int = 0
    _memory: list[Record] = field(default_factory=list)
    _memory_cost: int = 0
    _batches: deque[Batch] = field(default_factory=deque)
    _writing: Batch | None = None
    _segment: int = 0
    _segment_size: int = 0

    @property
    def start(self) -> int:
        """The oldest retained cursor."""
        if self._batches:
            return self._batches[0].start
        return self._memory[0].start if self._memory else self.end

    @property
    def is_full(self) -> bool:
        """Memory holds several windows: take no more bytes before a write is done."""
        return self._memory_cost > FULL_WINDOWS * self.window_bytes

    def append(self, stream: int, data: bytes) -> None:
        """Add bytes of one stream."""
        if data:
            self._memory.append(Record(self.end, stream, data))
            self._memory_cost += len(data) + _RECORD_OVERHEAD
            self.end += len(data)

    def next_write(self) -> Write | None:
        """Return the next write that has to leave memory; at most one is under way at a time."""
        if self._writing is not None or self._memory_cost <= self.window_bytes:
            return None
        chunks: list[bytes] = []
        size, kept = 0, self._memory_cost
        records = iter(self._memory)
        while kept > self.window_bytes // 2:
            record = next(records)
            chunks += (_HEADER.pack(record.stream, len(record.data)), record.data)
            size += _HEADER.size + len(record.data)
            kept -= len(record.data) + _RECORD_OVERHEAD
        if self._segment_size >= self.segment_bytes:
            self._segment += 1
            self._segment_size = 0
        end = self._memory[len(chunks) // 2 - 1].end
        self._writing = Batch(self._segment, self._segment_size, size, self._memory[0].start, end)
        return Write(self._writing, chunks)

    def written(self) -> list[int]:
        """Complete the write under way: it is on disk. Returns the segments to drop."""
        batch = self._writing
        assert batch is not None
        self._writing = None
        self._segment_size += batch.size
        self.disk_bytes += batch.size
        self._batches.append(batch)
        count = bisect.bisect_left(self._memory, batch.end, key=lambda record: record.start)
        self._memory_cost -= batch.end - batch.start + count * _RECORD_OVERHEAD
        del self._memory[:count]
        dropped = []
        while self.disk_bytes - self._first_segment_bytes() >= self.limit_bytes:
            dropped.append(self.drop_first_segment())
        return dropped

    def cancel_write(self) -> None:
        """Undo the write under way: its records stay in memory, and are written again if need be."""
        self._writing = None

    def unwritable(self) -> None:
        """Fail the write under way (disk full): its records are lost, and so are all before them."""
        batch = self._writing
        assert batch is not None
        self._writing = None
        count = bisect.bisect_left(self._memory, batch.end, key=lambda record: record.start)
        self._memory_cost -= batch.end - batch.start + count * _RECORD_OVERHEAD
        del self._memory[:count]
        self.forget_disk()

    def forget_disk(self) -> None:
        """Forget all segments: only memory is left."""
        self._batches.clear()
        self.disk_bytes = 0
        self._segment += 1
        self._segment_size = 0

    def drop_first_segment(self) -> int:
        """Forget the oldest segment and return its number."""
        segment = self._batches[0].segment
        while self._batches and self._batches[0].segment == segment:
            self.disk_bytes -= self._batches.popleft().size
        if segment == self._segment:
            self._segment += 1
            self._segment_size = 0
        return segment

    def read(self, cursor: int) -> list[Record] | Batch | Missing:
        """Return what is at this cursor: records in memory (none at the end), a batch to decode, or a hole."""
        if cursor < self.start:
            return Missing(cursor, self.start)
        if self._batches and cursor < self._batches[-1].end:
            at = bisect.bisect_right(self._batches, cursor, key=lambda batch: batch.start) - 1
            return self._batches[at]
        at = bisect.bisect_right(self._memory, cursor, key=lambda record: record.start) - 1
        return cut(self._memory[max(at, 0) :], cursor)

    def _first_segment_bytes(self) -> int:
        first = self._batches[0].segment
        total = 0
        for batch in self._batches:
            if batch.segment != first:
                break
            total += batch.size
        return total


def decode_batch(data: bytes, start: int) -> list[Record]:
    """Return the records of an encoded batch whose first byte has cursor `start`."""
    records = []
    at = 0
    while at < len(data):
        stream, length = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        records.append(Record(start, stream, data[at : at + length]))
        at += length
        start += length
    return records


def cut(records: list[Record], cursor: int) -> list[Record]:
    """Return the records from the cursor on; the first may be a part of one."""
    result = []
    for record in records:
        if record.start >= cursor:
            result.append(record)
        elif record.end > cursor:
            result.append(Record(cursor, record.stream, record.data[cursor - record.start :]))
    return result


def merge(records: list[Record], most: int) -> list[Record]:
    """Join neighbours of one stream into records of up to `most` bytes."""
    merged: list[Record] = []
    run: list[Record] = []
    size = 0
    for record in records:
        if run and (record.stream != run[0].stream or size + len(record.data) > most):
            merged.append(_join(run))
            run, size = [], 0
        run.append(record)
        size += len(record.data)
    if run:
        merged.append(_join(run))
    return merged


def _join(run: list[Record]) -> Record:
    if len(run) == 1:
        return run[0]
    return Record(run[0].start, run[0].stream, b"".join([record.data for record in run]))
