"""The output log of one process: a core OutputLog, its segment files, and the readers that wait for more."""

import asyncio
import errno
import os
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from cove.core.output_log import STREAMS, Batch, Missing, OutputLog, Record, Write, cut, decode_batch, merge
from cove.errors import ValidationFailed
from cove.local.threads import in_thread, start_in_thread
from cove.model import Exit, Gap, LogEvent, Output, ProcessExit
from cove.runtime.notify import Notify
from cove.tasks import Tasks, settled

P = ParamSpec("P")
T = TypeVar("T")

LIMIT_BYTES = 64 << 20
WINDOW_BYTES = 1 << 20
SEGMENT_BYTES = 8 << 20
# The output that an ended process keeps in memory; more goes to disk.
ENDED_WINDOW_BYTES = 16 << 10
_EVENT_BYTES = 512 << 10
# Stands for the reader that a lossless log waits for.
_FIRST_READER = object()
# writev(2): IOV_MAX
_MOST_CHUNKS = 1024


class _Segment:
    """An unlinked file, closed when nobody holds it any more. Whatever a thread does with it holds it too."""

    __slots__ = ("descriptor", "is_dropped", "uses")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.uses = 0
        self.is_dropped = False

    def __del__(self) -> None:
        os.close(self.descriptor)

    async def run(self, function: Callable[Concatenate[int, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function with the descriptor in a thread, to its end also when the caller is cancelled."""
        self.uses += 1
        work = start_in_thread(function, self.descriptor, *args, **kwargs)
        work.add_done_callback(self._is_done)
        return await settled(work)

    def _is_done(self, _: object) -> None:
        self.uses -= 1


class Log:
    """Takes output without waiting, writes the older part to disk behind the caller's back, wakes readers.

    `on_full` and `on_room` hold the process's output back while the disk, or a lossless reader, is slower than it;
    `on_grown` is called when more of it is on disk, `on_read` when a reader is done. A `lossless` log waits for its
    first lossless reader as if that stood at the beginning.
    """

    def __init__(
        self,
        directory: Path,
        background: Tasks,
        *,
        on_full: Callable[[], None],
        on_room: Callable[[], None],
        on_grown: Callable[[], None],
        on_read: Callable[[], None],
        lossless: bool = False,
    ) -> None:
        self._directory = directory
        self._background = background
        self._on_full = on_full
        self._on_room = on_room
        self._on_grown = on_grown
        self._on_read = on_read
        self._core = OutputLog(LIMIT_BYTES, WINDOW_BYTES, SEGMENT_BYTES)
        self._segments: dict[int, _Segment] = {}
        self._spare: _Segment | None = None
        self._change = Notify()
        self._is_flushing = False
        self._is_discarded = False
        self._end: ProcessExit | None = None
        self._slowest: dict[object, int] = {_FIRST_READER: 0} if lossless else {}
        self.readers = 0

    @property
    def disk_bytes(self) -> int:
        """The bytes of it that are on disk."""
        return self._core.disk_bytes

    @property
    def cursor(self) -> str:
        """The cursor of what comes next."""
        return str(self._core.end)

    @property
    def has_ended(self) -> bool:
        """Return whether nothing more will come."""
        return self._end is not None

    def append(self, stream: int, data: bytes) -> None:
        """Append output."""
        self._core.append(stream, data)
        if not self._has_room():
            self._on_full()
        self._flush()
        self._change.notify_all()

    def finish(self, end: ProcessExit) -> None:
        """The last byte is in: readers get the end after it, and most of it goes to disk."""
        self._end = end
        self._spare = None
        self._core.window_bytes = ENDED_WINDOW_BYTES
        self._flush()
        self._change.notify_all()

    def discard(self) -> "asyncio.Future[None] | None":
        """Free the disk; later readers see a gap, what is in memory, and the end. A future if a thread has to do it."""
        self._is_discarded = True
        self._on_full = self._on_room = self._on_grown = self._on_read = _do_nothing
        self._core.forget_disk()
        self._spare = None
        segments = list(self._segments.values())
        for segment in segments:
            segment.is_dropped = True
        self._segments.clear()
        return start_in_thread(segments.clear) if segments else None

    def drop_oldest(self) -> None:
        """Give back disk space: the oldest segment goes."""
        self._drop(self._core.drop_first_segment())

    async def read(self, since: str | None, follow: bool, lossless: bool = False) -> AsyncGenerator[LogEvent, None]:
        """Follow the log from a cursor: `api.Process.logs`."""
        cursor = 0 if since is None else self._parse(since)
        reader = object()
        with self.reading(), self._waited_for(reader):
            now = self._core.end
            while True:
                if lossless:
                    self._slowest[reader] = cursor
                    self.stop_waiting()
                found = self._core.read(cursor)
                if isinstance(found, Missing):
                    cursor = found.end
                    yield Gap(found.end - found.start, str(cursor))
                    continue
                records = cut(await self._load(found), cursor) if isinstance(found, Batch) else found
                for record in merge(records, _EVENT_BYTES):
                    cursor = record.end
                    yield Output(STREAMS[record.stream], record.data, str(cursor))
                if found and (follow or cursor < now):
                    continue
                if self._end is not None and cursor == self._core.end:
                    yield Exit(self._end.outcome, self._end.exit_code, self._end.signal, str(cursor))
                    return
                if not follow:
                    return
                await self._change.wait()

    @contextmanager
    def _waited_for(self, reader: object) -> Generator[None, None, None]:
        """While it is there, a lossless reader that falls behind holds the process back."""
        try:
            yield
        finally:
            if self._slowest.pop(reader, None) is not None:
                self._let_go()

    def stop_waiting(self) -> None:
        """The first reader has come, or what it would have read is kept in another way."""
        self._slowest.pop(_FIRST_READER, None)
        self._let_go()

    def _has_room(self) -> bool:
        is_behind = bool(self._slowest) and self._core.end - min(self._slowest.values()) > WINDOW_BYTES // 2
        return not self._core.is_full and not is_behind

    def _let_go(self) -> None:
        if self._has_room():
            self._on_room()

    @contextmanager
    def reading(self) -> Generator[None, None, None]:
        """Register a reader; `on_read` is told when it has left."""
        self.readers += 1
        try:
            yield
        finally:
            self.readers -= 1
            self._on_read()

    def _parse(self, cursor: str) -> int:
        if not isinstance(cursor, str) or not cursor.isdecimal() or len(cursor) > 20 or int(cursor) > self._core.end:
            raise ValidationFailed(f"{cursor!r} is not a cursor of this log: use one that an event carried")
        return int(cursor)

    def _flush(self) -> None:
        if not self._is_flushing and not self._is_discarded and (write := self._core.next_write()) is not None:
            self._is_flushing = True
            self._background.start(self._write_behind(write))

    async def _write_behind(self, write: Write | None) -> None:
        try:
            while write is not None:
                await self._write(write)
                write = None if self._is_discarded else self._core.next_write()
        finally:
            self._is_flushing = False

    async def _write(self, write: Write) -> None:
        try:
            is_kept = await self._store(write)
        except OSError:  # the host's disk is full: readers get a gap, the process goes on
            self._core.unwritable()
            for number in list(self._segments):
                self._drop(number)
        else:
            if is_kept:
                for number in self._core.written():
                    self._drop(number)
            else:
                self._core.cancel_write()
        self._let_go()
        self._on_grown()

    async def _store(self, write: Write) -> bool:
        """False when the segment was dropped meanwhile."""
        number = write.batch.segment
        segment = self._segments.get(number) or self._take_spare()
        if segment is None:
            segment = await in_thread(_make_segment, self._directory)
        if self._is_discarded:
            return False
        self._segments[number] = segment
        await segment.run(_write_at, write.batch.position, write.chunks)
        return not segment.is_dropped

    def _take_spare(self) -> _Segment | None:
        spare, self._spare = self._spare, None
        return spare

    async def _load(self, batch: Batch) -> list[Record]:
        data = await self._segments[batch.segment].run(os.pread, batch.size, batch.position)
        return decode_batch(data, batch.start)

    def _drop(self, number: int) -> None:
        """A file that nobody reads is kept to be written again, which costs half of what a new one does."""
        segment = self._segments.pop(number)
        if self._spare is None and self._end is None and not segment.uses:
            self._spare = segment
        else:
            segment.is_dropped = True


def _do_nothing() -> None:
    """Nobody is interested any more."""


def _make_segment(directory: Path) -> _Segment:
    return _Segment(_open_unlinked(directory))


def _open_unlinked(directory: Path) -> int:
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except IsADirectoryError:
        pass  # a filesystem without O_TMPFILE
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
    descriptor, path = tempfile.mkstemp(dir=directory)
    os.unlink(path)
    return descriptor


def _write_at(descriptor: int, position: int, chunks: list[bytes]) -> None:
    for start in range(0, len(chunks), _MOST_CHUNKS):
        part = chunks[start : start + _MOST_CHUNKS]
        size = sum(map(len, part))
        written = os.pwritev(descriptor, part, position)
        if written < size:
            _write_rest(descriptor, position + written, b"".join(part)[written:])
        position += size


def _write_rest(descriptor: int, position: int, data: bytes) -> None:
    while data:
        written = os.pwrite(descriptor, data, position)
        position += written
        data = data[written:]
