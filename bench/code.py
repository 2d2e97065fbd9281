"""Python contexts against IPython itself: latency, creation, memory, the first one in a fresh sandbox."""

import asyncio
import time
from collections.abc import Coroutine
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
from cove import AsyncSandbox, Execution
from cove.api import CodeContext
from cove.local.state import default_home
from cove.runtime.interpreters import find_python_environment

_CONTEXTS = 20
_USS_BYTES = 8 << 20
_CODE = "1 + 1"
_AT_ONCE, _AT_ONCE_SECONDS = 40, 10.0


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
    figures += [await _first(environment, plan), await _pandas(environment, plan), await _many()]
    return [*figures, *await jupyter_figures(plan)]


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
        [_create_first, lambda: _import_plainly(environment, "IPython")], repetitions=plan.times(15, 5)
    )
    return Figure(
        name="first code in a fresh sandbox",
        unit=Unit.SECONDS,
        subject=subject,
        floor=floor,
        floor_name="python3 -c 'import IPython' on the same interpreter",
        target=at_most(1.2),
    )


async def _pandas(environment: Path, plan: Plan) -> Figure:
    subject, floor = await interleave(
        [_import_inside, lambda: _import_plainly(environment, "pandas")], repetitions=plan.times(10, 3)
    )
    return Figure(
        name="import pandas in a context",
        unit=Unit.SECONDS,
        subject=subject,
        floor=floor,
        floor_name="python3 -c 'import pandas' on the same interpreter",
        target=at_most(1),
    )


async def _many() -> Figure:
    """Each makes a sandbox of its own and runs its first code there, all at once."""
    began = time.perf_counter()
    await asyncio.gather(*(_create_first() for _ in range(_AT_ONCE)))
    return Figure(
        name=f"first code in each of {_AT_ONCE} sandboxes at once, with their creation",
        unit=Unit.SECONDS,
        subject=single(time.perf_counter() - began),
        target=value_at_most(_AT_ONCE_SECONDS),
    )


async def _create_first() -> float:
    async with AsyncSandbox.create() as sandbox:
        return await _time(sandbox.run_code(_CODE))


async def _import_inside() -> float:
    """In the first context of a sandbox: nobody has imported it there."""
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        return await _time(context.run("import pandas"))


async def _time(work: Coroutine[object, object, Execution]) -> float:
    began = time.perf_counter()
    execution = await work
    assert execution.error is None, execution.error
    return time.perf_counter() - began


async def _import_plainly(environment: Path, module: str) -> float:
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(environment / "bin" / "python3", "-c", f"import {module}")
    assert await process.wait() == 0
    return time.perf_counter() - began
