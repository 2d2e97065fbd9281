"""A reader of the log sees every byte after its cursor exactly once, or is told exactly how many are gone."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cove.core.output_log import (
    FULL_WINDOWS,
    STDERR,
    STDOUT,
    Batch,
    Missing,
    OutputLog,
    Record,
    Write,
    cut,
    decode_batch,
    merge,
)

pytestmark = pytest.mark.pure

LIMIT, WINDOW, SEGMENT = 2000, 1000, 700
OVERHEAD = 160
LARGEST = 300


@dataclass
class Disk:
    """Segment files that behave: append, read back, drop."""

    segments: dict[int, bytearray] = field(default_factory=dict)

    def write(self, write: Write) -> None:
        content = self.segments.setdefault(write.batch.segment, bytearray())
        assert len(content) == write.batch.position
        content += b"".join(write.chunks)
        assert len(content) - write.batch.position == write.batch.size

    def read(self, batch: Batch) -> list[Record]:
        content = bytes(self.segments[batch.segment][batch.position : batch.position + batch.size])
        assert len(content) == batch.size
        return decode_batch(content, batch.start)


@dataclass
class Reader:
    """Follows the answers of `read`; what it saw is (cursor, stream, byte), holes are counted."""

    cursor: int
    seen: list[tuple[int, int, int]] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)

    def step(self, log: OutputLog, disk: Disk) -> bool:
        answer = log.read(self.cursor)
        if isinstance(answer, Missing):
            assert answer.start == self.cursor < answer.end
            self.missing.append(answer)
            self.cursor = answer.end
            return True
        records = answer if isinstance(answer, list) else cut(disk.read(answer), self.cursor)
        for record in records:
            assert record.start == self.cursor
            self.seen += [(record.start + at, record.stream, byte) for at, byte in enumerate(record.data)]
            self.cursor = record.end
        return bool(records)


class LogMachine(RuleBasedStateMachine):
    """Appends, writes that complete or fail at any time, and readers that start and read at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.log = OutputLog(limit_bytes=LIMIT, window_bytes=WINDOW, segment_bytes=SEGMENT)
        self.disk = Disk()
        self.truth: list[tuple[int, int]] = []
        self.writing: Write | None = None
        self.readers: list[tuple[int, Reader]] = []

    @rule(stream=st.sampled_from([STDOUT, STDERR]), data=st.binary(max_size=LARGEST), times=st.integers(1, 4))
    def append(self, stream: int, data: bytes, times: int) -> None:
        for _ in range(times):
            if not self.log.is_full:
                self.log.append(stream, data)
                self.truth += [(stream, byte) for byte in data]

    @rule()
    @precondition(lambda self: self.writing is None)
    def begin_write(self) -> None:
        self.writing = self.log.next_write()

    @rule()
    @precondition(lambda self: self.writing is not None)
    def finish_write(self) -> None:
        assert self.writing is not None
        assert self.log.next_write() is None
        self.disk.write(self.writing)
        self.writing = None
        for segment in self.log.written():
            del self.disk.segments[segment]

    @rule()
    @precondition(lambda self: self.writing is not None)
    def fail_write(self) -> None:
        self.writing = None
        self.log.unwritable()
        self.disk.segments.clear()

    @rule()
    @precondition(lambda self: self.writing is not None)
    def take_back_write(self) -> None:
        self.writing = None
        self.log.cancel_write()

    @rule(share=st.floats(0, 1))
    def add_reader(self, share: float) -> None:
        start = int(self.log.end * share)
        self.readers.append((start, Reader(start)))

    @rule(choice=st.randoms(use_true_random=False), steps=st.integers(1, 5))
    @precondition(lambda self: self.readers)
    def read_some(self, choice: object, steps: int) -> None:
        _, reader = choice.choice(self.readers)  # type: ignore[attr-defined]
        for _ in range(steps):
            reader.step(self.log, self.disk)

    @invariant()
    def the_log_ends_where_the_stream_ends(self) -> None:
        assert self.log.end == len(self.truth)
        assert self.log.start <= self.log.end

    @invariant()
    def memory_and_disk_stay_bounded(self) -> None:
        assert self.log._memory_cost <= FULL_WINDOWS * WINDOW + LARGEST + OVERHEAD
        assert self.log._memory_cost == sum(len(record.data) + OVERHEAD for record in self.log._memory)
        stored = sum(map(len, self.disk.segments.values()))
        assert stored == self.log.disk_bytes <= LIMIT + SEGMENT + 3 * WINDOW

    def teardown(self) -> None:
        for start, reader in [*self.readers, (0, Reader(0)), (self.log.end, Reader(self.log.end))]:
            while reader.step(self.log, self.disk):
                pass
            assert reader.cursor == self.log.end
            gone = {at for hole in reader.missing for at in range(hole.start, hole.end)}
            assert sum(hole.end - hole.start for hole in reader.missing) == len(gone)
            expected = [(at, *self.truth[at]) for at in range(start, self.log.end) if at not in gone]
            assert reader.seen == expected


LogMachine.TestCase.settings = settings(stateful_step_count=60)
TestEveryReaderSeesEveryByteOnceOrIsToldWhatIsGone = LogMachine.TestCase


def filled(count: int = 40, size: int = 100) -> tuple[OutputLog, Disk]:
    log, disk = OutputLog(limit_bytes=LIMIT, window_bytes=WINDOW, segment_bytes=SEGMENT), Disk()
    for at in range(count):
        log.append(at % 2, bytes([at]) * size)
        while (write := log.next_write()) is not None:
            disk.write(write)
            for segment in log.written():
                del disk.segments[segment]
    return log, disk


def test_an_empty_append_changes_nothing() -> None:
    log = OutputLog(limit_bytes=LIMIT, window_bytes=WINDOW, segment_bytes=SEGMENT)
    log.append(STDOUT, b"")
    assert (log.start, log.end, log.read(0)) == (0, 0, [])


def test_a_reader_that_comes_too_late_is_told_exactly_what_is_gone() -> None:
    log, disk = filled()
    assert log.start > 0
    assert log.read(0) == Missing(0, log.start)
    assert log.read(log.start - 1) == Missing(log.start - 1, log.start)
    reader = Reader(log.start)
    while reader.step(log, disk):
        pass
    assert len(reader.seen) == log.end - log.start


def test_a_failed_write_loses_its_records_and_those_before_and_keeps_those_after() -> None:
    log, _ = filled()
    for _ in range(20):
        log.append(STDOUT, b"x" * 100)
    write = log.next_write()
    assert write is not None
    log.unwritable()
    assert log.start == write.batch.end
    assert log.disk_bytes == 0


def test_a_write_that_did_not_count_is_made_again() -> None:
    log, _ = filled()
    for _ in range(20):
        log.append(STDOUT, b"x" * 100)
    start, write = log.start, log.next_write()
    assert write is not None
    log.cancel_write()
    assert (log.start, log.next_write()) == (start, write)


def test_many_tiny_records_fill_the_window_too() -> None:
    log = OutputLog(limit_bytes=LIMIT, window_bytes=WINDOW, segment_bytes=SEGMENT)
    for _ in range(30):
        log.append(STDOUT, b"x")
    assert log.is_full
    assert log.next_write() is not None


def test_the_segment_being_filled_can_be_dropped_too() -> None:
    log, disk = filled(count=8)
    segment = log.drop_first_segment()
    assert segment == 0
    log.append(STDOUT, b"y" * 1000)
    write = log.next_write()
    assert write is not None
    assert (write.batch.segment, write.batch.position) == (1, 0)
    assert 1 not in disk.segments


def test_merge_joins_neighbours_of_one_stream_up_to_a_size() -> None:
    records = [Record(0, 0, b"ab"), Record(2, 0, b"c"), Record(3, 0, b"def"), Record(6, 1, b"g"), Record(7, 0, b"h")]
    assert merge(records, 3) == [Record(0, 0, b"abc"), Record(3, 0, b"def"), Record(6, 1, b"g"), Record(7, 0, b"h")]
    assert merge([], 3) == []


def test_cut_gives_the_part_of_a_record_after_the_cursor() -> None:
    records = [Record(0, 0, b"abc"), Record(3, 1, b"de")]
    assert cut(records, 0) == records
    assert cut(records, 1) == [Record(1, 0, b"bc"), Record(3, 1, b"de")]
    assert cut(records, 3) == [Record(3, 1, b"de")]
    assert cut(records, 5) == []
