"""A supervised process: the first byte, and streaming through its log."""

import time
from functools import partial

from bench import pipes
from bench.fresh import Value, run_fresh_beside
from bench.harness import (
    Figure,
    Plan,
    Skipped,
    Unit,
    at_least,
    at_most,
    interleave,
    rate,
    single,
    timed,
    value_at_most,
)
from bench.proc import peak_bytes, reset_peak
from bench.shell import start_shell
from cove import AsyncSandbox
from cove.model import Output

_MEMORY_LIMIT = 64e6
_COMMANDS = {
    "lines": "yes 'a line of output as programs print them' | head -c {}",
    "no newlines": "head -c {} /dev/zero",
}


async def run(plan: Plan) -> list[Figure]:
    """Latency, then throughput of two kinds of output."""
    if not hasattr(AsyncSandbox, "start_process"):
        raise Skipped("this version has no processes")
    size = plan.times(500_000_000, 100_000_000)
    async with AsyncSandbox.create() as sandbox:
        figures = [await _first_byte(sandbox, plan)]
        for kind, command in _COMMANDS.items():
            figures.append(await _streaming(sandbox, plan, kind, command.format(size), size))
    for kind in _COMMANDS:
        memory = await run_fresh_beside("bench.process", "measure_memory", kind, size)
        figures.append(
            Figure(
                name=f"logs, {kind}: memory growth",
                unit=Unit.BYTES,
                subject=single(float(memory["growth"] or 0)),
                target=value_at_most(_MEMORY_LIMIT),
            )
        )
    return figures


async def _first_byte(sandbox: AsyncSandbox, plan: Plan) -> Figure:
    subject, floor = await interleave(
        [lambda: _read_first(sandbox), _read_first_bare], repetitions=plan.times(400, 100), warm_up=10
    )
    return Figure(
        name="start_process echo, first byte",
        unit=Unit.SECONDS,
        subject=subject,
        floor=floor,
        floor_name="Popen bash -c, first byte",
        target=at_most(1.5),
    )


async def _read_first(sandbox: AsyncSandbox) -> float:
    began = time.perf_counter()
    process = await sandbox.start_process("echo x", keep=False)
    logs = process.logs(follow=True)
    event = await anext(logs)
    seconds = time.perf_counter() - began
    assert isinstance(event, Output), event
    await logs.aclose()
    await process.wait()
    return seconds


async def _read_first_bare() -> float:
    began = time.perf_counter()
    with start_shell("echo x") as process:
        assert process.stdout is not None
        assert process.stdout.read(65536) == b"x\n"
        return time.perf_counter() - began


async def _streaming(sandbox: AsyncSandbox, plan: Plan, kind: str, command: str, size: int) -> Figure:
    subject, floor = await interleave(
        [
            rate(size, timed(partial(_stream, sandbox, command, size))),
            rate(size, timed(partial(pipes.read_in_loop, ["bash", "-c", command]))),
        ],
        repetitions=plan.times(5, 3),
        unit=Unit.BYTES_PER_SECOND,
    )
    return Figure(
        name=f"logs, {size // 1_000_000} MB, {kind}",
        unit=Unit.BYTES_PER_SECOND,
        subject=subject,
        floor=floor,
        floor_name="asyncio pipe reader",
        target=at_least(0.5),
    )


async def measure_memory(kind: str, size: int) -> dict[str, Value]:
    """How far the memory of this process rises while it streams."""
    async with AsyncSandbox.create() as sandbox:
        await _stream(sandbox, "echo", 1)
        before = reset_peak()
        await _stream(sandbox, _COMMANDS[kind].format(size), size)
        return {"growth": peak_bytes() - before}


async def _stream(sandbox: AsyncSandbox, command: str, size: int) -> None:
    """Read every byte; a gap would mean that a reader which never pauses lost some."""
    total = 0
    process = await sandbox.start_process(command, keep=False)
    async for event in process.logs(follow=True):
        if isinstance(event, Output):
            total += len(event.data)
    assert total == size, (total, size)
