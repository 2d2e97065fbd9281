"""Tasks per second of a fleet, beside subprocesses without isolation and beside a sandbox for each task."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from bench.harness import Figure, Plan, Unit, interleave, rate, timed
from cove import AsyncFleet, AsyncSandbox

_SNIPPET = "print(sum(range(1000)))"
_TASKS: dict[str, Sequence[str]] = {
    "echo": ("/bin/echo", "hello"),
    "a Python snippet": ("/usr/bin/python3", "-c", _SNIPPET),
}


async def run(plan: Plan) -> list[Figure]:
    """Each kind of task with a fleet that is reset, one that is not, subprocesses, and plain creations."""
    size = 4 * len(os.sched_getaffinity(0))
    async with AsyncFleet(size) as reset, AsyncFleet(size, reuse=False) as thrown_away:
        figures = []
        for name, command in _TASKS.items():
            figures += await _measure(plan, size, name, command, reset, thrown_away)
    return figures


async def _measure(
    plan: Plan, size: int, name: str, command: Sequence[str], reset: AsyncFleet, thrown_away: AsyncFleet
) -> list[Figure]:
    count = plan.times(100, 20)
    fleets = [_with_fleet(fleet, command, count) for fleet in (reset, thrown_away)]
    others = [_at_once(size, count, partial(one, command)) for one in (_subprocess, _created)]
    subject, kept, bare, created = await interleave(
        [rate(count, timed(work)) for work in (*fleets, *others)],
        repetitions=plan.times(7, 2),
        unit=Unit.PER_SECOND,
    )
    title = f"fleet of {size}: {name}"
    facts: dict[str, float | int | str | None] = {"tasks": count, "reuse=False": kept.p50}
    return [
        Figure(name=title, unit=Unit.PER_SECOND, subject=subject, floor=bare, floor_name="subprocess", facts=facts),
        Figure(
            name=title, unit=Unit.PER_SECOND, subject=subject, floor=created, floor_name="a sandbox created for each"
        ),
    ]


def _with_fleet(fleet: AsyncFleet, command: Sequence[str], count: int) -> Callable[[], Awaitable[None]]:
    async def task(sandbox: AsyncSandbox, _: int) -> None:
        (await sandbox.exec(command)).check()

    async def work() -> None:
        async for result in fleet.map(task, range(count)):
            result.check()

    return work


def _at_once(size: int, count: int, one: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    async def work() -> None:
        room = asyncio.Semaphore(size)

        async def in_turn() -> None:
            async with room:
                await one()

        await asyncio.gather(*(in_turn() for _ in range(count)))

    return work


async def _subprocess(command: Sequence[str]) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=sys.stderr)
    output, _ = await process.communicate()
    assert process.returncode == 0, output


async def _created(command: Sequence[str]) -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec(command)).check()
