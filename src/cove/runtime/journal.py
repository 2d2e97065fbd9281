"""The journal of one sandbox: take events without waiting, write them behind the caller's back, give them to readers.

Theory of operation. `record` appends to a queue in memory, and nothing else: no call ever waits for a disk. A moment
later the queue is written as one batch, in the one thread of journals. What is written is in the kernel's hands, and
survives this process. The queue is bounded: while the disk is slower than that, or full, events are dropped, and their
numbers are a hole (`core/journal`). Readers read the files alone, so that whoever reads sees the same, now and later.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Unpack

from cove.core.journal import MOST_TEXT, NOBODY, Actor, Allowance, command_text, make_document, parse_cursor
from cove.errors import CoveError, LimitExceeded
from cove.local.threads import in_thread, start_in_journal_thread
from cove.local.tracing import annotate, is_loaded
from cove.model import (
    ExecResult,
    JournalDetail,
    JournalEvent,
    JournalKind,
    NetworkEvent,
    NetworkEventKind,
    Outcome,
    ProcessExit,
)
from cove.model.journal import JournalFields
from cove.runtime.journal_files import JournalFiles, JournalReader
from cove.runtime.kept_journals import find_kept
from cove.runtime.notify import Notify
from cove.tasks import settled

# The time in which an event gets out of this process: what a kill of it can lose.
FLUSH_SECONDS = 0.1
MOST_QUEUED = 4096
MOST_QUEUED_BYTES = 16 << 20
# Of what one command printed, or of one piece of output.
MOST_OUTPUT = 64 << 10
_NETWORK_BURST, _NETWORK_PER_SECOND = 100, 5.0
_CANCELLED = "CANCELLED"

# Who the current task works for.
ACTOR: Final[ContextVar[Actor]] = ContextVar("actor", default=NOBODY)

# Of an event, what the span of the call has too: the text is there only where the journal keeps it.
_SPAN: Final = {"text": "process.command_line", "exit_code": "process.exit.code", "outcome": "cove.outcome"}

_Noted = tuple[int, float, JournalKind, Actor, JournalFields]


class Entry:
    """A call that is written down when it has ended; `fields` take what is known of its end."""

    __slots__ = ("_journal", "_kind", "began", "fields")

    def __init__(self, journal: "Journal", kind: JournalKind, fields: JournalFields) -> None:
        self._journal = journal
        self._kind = kind
        self.began = time.perf_counter()
        self.fields = fields

    def __enter__(self) -> "Entry":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        fields = self.fields
        fields["duration"] = time.perf_counter() - self.began
        self._journal.take(self._kind, fields)
        if is_loaded():
            annotate(
                {_SPAN[name]: each for name, each in fields.items() if name in _SPAN and isinstance(each, str | int)}
            )
        if error is not None:
            self._fail(error)
        elif "outcome" in fields and fields["outcome"] is Outcome.OUT_OF_MEMORY:
            self._journal.record(JournalKind.LIMIT, subject=fields.get("subject"), reason="memory")

    def _fail(self, error: BaseException) -> None:
        fields = self.fields
        fields["error"] = error.code if isinstance(error, CoveError) else _CANCELLED
        if isinstance(error, LimitExceeded):
            self._journal.record(JournalKind.LIMIT, subject=fields.get("subject"), reason=error.message[:200])

    def use(self, end: ProcessExit) -> None:
        """Take what a process has used."""
        fields = self.fields
        fields["user_seconds"], fields["system_seconds"] = end.user_seconds, end.system_seconds
        fields["max_rss_bytes"] = end.max_rss_bytes

    def end(self, result: ExecResult, output_bytes: int) -> None:
        """Take the end of a command, and with it what it printed where that is kept."""
        fields = self.fields
        fields["outcome"], fields["exit_code"], fields["output_bytes"] = result.outcome, result.exit_code, output_bytes
        if result.signal is not None:
            fields["signal"] = result.signal
        if self._journal.detail() is JournalDetail.OUTPUT:
            for stream, data in (("stdout", result.stdout_bytes), ("stderr", result.stderr_bytes)):
                self._journal.record_output(self._kind, fields.get("subject"), stream, data)


class Journal:
    """Made with the sandbox; used in its event loop. `detail` says what is kept."""

    def __init__(self, path: Path, detail: Callable[[], JournalDetail]) -> None:
        self._files = JournalFiles(path)
        self._path = path
        self.detail = detail
        self._loop = asyncio.get_running_loop()
        self._queue: list[_Noted] = []
        self._queued_bytes = 0
        self._sequence = 0
        self._base: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None
        self._changed = Notify()
        self._writes = 0
        self._network = Allowance(_NETWORK_BURST, _NETWORK_PER_SECOND)
        self.is_closed = False

    @classmethod
    def silent(cls) -> "Journal":
        """Make one that takes nothing, for what belongs to no sandbox."""
        journal = cls(Path(), lambda: JournalDetail.EVENTS)
        journal.is_closed = True
        return journal

    @property
    def keeps_output(self) -> bool:
        """Return whether what is printed is kept."""
        return self.detail() is JournalDetail.OUTPUT

    def record(self, kind: JournalKind, **fields: Unpack[JournalFields]) -> None:
        """Take an event; it is written soon."""
        self.take(kind, fields)

    def take(self, kind: JournalKind, fields: JournalFields) -> None:
        """Take an event with these fields, which nobody changes any more."""
        if self.is_closed:
            return
        sequence = self._sequence
        self._sequence += 1
        if len(self._queue) >= MOST_QUEUED or self._queued_bytes >= MOST_QUEUED_BYTES:
            return
        self._queue.append((sequence, time.time(), kind, ACTOR.get(), fields))
        if self._timer is None and self._writing is None:
            self._timer = self._loop.call_later(FLUSH_SECONDS, self._start_writing)

    def call(
        self, kind: JournalKind, command: str | Sequence[str] | None = None, **fields: Unpack[JournalFields]
    ) -> Entry:
        """Begin a call that is recorded when it has ended; of a checked command or code, what is kept of it."""
        if command is not None and self.detail() is not JournalDetail.EVENTS:
            fields["text"] = text = command_text(command)
            if len(text) > MOST_TEXT:
                fields["text"], fields["is_cut"] = text[:MOST_TEXT], True
        return Entry(self, kind, fields)

    def record_output(self, kind: JournalKind, subject: str | None, stream: str, data: bytes) -> None:
        """Take what something has printed, where that is kept: the beginning of it."""
        if data and not self.is_closed:
            kept = data[:MOST_OUTPUT]
            self._queued_bytes += len(kept)
            fields: JournalFields = {"subject": subject, "operation": kind.value, "stream": stream, "data": kept}
            if len(data) > len(kept):
                fields["is_cut"] = True
            self.record(JournalKind.OUTPUT, **fields)

    def record_network(self, events: Sequence[NetworkEvent]) -> None:
        """Take events of the network's log: as many as code inside may fill the journal with, and how many more.

        Paths stay out: they may have credentials in them.
        """
        for event in events:
            if event.kind is NetworkEventKind.GAP or not self._network.take(time.monotonic()):
                continue
            lost = self._network.take_refused()
            self.record(
                JournalKind.NETWORK,
                operation=event.kind.value,
                host=event.host,
                port=event.port,
                method=event.method,
                status=event.status,
                allowed=event.allowed,
                reason=event.reason or None,
                size=event.sent_bytes + event.received_bytes,
                lost=lost or None,
            )

    def _start_writing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._queue, self._queued_bytes = self._queue, [], 0
        self._writing = start_in_journal_thread(self._write, batch)
        self._writing.add_done_callback(self._on_written)

    def _on_written(self, writing: "asyncio.Future[None]") -> None:
        self._writing = None
        if not writing.cancelled():
            writing.exception()  # on a full disk: its events are a hole
        self._writes += 1
        self._changed.notify_all()
        if self._queue and self._timer is None:
            self._timer = self._loop.call_later(FLUSH_SECONDS, self._start_writing)

    def _write(self, batch: list[_Noted]) -> None:
        """Write a batch. The numbers go on where the process before this one ended. Blocks."""
        if self._base is None:
            self._files.open()
            self._base = self._files.next
        base = self._base
        self._files.append(
            base + batch[0][0],
            [
                make_document(base + sequence, datetime.fromtimestamp(at, UTC), kind, actor, fields)
                for sequence, at, kind, actor, fields in batch
            ],
        )

    async def flush(self) -> None:
        """Wait until everything that was recorded before this call is written."""
        wanted = self._sequence
        while self._writing is not None or self._queue:
            if self._writing is None:
                self._start_writing()
            assert self._writing is not None
            await asyncio.wait([self._writing])
            if not self._queue or self._queue[0][0] >= wanted:
                return

    async def read(self, since: str | None, follow: bool) -> AsyncGenerator[JournalEvent, None]:
        """Read from a cursor on; with `follow`, what comes later too, until the sandbox ends."""
        reader = JournalReader((self._path,), parse_cursor(since))
        await self.flush()
        while True:
            writes, is_closed = self._writes, self.is_closed
            async with aclosing(read_rest(reader)) as events:
                async for event in events:
                    yield event
            if not follow or is_closed:
                return
            if writes == self._writes and not self.is_closed:
                await self._changed.wait()

    async def close(self) -> None:
        """Write everything, wait until the disk has it, and take no more. Idempotent."""
        if not self.is_closed:
            await settled(self._close())

    async def _close(self) -> None:
        await self.flush()
        self.is_closed = True
        self._changed.notify_all()
        if self._base is not None:
            await start_in_journal_thread(self._files.close)


async def read_rest(reader: JournalReader) -> AsyncGenerator[JournalEvent, None]:
    """Give all events that a reader has not read."""
    while events := await in_thread(reader.read):
        for event in events:
            yield event


async def read_kept(home: Path, key: str, since: str | None) -> AsyncGenerator[JournalEvent, None]:
    """Give the events of a sandbox that was destroyed."""
    path = await in_thread(find_kept, home, key)
    async with aclosing(read_rest(JournalReader((path,), parse_cursor(since)))) as events:
        async for event in events:
            yield event
