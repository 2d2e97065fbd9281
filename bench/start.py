"""Cold start: from `create` to the result of the first command, one at a time and many at once."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from bench.harness import (
    Figure,
    Plan,
    Unit,
    at_most,
    interleave,
    rate,
    timed,
    timed_blocking,
    value_at_least,
)
from bench.jails import full_jail, plain_jail, python, run_jail
from cove import AsyncSandbox

_AT_ONCE = 8
_LIVES = 48


async def run(plan: Plan) -> list[Figure]:
    """A sandbox against the bare jail it stands on."""
    return [*await _cold_start(plan), await _lives(plan)]


async def _cold_start(plan: Plan) -> list[Figure]:
    with full_jail() as run_in_full:
        subject, plain, same = await interleave(
            [
                _create_and_exec,
                timed_blocking(_run_plain),
                timed_blocking(partial(run_in_full, python("pass"))),
            ],
            repetitions=plan.times(40, 12),
            warm_up=2,
        )
    name = "cold start: create, first exec"
    return [
        Figure(
            name=name, unit=Unit.SECONDS, subject=subject, floor=plain, floor_name="plain bwrap", target=at_most(1.6)
        ),
        Figure(name=name, unit=Unit.SECONDS, subject=subject, floor=same, floor_name="bwrap, our arguments"),
    ]


async def _lives(plan: Plan) -> Figure:
    """Whole lives, create to destroy, eight at a time: what the machine can do when nothing has to wait."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        subject, floor = await interleave(
            [rate(_LIVES, timed(_live_at_once)), rate(_LIVES, timed(partial(_run_at_once, threads)))],
            repetitions=plan.times(6, 2),
            unit=Unit.PER_SECOND,
        )
    return Figure(
        name=f"lives, {_AT_ONCE} at a time: create, exec, destroy",
        unit=Unit.PER_SECOND,
        subject=subject,
        floor=floor,
        floor_name="plain bwrap",
        target=value_at_least(80),
    )


async def _live_at_once() -> None:
    limit = asyncio.Semaphore(_AT_ONCE)

    async def live() -> None:
        async with limit:
            await _create_and_exec()

    await asyncio.gather(*(live() for _ in range(_LIVES)))


async def _run_at_once(threads: ThreadPoolExecutor) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.gather(*(loop.run_in_executor(threads, _run_plain) for _ in range(_LIVES)))


def _run_plain() -> None:
    run_jail([*plain_jail(), *python("pass")])


async def _create_and_exec() -> float:
    began = time.perf_counter()
    sandbox = await AsyncSandbox.create()
    try:
        (await sandbox.exec("true")).check()
        return time.perf_counter() - began
    finally:
        await sandbox.destroy()
