"""Measure how much CPU time single callbacks of an event loop take."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

MOST_SECONDS = 0.010


@dataclass
class LongestCallback:
    """The longest callback so far, in CPU seconds of the loop's thread, and what it was."""

    seconds: float = 0.0
    what: str = ""


@contextmanager
def measured_callbacks() -> Iterator[LongestCallback]:
    """Measure every callback of every asyncio loop meanwhile; tasks step in callbacks too."""
    longest = LongestCallback()
    run = asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        started = time.thread_time()
        try:
            run(handle)
        finally:
            taken = time.thread_time() - started
            if taken > longest.seconds:
                longest.seconds, longest.what = taken, repr(handle)

    with patch.object(asyncio.Handle, "_run", measured):
        yield longest


@contextmanager
def bounded_callbacks(most: float = MOST_SECONDS) -> Iterator[None]:
    """Fail when one callback takes more CPU time than that: it would have kept every other sandbox waiting."""
    with measured_callbacks() as longest:
        yield
    assert longest.seconds <= most, f"{longest.what} took {longest.seconds * 1000:.1f} ms of the loop's thread"
