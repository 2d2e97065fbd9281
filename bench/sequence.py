"""Thousands of commands one after another: nothing is lost and nothing grows."""

import asyncio
import os
import re
import time

from bench.fresh import Value, run_fresh_beside
from bench.harness import Figure, Plan, Unit, single, value_at_most
from bench.proc import count_descriptors, count_threads, descendants, memory_of, resident_bytes
from bench.shell import NAME, run_shell_captured
from cove import AsyncSandbox

_COMMAND = "echo $RANDOM"
_BLOCKS = 20
_FLOOR_PART = 10
_WARM_UP = 300
_MEMORY_LIMIT = 2 << 20
_GROWTHS = ("descriptors", "threads", "processes")


async def run(plan: Plan) -> list[Figure]:
    """The figures of one long run in a fresh process."""
    count = plan.times(10_000, 1_000)
    found = await run_fresh_beside("bench.sequence", "measure", count)
    label = f"{count} x exec {_COMMAND!r}"
    grown = sum(abs(int(found[name] or 0)) for name in _GROWTHS)
    return [
        Figure(
            name=f"{label}: mean",
            unit=Unit.SECONDS,
            subject=single(float(found["seconds"] or 0)),
            floor=single(float(found["floor"] or 0)),
            floor_name=NAME,
        ),
        Figure(
            name=f"{label}: lost or wrong outputs",
            unit=Unit.COUNT,
            subject=single(float(found["lost"] or 0)),
            target=value_at_most(0),
        ),
        Figure(
            name=f"{label}: growth of descriptors, threads, processes",
            unit=Unit.COUNT,
            subject=single(grown),
            target=value_at_most(0),
            facts={name: found[name] for name in _GROWTHS},
        ),
        Figure(
            name=f"{label}: memory growth, this process",
            unit=Unit.BYTES,
            subject=single(float(found["memory"] or 0)),
            target=value_at_most(_MEMORY_LIMIT),
        ),
        Figure(
            name=f"{label}: memory growth, sandbox",
            unit=Unit.BYTES,
            subject=single(float(found["sandbox memory"] or 0)),
            target=value_at_most(_MEMORY_LIMIT),
        ),
    ]


async def measure(count: int) -> dict[str, Value]:
    """Blocks of commands with some runs of the floor between them."""
    async with AsyncSandbox.create() as sandbox:
        await _run_block(sandbox, _WARM_UP)
        before = await _state()
        lost, seconds, floor = 0, 0.0, 0.0
        for _ in range(_BLOCKS):
            began = time.perf_counter()
            lost += await _run_block(sandbox, count // _BLOCKS)
            half = time.perf_counter()
            _run_floor(count // _BLOCKS // _FLOOR_PART)
            seconds += half - began
            floor += time.perf_counter() - half
        after = await _state()
    return {
        "seconds": seconds / count,
        "floor": floor * _FLOOR_PART / count,
        "lost": lost,
        **{name: after[name] - before[name] for name in before},
    }


async def _run_block(sandbox: AsyncSandbox, count: int) -> int:
    lost = 0
    for _ in range(count):
        result = await sandbox.exec(_COMMAND)
        lost += not (result.ok and re.fullmatch(r"\d{1,5}\n", result.stdout))
    return lost


def _run_floor(count: int) -> None:
    for _ in range(count):
        run_shell_captured(_COMMAND)


async def _state() -> dict[str, int]:
    await asyncio.sleep(0.2)
    below = descendants(os.getpid())
    return {
        "descriptors": count_descriptors(),
        "threads": count_threads(),
        "processes": len(below),
        "memory": resident_bytes(),
        "sandbox memory": memory_of(below).rss,
    }
