"""The clock of a jail: time and deadlines stand still while it is stopped."""

import asyncio

import pytest

from cove.runtime.clock import Clock

pytestmark = pytest.mark.anyio


async def test_the_time_that_it_was_stopped_does_not_count() -> None:
    clock = Clock()
    clock.stop()
    before = clock.time()
    await asyncio.sleep(0.02)
    assert clock.time() == before
    clock.go_on()
    assert clock.time() - before < 0.02


async def test_a_timer_is_late_by_the_time_that_the_clock_was_stopped() -> None:
    clock, fired = Clock(), asyncio.Event()
    clock.call_later(0.0, fired.set)
    clock.stop()
    await asyncio.sleep(0.01)
    assert not fired.is_set()
    clock.go_on()
    await fired.wait()


async def test_a_timer_set_while_the_clock_is_stopped_waits_for_it() -> None:
    clock, fired = Clock(), asyncio.Event()
    clock.stop()
    clock.call_later(0.0, fired.set)
    await asyncio.sleep(0.01)
    assert not fired.is_set()
    clock.go_on()
    await fired.wait()


async def test_a_cancelled_timer_is_not_armed_again() -> None:
    clock, fired = Clock(), asyncio.Event()
    timer = clock.call_later(0.0, fired.set)
    clock.stop()
    timer.cancel()
    clock.go_on()
    await asyncio.sleep(0.01)
    assert not fired.is_set()


async def test_a_timeout_counts_by_the_clock() -> None:
    clock = Clock()
    clock.stop()
    clock.loop.call_later(0.02, clock.go_on)
    began = clock.loop.time()
    with pytest.raises(TimeoutError):
        async with clock.timeout(0.0):
            await asyncio.Event().wait()
    assert clock.loop.time() - began >= 0.02


async def test_a_wait_ends_with_the_first_the_last_or_its_time() -> None:
    clock = Clock()
    done: asyncio.Future[None] = clock.loop.create_future()
    done.set_result(None)
    never: asyncio.Future[None] = clock.loop.create_future()
    await clock.wait([done], 60.0)
    await clock.wait([done, never], 60.0, return_when=asyncio.FIRST_COMPLETED)
    await clock.wait([done, never], 0.0)
    assert not never.done()
    clock.loop.call_soon(never.set_result, None)
    await clock.wait([never], 60.0)
    assert never.done()
