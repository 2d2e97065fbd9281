"""Python contexts against IPython itself: latency, creation, memory, the first one in a fresh sandbox."""

import asyncio
import time
from pathlib import Path

from bench.harness import (
    Figure,
    Plan,
    Skipped,
    Unit,
    at_most,
    interleave,
    single,
    timed,
    timed_blocking,
    value_at_most,
)
from bench.jupyter import jupyter_figures
from bench.plain_ipython import PlainIPython
from cove import AsyncSandbox
from cove.api import CodeContext
from cove.runtime.home import default_home
from cove.runtime.interpreters import find_python_environment

_CONTEXTS = 20
_USS_BYTES = 8 << 20
_CODE = "1 + 1"


async def run(plan: Plan) -> list[Figure]:
    """Everything beside the same in a plain process of the same Python."""
    environment = find_python_environment(default_home())
    if environment is None:
        raise Skipped("the environment for Python contexts is not there: run `cove setup`")
    async with AsyncSandbox.create() as sandbox:
        figures = [
            await _latency(sandbox, environment, plan),
            await _creation(sandbox, environment, plan),
            await _memory(sandbox),
        ]
    return [*figures, await _first(environment, plan), *await jupyter_figures(plan)]


async def _latency(sandbox: AsyncSandbox, environment: Path, plan: Plan) -> Figure:
    context = await sandbox.create_code_context()
    with PlainIPython(environment) as plain:
        subject, floor = await interleave(
            [timed(lambda: context.run(_CODE)), timed_blocking(lambda: plain.run(_CODE))],
            repetitions=plan.times(1000, 200),
            warm_up=20,
        )
        alone = plain.time_cells(_CODE, 200)
    await context.delete()
    return Figure(
        name="run_code 1+1 in a context",
        unit=Unit.SECONDS,
        subject=subject,
        floor=floor,
        floor_name="IPython in a plain process, told by a pipe",
        target=at_most(3),
        facts={"run_cell alone": f"{alone * 1e3:.3f} ms"},
    )


async def _creation(sandbox: AsyncSandbox, environment: Path, plan: Plan) -> Figure:
    with PlainIPython(environment) as plain:
        subject, floor = await interleave(
            [lambda: _create(sandbox), timed_blocking(lambda: plain.fork_and_run(_CODE))],
            repetitions=plan.times(100, 30),
            warm_up=5,
        )
    return Figure(
        name="create a context, first result",
        unit=Unit.SECONDS,
        subject=subject,
        floor=floor,
        floor_name="os.fork of the same process, first result",
        target=at_most(3),
    )


async def _create(sandbox: AsyncSandbox) -> float:
    began = time.perf_counter()
    context = await sandbox.create_code_context()
    await context.run(_CODE)
    seconds = time.perf_counter() - began
    await context.delete()
    return seconds


async def _memory(sandbox: AsyncSandbox) -> Figure:
    contexts: list[CodeContext] = []
    for _ in range(_CONTEXTS):
        contexts.append(await sandbox.create_code_context())
        await contexts[-1].run(_CODE)
    executors = [await _memory_of(sandbox, context) for context in contexts]
    private = sum(each["Private_Clean"] + each["Private_Dirty"] for each in executors) / _CONTEXTS
    proportional = sum(each["Pss"] for each in executors) / _CONTEXTS
    await asyncio.gather(*(context.delete() for context in contexts))
    return Figure(
        name=f"private memory of an idle context, {_CONTEXTS} of them",
        unit=Unit.BYTES,
        subject=single(private),
        target=value_at_most(_USS_BYTES),
        facts={"PSS": f"{proportional / (1 << 20):.1f} MiB"},
    )


async def _memory_of(sandbox: AsyncSandbox, context: CodeContext) -> dict[str, int]:
    """From the outside, so that looking costs it nothing."""
    pid = context.executor.process.pid  # type: ignore[attr-defined]  # the runtime's own
    text = (await sandbox.exec(["cat", f"/proc/{pid}/smaps_rollup"])).check().stdout
    fields = (line.split() for line in text.splitlines()[1:])
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in fields}


async def _first(environment: Path, plan: Plan) -> Figure:
    subject, floor = await interleave(
        [_create_first, lambda: _import_plainly(environment)], repetitions=plan.times(10, 3)
    )
    return Figure(
        name="first context of a fresh sandbox",
        unit=Unit.SECONDS,
        subject=subject,
        floor=floor,
        floor_name="the same imports in plain Python, first result",
        target=at_most(1.3),
    )


async def _create_first() -> float:
    async with AsyncSandbox.create() as sandbox:
        return await _create(sandbox)


async def _import_plainly(environment: Path) -> float:
    began = time.perf_counter()
    with PlainIPython(environment) as plain:
        plain.run(_CODE)
        return time.perf_counter() - began
