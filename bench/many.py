"""Many sandboxes alive in one process: time, memory, and that nothing stays."""

import asyncio
import os
import subprocess
import time

from bench.fresh import Value, run_fresh_beside
from bench.harness import Figure, Plan, Unit, single, value_at_most
from bench.jails import plain_jail, python
from bench.proc import Memory, count_descriptors, descendants, memory_of, resident_bytes
from cove import AsyncSandbox

_AT_ONCE = 8
_WAIT = "import posix; posix.write(1, b'x'); posix.read(0, 1)"


async def run(plan: Plan) -> list[Figure]:
    """As many sandboxes and, in another process, as many bare jails."""
    count = plan.times(200, 40)
    ours = await run_fresh_beside("bench.many", "measure_sandboxes", count)
    bare = await run_fresh_beside("bench.many", "measure_bare_jails", count)
    figures = [_figure(f"{count} sandboxes: create all", Unit.SECONDS, ours, bare, "create")]
    figures += [
        _figure(f"memory per idle sandbox, {size.upper()}", Unit.BYTES, ours, bare, size)
        for size in ("rss", "pss", "uss")
        if ours[size] is not None and bare[size] is not None
    ]
    left = {name: ours[name] for name in ("processes left", "descriptors left")}
    figures += [
        Figure(
            name=f"{count} sandboxes: all exec",
            unit=Unit.SECONDS,
            subject=single(float(ours["exec"] or 0)),
            facts={"processes per sandbox": ours["processes"], "growth of this process": ours["own"]},
        ),
        Figure(
            name=f"{count} sandboxes: answers missing, processes and descriptors left",
            unit=Unit.COUNT,
            subject=single(sum(int(value or 0) for value in (*left.values(), ours["missing"]))),
            target=value_at_most(0),
        ),
    ]
    return figures


def _figure(name: str, unit: Unit, ours: dict[str, Value], bare: dict[str, Value], key: str) -> Figure:
    return Figure(
        name=name,
        unit=unit,
        subject=single(float(ours[key] or 0)),
        floor=single(float(bare[key] or 0)),
        floor_name="bare jails with python3",
    )


async def measure_sandboxes(count: int) -> dict[str, Value]:
    """Make them, use each, look at their memory, destroy them."""
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("true")
    await asyncio.sleep(0.1)
    before = descendants(os.getpid()), count_descriptors(), resident_bytes()
    gate = asyncio.Semaphore(_AT_ONCE)

    async def create() -> AsyncSandbox:
        async with gate:
            return await AsyncSandbox.create()

    began = time.perf_counter()
    sandboxes = await asyncio.gather(*(create() for _ in range(count)))
    created = time.perf_counter()
    results = await asyncio.gather(*(sandbox.exec(f"echo {at}") for at, sandbox in enumerate(sandboxes)))
    used = time.perf_counter()
    await asyncio.sleep(1)
    pids = descendants(os.getpid())
    memory = memory_of(pids)
    own = resident_bytes() - before[2]
    for at in range(0, count, _AT_ONCE):
        await asyncio.gather(*(sandbox.destroy() for sandbox in sandboxes[at : at + _AT_ONCE]))
    return {
        "create": created - began,
        "exec": used - created,
        "missing": sum(result.stdout != f"{at}\n" for at, result in enumerate(results)),
        "processes": round(len(pids) / count, 2),
        "own": f"{own / count / 1024:.0f} KiB per sandbox",
        "processes left": len(set(descendants(os.getpid())) - set(before[0])),
        "descriptors left": count_descriptors() - before[1],
        **_per_jail(memory, count),
    }


async def measure_bare_jails(count: int) -> dict[str, Value]:
    """The same number of jails in which Python waits."""
    command = [*plain_jail(), *python(_WAIT)]
    began = time.perf_counter()
    jails: list[subprocess.Popen[bytes]] = []
    for at in range(count + _AT_ONCE):
        if at < count:
            jails.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0))
        if at >= _AT_ONCE:
            os.read(_descriptor(jails[at - _AT_ONCE].stdout), 1)
    created = time.perf_counter() - began
    memory = memory_of(descendants(os.getpid()))
    for jail in jails:
        jail.communicate()
    return {"create": created, **_per_jail(memory, count)}


def _descriptor(pipe: object) -> int:
    assert hasattr(pipe, "fileno")
    number: int = pipe.fileno()
    return number


def _per_jail(memory: Memory, count: int) -> dict[str, Value]:
    sizes = {"rss": memory.rss, "pss": memory.pss, "uss": memory.uss}
    return {name: None if size is None else size / count for name, size in sizes.items()}
