"""A sandbox through a node that does not have it, beside the same one through its own node; and what nodes cost.

Three nodes on this machine know one another by a list. What is created through a cluster is measured beside a server
that is in none.
"""

import asyncio
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench.cluster_ray import measure
from bench.cluster_scale import simulate
from bench.harness import Figure, Plan, Summary, Unit, at_least, at_most, interleave, rate, single, timed
from bench.proc import descendants, memory_of
from bench.server import server
from cove import AsyncSandbox, Limits
from cove.model import Output

_NAMES = ("a", "b", "c")
_KEY = "the-key-of-the-cluster"
_UNLIKE_THOSE_THAT_WAIT = Limits(open_files=1000)


async def run(plan: Plan) -> list[Figure]:
    """Latency, streams, creation and memory through another node; then probes and tables of many nodes."""
    with nodes("warm = 4\n") as (urls, pids), server("--warm", "4") as (alone, home, pid):
        os.environ["COVE_HOME"] = home
        async with AsyncExitStack() as stack:
            direct = await stack.enter_async_context(AsyncSandbox.create(url=urls["a"], api_key=_KEY))
            node = (await direct.info()).node or ""
            url = next(url for name, url in urls.items() if name != node)
            here, there = [
                await stack.enter_async_context(AsyncSandbox.connect(direct.id, url=each, api_key=_KEY))
                for each in (urls[node], url)
            ]
            figures = [*await _latency(here, there, plan), await _stream(here, there, plan)]
        figures += await _creation(alone, url, plan)
        figures.append(_memory(pids, pid))
    return [*figures, *await simulate(plan), *await asyncio.to_thread(measure, plan)]


@contextmanager
def nodes(settings: str) -> Generator[tuple[dict[str, str], list[int]], None, None]:
    """The addresses of three nodes by their names, and the ids of their processes."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        os.chmod(directory, 0o711)
        key = Path(directory, "peer-key")
        key.touch(mode=0o600)
        key.write_text(secrets.token_urlsafe(32))
        held = [socket.create_server(("127.0.0.1", 0)) for _ in _NAMES]
        urls = {name: f"http://127.0.0.1:{each.getsockname()[1]}" for name, each in zip(_NAMES, held, strict=True)}
        for each in held:
            each.close()
        members = ", ".join(f'{name} = "{url}"' for name, url in urls.items())
        pids = []
        for name, url in urls.items():
            configuration = Path(directory, f"{name}.toml")
            configuration.write_text(
                f"port = {url.rpartition(':')[2]}\npreview_port = 0\nworkers = 2\napi_key = {_KEY!r}\n"
                f"on_stop = 'destroy'\n{settings}[cluster]\nnode = {name!r}\npeer_key_file = {str(key)!r}\n"
                f"members = {{{members}}}\n"
            )
            pids.append(stack.enter_context(_node(configuration, os.path.join(directory, name))))
        yield urls, pids


@contextmanager
def _node(configuration: Path, home: str) -> Generator[int, None, None]:
    command = [os.path.join(os.path.dirname(sys.executable), "cove"), "serve", "--config", str(configuration)]
    environment = {**os.environ, "COVE_HOME": home}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.terminate()


async def _latency(here: AsyncSandbox, there: AsyncSandbox, plan: Plan) -> list[Figure]:
    session = await here.create_session(id="s")
    same = await there.get_session("s")
    works: list[Callable[[], Awaitable[object]]] = [
        lambda: there.exec("true"),
        lambda: here.exec("true"),
        lambda: same.exec(":"),
        lambda: session.exec(":"),
        there.info,
        here.info,
    ]
    found = await interleave([timed(work) for work in works], repetitions=plan.times(1000, 200), warm_up=20)
    rows = (("exec true", at_most(1.15)), ("session.exec :", at_most(1.25)), ("info", None))
    return [
        Figure(
            name=f"cluster: {name}",
            unit=Unit.SECONDS,
            subject=found[2 * at],
            floor=found[2 * at + 1],
            floor_name="through its own node",
            target=target,
        )
        for at, (name, target) in enumerate(rows)
    ]


async def _stream(here: AsyncSandbox, there: AsyncSandbox, plan: Plan) -> Figure:
    size = plan.times(256 << 20, 64 << 20)

    async def follow(sandbox: AsyncSandbox) -> None:
        process = await sandbox.start_process(f"head -c {size} /dev/zero", keep=False, lossless=True)
        seen = 0
        async for event in process.logs(lossless=True):
            seen += len(event.data) if isinstance(event, Output) else 0
        assert seen == size, seen

    subject, floor = await interleave(
        [rate(size, timed(partial(follow, sandbox))) for sandbox in (there, here)],
        repetitions=plan.times(9, 3),
        unit=Unit.BYTES_PER_SECOND,
    )
    return Figure(
        name=f"cluster: logs, {size >> 20} MiB",
        unit=Unit.BYTES_PER_SECOND,
        subject=subject,
        floor=floor,
        floor_name="through its own node",
        target=at_least(0.65),
    )


async def _creation(alone: str, url: str, plan: Plan) -> list[Figure]:
    async def create(url: str, api_key: str | None, limits: Limits) -> float:
        began = time.perf_counter()
        sandbox = await AsyncSandbox.create(url=url, api_key=api_key, limits=limits)
        seconds = time.perf_counter() - began
        await sandbox.destroy()
        return seconds

    async def beside(limits: Limits, idle: float) -> list[Summary]:
        samples = [partial(create, url, _KEY, limits), partial(create, alone, None, limits)]
        return await interleave(samples, repetitions=plan.times(40, 10), warm_up=3, idle=idle)

    cold, warm = await beside(_UNLIKE_THOSE_THAT_WAIT, 0.0), await beside(Limits(), 0.3)
    return [
        Figure(
            name=f"cluster: create, {name}",
            unit=Unit.SECONDS,
            subject=subject,
            floor=floor,
            floor_name="a server in no cluster",
            target=target,
        )
        for name, (subject, floor), target in (("cold", cold, at_most(1.15)), ("warm", warm, None))
    ]


def _memory(pids: list[int], pid: int) -> Figure:
    """With the sandboxes that wait on each, which are as many on the server in no cluster."""
    each = [memory_of(descendants(node)).pss or 0 for node in pids]
    return Figure(
        name="cluster: memory of a node with 4 warm sandboxes",
        unit=Unit.BYTES,
        subject=single(sum(each) / len(each)),
        floor=single(memory_of(descendants(pid)).pss or 0),
        floor_name="a server in no cluster",
    )
