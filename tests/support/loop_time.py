"""Measure how much CPU time single callbacks of an event loop take.

The kernel's figure has more in it than the callback's own steps: a collection of the whole test process's garbage is
done by whichever callback comes next, a hypervisor's pause counts as work, and a slower machine takes longer for the
same steps. So the collector's time is left out, the bound grows with what a fixed piece of work takes at that moment,
and what took too long is done again: noise does not repeat itself, a flaw does.
"""

import asyncio
import gc
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

MOST_SECONDS = 0.010
TRIES = 3
# What the fixed piece of work takes where the bound is as given; a faster machine gets no smaller one.
WORK_SECONDS = 0.0015
MOST_SLOWNESS = 4.0


@dataclass
class LongestCallback:
    """The longest callback so far, in CPU seconds of the loop's thread, and what it was."""

    seconds: float = 0.0
    what: object = None


def bounded_callbacks(most: float = MOST_SECONDS) -> Iterator[AbstractContextManager[None]]:
    """Fail when a callback takes more CPU time than that: it would have kept every other sandbox waiting.

    `for attempt in bounded_callbacks(): with attempt: …` does what is measured once, or again if it took too long.
    """
    for _ in range(TRIES):
        longest = LongestCallback()
        yield _measure(longest)
        if longest.seconds <= most or longest.seconds <= most * slowness():
            return
    raise AssertionError(f"{longest.what} took {longest.seconds * 1000:.1f} ms of the loop's thread, as in each try")


@contextmanager
def _measure(longest: LongestCallback) -> Iterator[None]:
    """Measure every callback of every asyncio loop meanwhile; tasks step in callbacks too."""
    run = asyncio.Handle._run

    with _collector_time() as collected:

        def measured(handle: asyncio.Handle) -> None:
            what = handle._callback, handle._args  # type: ignore[attr-defined]  # a handle forgets them when cancelled
            started = time.thread_time() - collected()
            try:
                run(handle)
            finally:
                taken = time.thread_time() - collected() - started
                if taken > longest.seconds:
                    longest.seconds, longest.what = taken, what

        with patch.object(asyncio.Handle, "_run", measured):
            yield


@contextmanager
def _collector_time() -> Iterator[Callable[[], float]]:
    """Give what the collector of garbage has taken in this thread meanwhile, in CPU seconds."""
    taken: dict[int, float] = defaultdict(float)

    def note(phase: str, _: dict[str, int]) -> None:
        taken[threading.get_ident()] += time.thread_time() * (1 if phase == "stop" else -1)

    gc.callbacks.append(note)
    try:
        yield lambda: taken[threading.get_ident()]
    finally:
        gc.callbacks.remove(note)


def slowness() -> float:
    """How much longer this machine takes at this moment than the one that bounds are meant for."""
    return min(max(1.0, min(_work_time() for _ in range(5)) / WORK_SECONDS), MOST_SLOWNESS)


def _work_time() -> float:
    """The CPU seconds of what callbacks do: steps of the interpreter, and bytes that are copied, cut and decoded."""
    started = time.thread_time()
    data = bytes(range(128)) * 512
    for _ in range(25):
        parts = data.split(b"\n")
        assert len(b" ".join(parts).decode()) == len(data)
        sum(len(part) for part in parts)
    return time.thread_time() - started
