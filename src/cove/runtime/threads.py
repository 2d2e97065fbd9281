"""The threads of this program that Cove uses: one that starts jails, some for blocking calls."""

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from cove.linux.packets import close_all

P = ParamSpec("P")
T = TypeVar("T")

_BLOCKING_THREADS = 8


class _Threads:
    """The executors of one process; a forked child makes its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        # A jail dies with the thread that started it (prctl(2), PR_SET_PDEATHSIG): this one lasts.
        self.starter = ThreadPoolExecutor(1, thread_name_prefix="cove-jails")
        self.blocking = ThreadPoolExecutor(_BLOCKING_THREADS, thread_name_prefix="cove-blocking")
        self.closing = ThreadPoolExecutor(1, thread_name_prefix="cove-closing")


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


def close_in_thread(descriptors: Sequence[int]) -> "asyncio.Future[None]":
    """Close descriptors that came from inside: whoever is the last to close a file frees it, however large it is."""
    return asyncio.wrap_future(_current().closing.submit(close_all, tuple(descriptors)))
