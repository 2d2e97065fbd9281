"""A code context: an executor, whose turn it is, and what becomes of it when it does not stop."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import UTC, datetime

from cove import api
from cove.core.command import check_timeout
from cove.errors import ContextCrashed, ContextNotFound, CoveError, SandboxDestroyed, ValidationFailed
from cove.model import (
    CodeContextInfo,
    CodeError,
    CodeEvent,
    Display,
    Done,
    Execution,
    Failure,
    Outcome,
    Result,
    Text,
)
from cove.runtime.executor import Executor, ExecutorEnded

# How often, and for how long each time, interrupted code can come back before its executor is ended.
_INTERRUPTS, _INTERRUPT_SECONDS = 4, 0.5


class CodeContext(api.CodeContext):
    """Invariant: whoever holds `_turn` is the only one who runs code."""

    def __init__(
        self,
        id: str,
        language: str,
        executor: Executor,
        *,
        timeout: float | None,
        is_destroyed: Callable[[], bool],
        on_deleted: Callable[[], None],
    ) -> None:
        self.id = id
        self.language = language
        self.executor = executor
        self._timeout = timeout
        self._is_destroyed = is_destroyed
        self._on_deleted = on_deleted
        self._created_at = datetime.now(UTC)
        self._turn = asyncio.Lock()
        self._recovery: asyncio.Task[None] | None = None
        self._deleting: asyncio.Task[None] | None = None
        self._is_timed_out = False
        self._loop = asyncio.get_running_loop()

    def info(self) -> CodeContextInfo:
        """The facts."""
        is_running = self.executor.is_alive and self._deleting is None
        return CodeContextInfo(id=self.id, language=self.language, created_at=self._created_at, is_running=is_running)

    async def run(self, code: str, *, timeout: float | None = None) -> Execution:
        """See api.CodeContext."""
        return await collect(self.stream(code, timeout=timeout))

    async def stream(self, code: str, *, timeout: float | None = None) -> AsyncGenerator[CodeEvent, None]:
        """See api.CodeContext."""
        if not isinstance(code, str):
            raise ValidationFailed(f"code must be a string, not {type(code).__name__}")
        seconds = self._timeout if timeout is None else check_timeout(timeout)
        async with self._turn:
            await self._recover()
            self.executor.start(code)
            async with aclosing(self._watched(seconds)) as events:
                async for event in events:
                    yield event

    async def _watched(self, seconds: float | None) -> AsyncGenerator[CodeEvent, None]:
        """The events of the run under way; when the time is up, interrupt it and go on to its end."""
        deadline = None if seconds is None else self._loop.call_later(seconds, self._on_deadline)
        self._is_timed_out = False
        try:
            async for event in self.executor.events():
                if isinstance(event, Done) and self._is_timed_out:
                    yield Done(event.execution_count, Outcome.TIMED_OUT, event.truncated)
                else:
                    yield event
        except ExecutorEnded as error:
            if self._is_timed_out and self._deleting is None and not self._is_destroyed():
                yield Done(None, Outcome.TIMED_OUT)
                return
            raise self._crash(error) from None
        finally:
            if deadline is not None:
                deadline.cancel()
            if self.executor.is_running:
                self._recovery = self._loop.create_task(self._interrupt_and_settle())

    def _on_deadline(self) -> None:
        self._is_timed_out = True
        self._recovery = self._loop.create_task(self._interrupt_or_end())

    async def _interrupt_or_end(self) -> None:
        """Interrupt, more than once because a signal can come at a moment when nothing listens; then end it."""
        for _ in range(_INTERRUPTS):
            self.executor.interrupt()
            if await self.executor.wait_idle(_INTERRUPT_SECONDS):
                return
        await self.executor.process.sweep()

    async def _interrupt_and_settle(self) -> None:
        await self._interrupt_or_end()
        try:
            await self.executor.settle()
        except ExecutorEnded:
            return  # the next run finds out

    async def _recover(self) -> None:
        if self._recovery is not None:
            await asyncio.wait([self._recovery])
            self._recovery = None
        if self._deleting is not None:
            raise ContextNotFound(f"code context {self.id} was deleted", id=self.id)
        if not self.executor.is_alive:
            raise self._crash(ExecutorEnded(self.executor.process.ended.result()))

    def _crash(self, error: ExecutorEnded) -> CoveError:
        if self._is_destroyed():
            return SandboxDestroyed("the sandbox was destroyed while the code ran")
        end = error.end
        crashed = f"has crashed ({end.outcome}, exit code {end.exit_code})"
        what = "was deleted" if self._deleting is not None else crashed
        return ContextCrashed(
            f"code context {self.id} {what}: delete it and create another", exit_code=error.end.exit_code
        )

    async def interrupt(self) -> None:
        """See api.CodeContext."""
        self.executor.interrupt()

    async def delete(self) -> None:
        """See api.CodeContext."""
        if self._deleting is None:
            self._on_deleted()
            self._deleting = self._loop.create_task(self._delete())
        await asyncio.shield(self._deleting)

    async def _delete(self) -> None:
        await self.executor.process.sweep()
        if self._recovery is not None:
            await asyncio.wait([self._recovery])
        self.executor.close()


async def collect(events: AsyncGenerator[CodeEvent, None]) -> Execution:
    """The whole run as one result."""
    began = time.perf_counter()
    texts: dict[str, list[str]] = {"stdout": [], "stderr": []}
    results: list[Result] = []
    error: CodeError | None = None
    done: Done | None = None
    async with aclosing(events):
        async for event in events:
            match event:
                case Text():
                    texts[event.stream].append(event.text)
                case Display():
                    results.append(event.result)
                case Failure():
                    error = event.error
                case Done():
                    done = event
    assert done is not None
    return Execution(
        results=tuple(results),
        stdout="".join(texts["stdout"]),
        stderr="".join(texts["stderr"]),
        error=error,
        execution_count=done.execution_count,
        outcome=done.outcome,
        duration=time.perf_counter() - began,
        truncated=done.truncated or any(result.truncated for result in results),
    )
