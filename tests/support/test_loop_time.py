"""The instrument by which floods are judged."""

import asyncio
import gc
import time
from collections.abc import Callable

import pytest

from support import loop_time
from support.loop_time import TRIES, bounded_callbacks

pytestmark = [pytest.mark.anyio, pytest.mark.pure]

LONG_SECONDS = 0.1


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def measure(callback: Callable[[int], None]) -> int:
    """How often it had to be tried."""
    tries = 0
    for attempt in bounded_callbacks():
        tries += 1
        with attempt:
            asyncio.get_running_loop().call_soon(callback, tries)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    return tries


async def test_a_callback_that_takes_long_each_time_is_found_by_name() -> None:
    with pytest.raises(AssertionError, match=r"burn_always.* of the loop's thread"):
        await measure(burn_always)


def burn_always(_: int) -> None:
    burn(LONG_SECONDS)


async def test_the_step_of_a_task_is_measured_too() -> None:
    async def step() -> None:
        burn(LONG_SECONDS)

    tasks: list[asyncio.Task[None]] = []
    with pytest.raises(AssertionError, match="of the loop's thread"):
        await measure(lambda _: tasks.append(asyncio.ensure_future(step())))


async def test_what_took_long_once_is_done_again() -> None:
    assert await measure(lambda tries: burn(LONG_SECONDS if tries < TRIES else 0)) == TRIES


async def test_a_quick_callback_is_measured_once() -> None:
    assert await measure(lambda _: None) == 1


async def test_waiting_is_not_counted() -> None:
    for attempt in bounded_callbacks():
        with attempt:
            await asyncio.sleep(LONG_SECONDS)


class Garbage:
    """Is found by the collector alone, and takes long to go."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        burn(LONG_SECONDS)


async def test_collecting_garbage_is_not_counted() -> None:
    def collect(_: int) -> None:
        Garbage()
        assert gc.collect()

    assert await measure(collect) == 1


async def test_a_slow_machine_has_a_larger_bound_but_not_any(monkeypatch: pytest.MonkeyPatch) -> None:
    most = loop_time.MOST_SECONDS
    monkeypatch.setattr(loop_time, "WORK_SECONDS", 1e-9)
    assert await measure(lambda _: burn(2 * most)) == 1
    with pytest.raises(AssertionError):
        await measure(lambda _: burn(1.5 * loop_time.MOST_SLOWNESS * most))
