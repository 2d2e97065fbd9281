"""What layers and sessions cost a sandbox that has them, and one that has none."""

import asyncio
import time
from functools import partial

from bench.harness import (
    Figure,
    Plan,
    Unit,
    at_least,
    interleave,
    rate,
    timed,
    value_at_most,
)
from cove import AsyncSandbox, SandboxSpec
from cove.local.threads import in_thread
from cove.runtime.layers import SandboxLayers
from cove.runtime.machine import examine_machine

_BULK_BYTES = 256 << 20
_SESSIONS = 3


async def run(plan: Plan) -> list[Figure]:
    """All parts."""
    return [await _bulk_writes(plan), await _wake(plan), await _plain_start(plan)]


async def _bulk_writes(plan: Plan) -> Figure:
    """Large files, on layers and on plain directories."""
    size = plan.times(_BULK_BYTES, _BULK_BYTES // 4)
    async with AsyncSandbox.create() as plain, AsyncSandbox.create() as layered:
        snapshot = await layered.snapshot()
        subject, floor = await interleave(
            [rate(size, partial(_write, sandbox, size)) for sandbox in (layered, plain)],
            repetitions=plan.times(15, 5),
            unit=Unit.BYTES_PER_SECOND,
        )
        await snapshot.delete()
    return Figure(
        name=f"write {size >> 20} MiB on layers",
        unit=Unit.BYTES_PER_SECOND,
        subject=subject,
        floor=floor,
        floor_name="in a sandbox without layers",
        target=at_least(0.9),
    )


async def _write(sandbox: AsyncSandbox, size: int) -> float:
    seconds = await timed(lambda: sandbox.exec(f"dd if=/dev/zero of=bulk bs=1M count={size >> 20}"))()
    (await sandbox.exec("rm bulk")).check()
    return seconds


async def _wake(plan: Plan) -> Figure:
    """From the start of a stopped sandbox until every session has run a command, beside one that has none."""
    async with AsyncSandbox.create() as quiet, AsyncSandbox.create() as sandbox:
        sessions = [await sandbox.create_session() for _ in range(_SESSIONS)]
        for session in sessions:
            (await session.exec("x=1; f() { echo $x; }; cd /tmp")).check()

        async def wake() -> float:
            await sandbox.stop()
            began = time.perf_counter()
            await sandbox.start()
            results = await asyncio.gather(*(session.exec("f") for session in sessions))
            seconds = time.perf_counter() - began
            assert all(result.stdout == "1\n" for result in results)
            return seconds

        async def start() -> float:
            await quiet.stop()
            began = time.perf_counter()
            await quiet.start()
            (await quiet.exec("true")).check()
            return time.perf_counter() - began

        subject, floor = await interleave([wake, start], repetitions=plan.times(20, 6), warm_up=1)
    return Figure(
        name=f"wake with {_SESSIONS} sessions, until each has run a command",
        unit=Unit.SECONDS,
        subject=subject,
        floor=floor,
        floor_name="start without any, and a command",
        target=value_at_most(floor.p50 + 0.060),
    )


async def _plain_start(plan: Plan) -> Figure:
    """All that a sandbox without layers does for them while it starts."""
    machine = await in_thread(examine_machine)
    place = await in_thread(machine.home.allocate)
    try:

        async def look() -> None:
            layers = SandboxLayers(machine, place)
            layers.prepare(SandboxSpec(), on_disk_image=False)
            assert not layers.are_shown

        (subject,) = await interleave([timed(look)], repetitions=plan.times(500, 100), warm_up=20)
    finally:
        await in_thread(machine.home.release, place)
    return Figure(
        name="start without layers: what they cost it",
        unit=Unit.SECONDS,
        subject=subject,
        target=value_at_most(0.0003),
    )
