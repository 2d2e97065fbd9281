"""A portal: one event loop in a thread of its own, for programs that do not use asyncio."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from concurrent.futures import Future
from typing import Generic, TypeVar

import uvloop

from cove.errors import SandboxUnavailable
from cove.local.threads import is_program_ending, start_transfer
from cove.tasks import Tasks, owned, settled

T = TypeVar("T")
_END = object()


class Portal:
    """Runs coroutines in the loop's thread and waits for them in the caller's."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._closing = Tasks()
        self._loop = uvloop.new_event_loop()
        self._loop.set_exception_handler(_report)
        self._thread = threading.Thread(target=self._loop.run_forever, name="cove-loop", daemon=True)
        self._thread.start()

    def call(
        self,
        work: Callable[[], Coroutine[object, object, T]],
        undo: Callable[[T], Coroutine[object, object, None]] | None = None,
    ) -> T:
        """Run to the end. Ctrl-C cancels the work and is raised when the work has cleaned up.

        Where Ctrl-C comes too late to cancel, `undo` gets what nobody will hold.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("blocking Cove calls cannot be made from Cove's own event loop: use AsyncSandbox there")
        if os.getpid() != self._pid:
            raise SandboxUnavailable("a sandbox belongs to the process that made it: make another after a fork")
        call = _Call(self._loop, work)
        try:
            self._loop.call_soon_threadsafe(call.start)
            return call.result.result()
        except KeyboardInterrupt:
            self._loop.call_soon_threadsafe(call.cancel)
            if call.result.exception() is None and undo is not None:
                made = call.result.result()
                self.call(lambda: undo(made))
            raise

    def iterate(self, events: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """The same events, one at a time; leaving early frees everything at once."""
        try:
            while (event := self.call(lambda: _next(events))) is not _END:
                yield event  # type: ignore[misc]  # _END, which is no T, has just been excluded
        finally:
            self._let_go(events)

    def _let_go(self, events: AsyncGenerator[T, None]) -> None:
        """An iterator that nobody holds ends wherever it is collected: in any thread, or when the program has ended."""
        if sys.is_finalizing() or os.getpid() != self._pid:
            return
        if threading.current_thread() is self._thread:
            self._closing.start(_close(events))
        else:
            self.call(lambda: _close(events))

    async def run(self, work: Callable[[], T], undo: Callable[[], Coroutine[object, object, None]]) -> T:
        """Run the caller's own work in a thread of its own. A cancel waits for its end, which `undo` brings about."""
        return await settled(start_transfer(work), on_cancel=lambda: self._closing.start(undo()))

    async def feed(self, items: Iterable[T]) -> AsyncGenerator[T, None]:
        """The caller's own iterable for the loop; each step is made in a thread, because it may take its time."""
        iterator = iter(items)
        while (item := await asyncio.to_thread(next, iterator, _END)) is not _END:
            yield item  # type: ignore[misc]  # _END, which is no T, has just been excluded


class _Call(Generic[T]):
    """One coroutine on its way through the loop; `result` is set when it is completely over."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[object, object, T]]) -> None:
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self.result: Future[T] = Future()

    def start(self) -> None:
        if self.result.done():
            return
        self._task = owned(self._work())
        self._task.add_done_callback(self._done)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:
            self.result.set_exception(asyncio.CancelledError())

    def _done(self, task: "asyncio.Task[T]") -> None:
        if task.cancelled():
            self.result.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self.result.set_exception(error)
        else:
            self.result.set_result(task.result())


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Log what nobody waits for, unless the program ends: that stops executors and loop wherever they stand."""
    if not is_program_ending():
        loop.default_exception_handler(context)


async def _next(events: AsyncGenerator[T, None]) -> T | object:
    return await anext(events, _END)


async def _close(events: AsyncGenerator[T, None]) -> None:
    await events.aclose()


_portal: Portal | None = None
_lock = threading.Lock()


def get_portal() -> Portal:
    """The portal of this process; a forked child gets its own."""
    global _portal
    with _lock:
        if _portal is None:
            _portal = Portal()
        return _portal


def _after_fork() -> None:
    global _portal, _lock
    _portal, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
