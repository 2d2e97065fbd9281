"""A code context: its executor, a queue of runs, interruption and restart."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime

from cove import api
from cove.core.capture import Capture
from cove.core.command import check_timeout
from cove.core.output_log import STREAMS
from cove.errors import ContextCrashed, ContextNotFound, CoveError, SandboxDestroyed, ValidationFailed
from cove.local.threads import in_thread
from cove.model import (
    CodeContextInfo,
    CodeError,
    CodeEvent,
    CodeInterpreter,
    Display,
    Done,
    Execution,
    Failure,
    JournalKind,
    Outcome,
    Result,
    Text,
)
from cove.runtime.executor import Executor, ExecutorEnded, Weighed
from cove.runtime.executor_fork import end_forked, fork_executors
from cove.runtime.gate import Gate, gated
from cove.runtime.journal import Entry
from cove.runtime.spawner import Spawner
from cove.runtime.tracing import traced
from cove.runtime.turn import Turn
from cove.tasks import Once, owned, settled, shared

# How often, and for how long each time, interrupted code can come back before its executor is ended.
_INTERRUPTS, _INTERRUPT_SECONDS = 4, 0.5
# Bounds of one Execution: of each stream, and of all results together.
_MOST_TEXT_BYTES, _MOST_RESULTS_BYTES, _MOST_RESULTS = 16 << 20, 128 << 20, 10_000
# More text than this is put together beside the event loop.
_SMALL_TEXT_BYTES = 65536


OnFork = Callable[["CodeContext", int, bool], Awaitable[list["CodeContext"]]]


@traced("code", api.CodeContext)
@gated(starts=False)
class CodeContext(api.CodeContext):
    """Invariant: whoever holds `_turn` is the only one who runs code."""

    def __init__(
        self,
        id: str,
        language: str,
        executor: Executor,
        *,
        timeout: float | None,
        spawner: Spawner,
        on_fork: OnFork,
        on_deleted: Callable[[], None],
        interpreter: CodeInterpreter = CodeInterpreter.COVE,
    ) -> None:
        self.id = id
        self._interpreter = interpreter
        self.language = language
        self.executor = executor
        self.timeout = timeout
        self._on_fork = on_fork
        self._spawner = spawner
        self._on_deleted = on_deleted
        self._created_at = datetime.now(UTC)
        self._turn = Turn()
        self._recovery: asyncio.Task[None] | None = None
        self._deleting: Once[None] = Once()
        self._is_timed_out = False

    @property
    def gate(self) -> Gate:
        """The gate of its sandbox."""
        return self._spawner.link.gate

    def info(self) -> CodeContextInfo:
        """Describe the context."""
        is_running = self.executor.is_alive and not self._deleting.is_started
        return CodeContextInfo(
            id=self.id,
            language=self.language,
            created_at=self._created_at,
            is_running=is_running,
            interpreter=self._interpreter,
        )

    async def hold(self) -> int | None:
        """Take the turn of an executor that waits, and return its pid inside; None while it runs. See `let_go`."""
        if not self._turn.is_free or self._recovery is not None or not self.executor.is_alive:
            return None
        await self._turn.acquire()  # it is free: this does not wait
        return self.executor.process.pid

    def let_go(self, directory: str | None) -> None:
        """Give the turn back; before its next run the executor enters that directory."""
        if directory is not None and directory.isprintable():
            self.executor.directory = directory
        self._turn.release()

    async def run(self, code: str, *, timeout: float | None = None) -> Execution:
        return await collect(self.weighed_events(code, timeout=timeout))

    async def stream(self, code: str, *, timeout: float | None = None) -> AsyncGenerator[CodeEvent, None]:
        async with aclosing(self.weighed_events(code, timeout=timeout)) as events:
            async for event, _ in events:
                yield event

    async def weighed_events(self, code: str, *, timeout: float | None = None) -> AsyncGenerator[Weighed, None]:
        """Stream events of a run, each with its weight (backpressure)."""
        check_code(code)
        seconds = self.timeout if timeout is None else check_timeout(timeout)
        journal = self._spawner.link.journal
        with journal.call(JournalKind.CODE, code, subject=self.id, language=self.language, output_bytes=0) as entry:
            async with self._turn:
                await self._recover()
                self.executor.start(code)
                async with aclosing(self._watched(seconds)) as events:
                    async for event in events:
                        self._note(entry, event[0])
                        yield event

    def _note(self, entry: Entry, event: CodeEvent) -> None:
        """Take what the journal says of a run."""
        if isinstance(event, Text):
            data, journal = event.text.encode("utf-8", "replace"), self._spawner.link.journal
            entry.fields["output_bytes"] = (entry.fields["output_bytes"] or 0) + len(data)
            if journal.keeps_output:
                journal.record_output(JournalKind.CODE, self.id, event.stream, data)
        elif isinstance(event, Failure):
            entry.fields["reason"] = event.error.name[:200]
        elif isinstance(event, Done):
            entry.fields["outcome"] = event.outcome

    async def _watched(self, seconds: float | None) -> AsyncGenerator[Weighed, None]:
        """The events of the run under way; when the time is up, interrupt it and go on to its end."""
        deadline = None if seconds is None else self._spawner.clock.call_later(seconds, self._on_deadline)
        self._is_timed_out = is_over = False
        try:
            async for event, size in self.executor.events():
                if isinstance(event, Done):
                    is_over = True
                    outcome = Outcome.TIMED_OUT if self._is_timed_out else event.outcome
                    yield Done(event.execution_count, outcome, event.truncated), size
                else:
                    yield event, size
        except ExecutorEnded as error:
            is_over = True
            if self._is_timed_out and not self._deleting.is_started and not self._spawner.closed:
                yield Done(None, Outcome.TIMED_OUT), 0
                return
            raise self._crash(error) from None
        finally:
            if deadline is not None:
                deadline.cancel()
            if not is_over:
                self._recovery = owned(self._leave(self._recovery))

    def _on_deadline(self) -> None:
        self._is_timed_out = True
        self._recovery = owned(self._interrupt_or_end())

    async def _interrupt_or_end(self) -> None:
        """Interrupt, more than once because a signal can come at a moment when nothing listens; then end it.

        What still runs after a while may wait for a process that it has started: that is interrupted too.
        """
        for attempt in range(_INTERRUPTS):
            self.executor.interrupt(b"main" if attempt < _INTERRUPTS // 2 else b"tree")
            if await self.executor.wait_idle(_INTERRUPT_SECONDS):
                return
        await self.executor.process.sweep()

    async def _leave(self, before: "asyncio.Task[None] | None") -> None:
        """Nobody wants the rest of the run under way: end it, and forget what came of it."""
        if before is not None:
            await asyncio.wait([before])
        await self._interrupt_or_end()
        try:
            await self.executor.settle()
        except ExecutorEnded:
            return  # the next run finds out

    async def _recover(self) -> None:
        await self.settled()
        await self.executor.interrupted()
        if self._deleting.is_started:
            raise ContextNotFound(f"code context {self.id} was deleted", id=self.id)
        if not self.executor.is_alive:
            raise self._crash(ExecutorEnded(self.executor.process.ended.result()))

    async def settled(self) -> None:
        """Wait until nothing is left to do for a run that timed out or was left."""
        while self._recovery is not None:
            recovery = self._recovery
            await asyncio.wait([recovery])
            if self._recovery is recovery:
                self._recovery = None

    def _crash(self, error: ExecutorEnded) -> CoveError:
        end = error.end
        what = f"has crashed ({end.outcome}, exit code {end.exit_code})"
        if self._deleting.is_started:
            what = "was deleted"
        elif self._spawner.closed:
            gone = self._spawner.link.explain(True)
            if isinstance(gone, SandboxDestroyed):
                return gone
            what = f"has ended ({gone.message})"
        return ContextCrashed(
            f"code context {self.id} {what}: delete it and create another", exit_code=error.end.exit_code
        )

    async def fork(self, count: int = 1, *, force: bool = False) -> list[api.CodeContext]:
        return [*await self._on_fork(self, count, force)]

    async def fork_executor(self, count: int, on_packages: Callable[[], None], *, force: bool) -> list[Executor]:
        """Fork the executor when it is free; a cancelled caller's copies are ended before the cancel is raised."""
        async with self._turn:
            await self._recover()
            forking = owned(fork_executors(self.executor, count, on_packages, force=force))
            try:
                return await shared(forking)
            except asyncio.CancelledError:
                self._recovery = owned(end_forked(forking))
                await settled(self._recovery)
                raise
            except ExecutorEnded as error:
                raise self._crash(error) from None

    async def interrupt(self) -> None:
        self.executor.interrupt()
        await self.executor.interrupted()

    async def delete(self) -> None:
        if self._deleting.start(self._delete):
            self._on_deleted()
        await self._deleting.result()

    async def _delete(self) -> None:
        await self.executor.process.sweep()
        await self.settled()
        self.executor.close()


def check_code(code: str) -> str:
    """Return the code, or raise ValidationFailed."""
    if not isinstance(code, str):
        raise ValidationFailed(f"code must be a string, not {type(code).__name__}")
    try:
        code.encode()
    except UnicodeEncodeError as error:
        raise ValidationFailed(f"code must be Unicode text: {error}") from None
    return code


async def collect(events: AsyncGenerator[Weighed, None]) -> Execution:
    """The whole run as one result, in bounded memory: the beginning and the end of what was printed."""
    began = time.perf_counter()
    texts = {name: Capture(_MOST_TEXT_BYTES) for name in STREAMS}
    results: list[Result] = []
    room = _MOST_RESULTS_BYTES
    is_cut = False
    error: CodeError | None = None
    done: Done | None = None
    async with aclosing(events):
        async for event, size in events:
            match event:
                case Text():
                    texts[event.stream].append(event.text.encode("utf-8", "replace"))
                case Display() if size <= room and len(results) < _MOST_RESULTS:
                    room -= size
                    results.append(event.result)
                case Display():
                    is_cut = True
                case Failure():
                    error = event.error
                case Done():
                    done = event
    assert done is not None
    is_cut = is_cut or any(text.truncated for text in texts.values()) or any(result.truncated for result in results)
    return Execution(
        results=tuple(results),
        stdout=await _text_of(texts["stdout"]),
        stderr=await _text_of(texts["stderr"]),
        error=error,
        execution_count=done.execution_count,
        outcome=done.outcome,
        duration=time.perf_counter() - began,
        truncated=done.truncated or is_cut,
    )


async def _text_of(capture: Capture) -> str:
    if capture.total <= _SMALL_TEXT_BYTES:
        return capture.getvalue().decode("utf-8", "replace")
    return await in_thread(lambda: capture.getvalue().decode("utf-8", "replace"))
