"""Run blocking calls in thread pools, beside the event loop; stop those that wait for a sandbox."""

import asyncio
import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from cove.tasks import settled

P = ParamSpec("P")
T = TypeVar("T")

_BLOCKING_THREADS = 8
# A child of this program that is just being started has copies of its pipes, for a moment.
_COPIES_SECONDS = 1.0


class _Threads:
    """The executors of one process; a forked child makes its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        # A jail dies with the thread that started it (prctl(2), PR_SET_PDEATHSIG): this one lasts.
        self.starter = ThreadPoolExecutor(1, thread_name_prefix="cove-jails")
        self.blocking = ThreadPoolExecutor(_BLOCKING_THREADS, thread_name_prefix="cove-blocking")
        self.closing = ThreadPoolExecutor(1, thread_name_prefix="cove-closing")
        # A disk that hangs holds up what is written down, and nothing else.
        self.journal = ThreadPoolExecutor(1, thread_name_prefix="cove-journal")


_threads: _Threads | None = None


def _current() -> _Threads:
    global _threads
    if _threads is None or _threads.pid != os.getpid():
        _threads = _Threads()
    return _threads


async def in_starter_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run in the one thread that lives as long as this process."""
    future = _current().starter.submit(function, *args, **kwargs)
    return await asyncio.wrap_future(future)


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking call beside the event loop."""
    return await start_in_thread(function, *args, **kwargs)


def start_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
    """Begin a blocking call beside the event loop. A thread that has begun goes on when the future is cancelled."""
    return asyncio.wrap_future(_current().blocking.submit(function, *args, **kwargs))


def start_in_journal_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
    """Begin a blocking call in the thread of journals: one after the other."""
    return asyncio.wrap_future(_current().journal.submit(function, *args, **kwargs))


async def finished(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run in a thread. A cancelled caller waits for its end all the same: it uses descriptors that are ours."""
    return await settled(start_in_thread(function, *args, **kwargs))


async def kept_or_undone(
    work: "asyncio.Future[T]", undo: Callable[[T], object], *, on_cancel: Callable[[], object] | None = None
) -> T:
    """Return the result of a thread. After a cancel, another one undoes what nobody takes, before that is raised."""
    try:
        return await settled(work, on_cancel=on_cancel)
    except asyncio.CancelledError:
        if not work.cancelled() and work.exception() is None:
            await finished(undo, work.result())
        raise


def start_transfer(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
    """Begin in a thread of its own: what waits for a sandbox must not keep others from their files."""
    with _one_thread() as executor:
        return asyncio.wrap_future(executor.submit(function, *args, **kwargs))


@contextmanager
def _one_thread() -> Iterator[ThreadPoolExecutor]:
    executor = ThreadPoolExecutor(1, thread_name_prefix="cove-transfer")
    try:
        yield executor
    finally:
        executor.shutdown(wait=False)


def is_program_ending() -> bool:
    """Return whether the interpreter has begun to end: executors, which nobody shuts down before, take no more work."""
    try:
        _current().closing.submit(int)
    except RuntimeError:
        return True
    return False


def close_in_thread(descriptors: Sequence[int]) -> "asyncio.Future[None]":
    """Close descriptors that came from inside: whoever is the last to close a file frees it, however large it is.

    They are closed in any case: whoever is cancelled while he waits takes back what comes after it, on the one thread.
    """
    executor = _current().closing
    closing = executor.submit(close_all, tuple(descriptors))
    return asyncio.wrap_future(executor.submit(closing.result))


def close_all(descriptors: Sequence[int]) -> None:
    """Close received descriptors that nobody wants."""
    for descriptor in descriptors:
        os.close(descriptor)


class Stopped(Exception):
    """The work in a thread was told to stop."""


class Stop:
    """Tells a thread to stop, also while it waits for a pipe. Opened by `with`, closed when the thread has ended."""

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_set = False
        self._until = 0.0

    def __enter__(self) -> "Stop":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._event)
        self._event = -1

    def set(self) -> None:
        """Stop the thread at once."""
        self._is_set = True
        self.finish()

    def finish(self) -> None:
        """Wait no more: what is ready is still taken, and so is the end of a pipe that comes within a moment."""
        if self._event >= 0:
            self._until = time.monotonic() + _COPIES_SECONDS
            os.eventfd_write(self._event, 1)

    def check(self) -> None:
        """Raise Stopped if it is time."""
        if self._is_set:
            raise Stopped

    def wait(self, descriptor: int, events: int) -> None:
        """Wait until the descriptor is ready; raises Stopped."""
        poll = select.poll()
        poll.register(descriptor, events)
        poll.register(self._event, select.POLLIN)
        ready = [number for number, _ in poll.poll()]
        self.check()
        if descriptor not in ready and not self._wait_for_end(descriptor, events):
            raise Stopped

    def _wait_for_end(self, descriptor: int, events: int) -> bool:
        poll = select.poll()
        poll.register(descriptor, events)
        is_ready = bool(poll.poll(max(0, self._until - time.monotonic()) * 1000))
        self.check()
        return is_ready


async def in_transfer(work: Callable[[Callable[[], None]], T], *, discard: Callable[[T], object] | None = None) -> T:
    """Run in a thread of its own what calls the function that it is given again and again: a cancel ends it there.

    `discard` gets a result that nobody will take.
    """
    is_cancelled = threading.Event()

    def check() -> None:
        if is_cancelled.is_set():
            raise Stopped

    return await settled(start_transfer(work, check), on_cancel=is_cancelled.set, discard=discard)
