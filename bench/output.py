"""A gigabyte of output through one exec."""

from functools import partial

from bench import pipes
from bench.fresh import Value, run_fresh_beside
from bench.harness import Figure, Plan, Unit, at_least, interleave, rate, single, timed, timed_blocking, value_at_most
from bench.proc import peak_bytes, reset_peak
from cove import AsyncSandbox

_MEMORY_LIMIT = 64e6


async def run(plan: Plan) -> list[Figure]:
    """Throughput beside bare readers; memory in a fresh process."""
    size = plan.times(1 << 30, 1 << 28)
    command = ["head", "-c", str(size), "/dev/zero"]
    async with AsyncSandbox.create() as sandbox:
        subject, blocking, in_loop = await interleave(
            [
                rate(size, timed(lambda: _exec(sandbox, size))),
                rate(size, timed_blocking(partial(pipes.read_blocking, command))),
                rate(size, timed(partial(pipes.read_in_loop, command))),
            ],
            repetitions=plan.times(5, 3),
            unit=Unit.BYTES_PER_SECOND,
        )
    memory = await run_fresh_beside("bench.output", "measure_memory", size)
    label = f"exec, {size >> 20} MiB of output"
    rates = (("blocking pipe reader", blocking, at_least(0.6)), ("asyncio pipe reader", in_loop, None))
    return [
        *(
            Figure(name=label, unit=Unit.BYTES_PER_SECOND, subject=subject, floor=floor, floor_name=name, target=target)
            for name, floor, target in rates
        ),
        Figure(
            name=f"{label}, memory growth",
            unit=Unit.BYTES,
            subject=single(float(memory["growth"] or 0)),
            target=value_at_most(_MEMORY_LIMIT),
        ),
    ]


async def measure_memory(size: int) -> dict[str, Value]:
    """How far the memory of this process rises above what it used before."""
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("true")
        before = reset_peak()
        await _exec(sandbox, size)
        return {"growth": peak_bytes() - before}


async def _exec(sandbox: AsyncSandbox, size: int) -> None:
    result = await sandbox.exec(f"head -c {size} /dev/zero")
    assert result.ok
    assert result.truncated
