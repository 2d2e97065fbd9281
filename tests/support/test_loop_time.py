"""The instrument by which floods are judged."""

import asyncio
import time

import pytest

from support.loop_time import bounded_callbacks, measured_callbacks

pytestmark = [pytest.mark.anyio, pytest.mark.pure]


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def test_a_callback_that_takes_long_is_found_by_name() -> None:
    with measured_callbacks() as longest:
        asyncio.get_running_loop().call_soon(burn, 0.03)
        await asyncio.sleep(0.001)
    assert longest.seconds >= 0.03
    assert "burn" in longest.what


async def test_the_step_of_a_task_is_measured_too() -> None:
    async def step() -> None:
        burn(0.03)

    with pytest.raises(AssertionError, match="of the loop's thread"), bounded_callbacks():
        await asyncio.create_task(step())


async def test_waiting_is_not_counted() -> None:
    with bounded_callbacks():
        await asyncio.sleep(0.05)
