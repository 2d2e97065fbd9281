"""A server against the embedded library and against a gateway that passes on nothing."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from functools import partial

import aiohttp

from bench.harness import Figure, Plan, Summary, Unit, at_least, at_most, interleave, rate, single, timed, value_at_most
from bench.proc import descendants, memory_of
from bench.two_hop import two_hop
from cove import AsyncSandbox, Limits
from cove.client.transport import Transport
from cove.model import Output, Ready
from cove.wire.operations import INFO

_CONNECTIONS = 16
_REQUESTS = 100
_ECHO = ["python3", "-I", "-c", "import os, tty; tty.setraw(0); os.write(1, b'R')\nwhile 1: os.write(1, os.read(0, 1))"]
_MOST_IDLE_BYTES = 25_000_000


async def run(plan: Plan) -> list[Figure]:
    """Latency, throughput, streams, creation, keys, memory."""
    with two_hop() as bare, server("--warm", "4") as (url, home, pid):
        os.environ["COVE_HOME"] = home
        async with AsyncExitStack() as stack:
            remote = await stack.enter_async_context(AsyncSandbox.create(url=url))
            embedded = await stack.enter_async_context(AsyncSandbox.create())
            transport = Transport(bare, None)
            transport.acquire()
            stack.push_async_callback(transport.release)
            return [
                *await _latency(remote, embedded, transport, plan),
                *await _throughput(remote, embedded, transport, plan),
                await _streaming(remote, bare, plan),
                *await _creation(url, plan),
                await _keys(remote, embedded, bare, plan),
                await _memory(url, pid, plan),
            ]


@contextmanager
def server(*options: str) -> Generator[tuple[str, str, int], None, None]:
    """A real server with a state directory of its own: its address, its directory, and its pid."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o711)
        home = os.path.join(directory, "home")
        command = [
            os.path.join(os.path.dirname(sys.executable), "cove"),
            "serve",
            "--port",
            "0",
            "--on-stop",
            "destroy",
            *options,
        ]
        environment = {**os.environ, "COVE_HOME": home}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            try:
                yield next(word.rstrip(",") for word in line.split() if word.startswith("http")), home, process.pid
            finally:
                process.terminate()


def _sum(first: Summary, second: Summary) -> Summary:
    return Summary(
        p50=first.p50 + second.p50, p95=first.p95 + second.p95, count=first.count, p10=first.p10 + second.p10
    )


def _milliseconds(summary: Summary) -> str:
    return f"{summary.p50 * 1e3:.3f} ms"


def _empty(transport: Transport) -> Callable[[], Awaitable[object]]:
    return lambda: transport.call(INFO, "/")


async def _latency(remote: AsyncSandbox, embedded: AsyncSandbox, transport: Transport, plan: Plan) -> list[Figure]:
    theirs, ours = await remote.create_session(), await embedded.create_session()
    execs = [timed(lambda: remote.exec("true")), timed(lambda: embedded.exec("true"))]
    sessions = [timed(lambda: theirs.exec(":")), timed(lambda: ours.exec(":"))]
    empty = timed(_empty(transport))
    summaries = await interleave([*execs, *sessions, empty], repetitions=plan.times(1000, 200), warm_up=20)
    floor = summaries[4]
    return [
        Figure(
            name=f"server: {name}",
            unit=Unit.SECONDS,
            subject=subject,
            floor=_sum(alone, floor),
            floor_name="embedded + empty two-hop request",
            target=at_most(1.4),
            facts={"embedded": _milliseconds(alone), "empty": _milliseconds(floor)},
        )
        for name, subject, alone in (
            ("exec true", summaries[0], summaries[1]),
            ("session.exec :", summaries[2], summaries[3]),
        )
    ]


async def _throughput(remote: AsyncSandbox, embedded: AsyncSandbox, transport: Transport, plan: Plan) -> list[Figure]:
    """Beside empty requests; and beside what nobody who does both can exceed: the command alone, then the request."""
    theirs, ours = [[await sandbox.create_session() for _ in range(_CONNECTIONS)] for sandbox in (remote, embedded)]
    amount = _CONNECTIONS * _REQUESTS

    async def repeat(work: Callable[[], Awaitable[object]]) -> None:
        for _ in range(_REQUESTS):
            await work()

    async def everywhere(works: list[Callable[[], Awaitable[object]]]) -> None:
        await asyncio.gather(*(repeat(work) for work in works))

    subject, alone, empty = await interleave(
        [
            rate(amount, timed(partial(everywhere, [partial(session.exec, ":") for session in theirs]))),
            rate(amount, timed(partial(everywhere, [partial(session.exec, ":") for session in ours]))),
            rate(amount, timed(partial(everywhere, [_empty(transport)] * _CONNECTIONS))),
        ],
        repetitions=plan.times(7, 3),
        unit=Unit.PER_SECOND,
    )
    return [
        Figure(
            name=f"server: session.exec, {_CONNECTIONS} connections{beside}",
            unit=Unit.PER_SECOND,
            subject=subject,
            floor=floor,
            floor_name=floor_name,
            target=target,
            facts={"embedded": f"{alone.p50:.0f} /s", "empty": f"{empty.p50:.0f} /s"},
        )
        for beside, floor, floor_name, target in (
            ("", empty, "empty two-hop requests", None),
            (
                ", beside both alone",
                _one_after_the_other(alone, empty),
                "embedded, then an empty two-hop request",
                at_least(0.6),
            ),
        )
    ]


def _one_after_the_other(first: Summary, second: Summary) -> Summary:
    """How many per second there can be of two things that each keep all processors busy."""

    def both(one: float, other: float) -> float:
        return 1 / (1 / one + 1 / other)

    return Summary(
        p50=both(first.p50, second.p50),
        p95=both(first.p95, second.p95),
        count=first.count,
        p10=both(first.p10, second.p10),
    )


async def _streaming(remote: AsyncSandbox, bare: str, plan: Plan) -> Figure:
    size = plan.times(512 << 20, 128 << 20)

    async def follow() -> None:
        process = await remote.start_process(f"head -c {size} /dev/zero", keep=False, lossless=True)
        seen = 0
        async for event in process.logs(lossless=True):
            seen += len(event.data) if isinstance(event, Output) else 0
        assert seen == size, seen

    async def read() -> None:
        async with (
            aiohttp.ClientSession(read_bufsize=256 << 10) as session,
            session.get(f"{bare}/stream?{size}") as reply,
        ):
            seen = 0
            async for data in reply.content.iter_any():
                seen += len(data)
            assert seen == size, seen

    subject, floor = await interleave(
        [rate(size, timed(follow)), rate(size, timed(read))],
        repetitions=plan.times(7, 3),
        unit=Unit.BYTES_PER_SECOND,
    )
    return Figure(
        name=f"server: logs, {size >> 20} MiB",
        unit=Unit.BYTES_PER_SECOND,
        subject=subject,
        floor=floor,
        floor_name="bare two-hop byte stream",
        target=at_least(0.4),
    )


async def _creation(url: str, plan: Plan) -> list[Figure]:
    async def create(url: str | None, limits: Limits | None = None) -> float:
        began = time.perf_counter()
        sandbox = await AsyncSandbox.create(url=url, limits=limits or Limits())
        seconds = time.perf_counter() - began
        await sandbox.destroy()
        return seconds

    unlike_those_that_wait = Limits(open_files=1000)
    cold, embedded = await interleave(
        [partial(create, url, unlike_those_that_wait), partial(create, None, unlike_those_that_wait)],
        repetitions=plan.times(40, 10),
        warm_up=3,
    )
    (warm,) = await interleave([partial(create, url)], repetitions=plan.times(40, 10), warm_up=3, idle=0.3)
    return [
        Figure(
            name="server: create, cold",
            unit=Unit.SECONDS,
            subject=cold,
            floor=embedded,
            floor_name="embedded cold start",
            target=at_most(2),
        ),
        Figure(name="server: create, warm", unit=Unit.SECONDS, subject=warm, target=value_at_most(0.012)),
    ]


async def _keys(remote: AsyncSandbox, embedded: AsyncSandbox, bare: str, plan: Plan) -> Figure:
    async with AsyncExitStack() as stack:
        keys = [await _typist(stack, remote), await _typist(stack, embedded), await _echo(stack, bare)]
        subject, alone, echo = await interleave(keys, repetitions=plan.times(2000, 300), warm_up=50)
    return Figure(
        name="server: key and its echo",
        unit=Unit.SECONDS,
        subject=subject,
        floor=_sum(alone, echo),
        floor_name="embedded + WebSocket echo",
        target=at_most(1.5),
        facts={"embedded": _milliseconds(alone), "echo": _milliseconds(echo)},
    )


async def _typist(stack: AsyncExitStack, sandbox: AsyncSandbox) -> Callable[[], Awaitable[float]]:
    terminal = await sandbox.terminal(shell=_ECHO)
    connection = await stack.enter_async_context(terminal.connect())
    events = connection.events()
    stack.push_async_callback(events.aclose)
    seen = {type(await anext(events)), type(await anext(events))}
    assert seen == {Output, Ready}, seen

    async def key() -> None:
        await connection.write(b"k")
        event = await anext(events)
        assert isinstance(event, Output)
        assert event.data == b"k"

    return timed(key)


async def _echo(stack: AsyncExitStack, bare: str) -> Callable[[], Awaitable[float]]:
    session = await stack.enter_async_context(aiohttp.ClientSession())
    websocket = await stack.enter_async_context(session.ws_connect(f"{bare}/echo", compress=0))

    async def key() -> None:
        await websocket.send_bytes(b"k")
        assert (await websocket.receive()).data == b"k"

    return timed(key)


async def _memory(url: str, pid: int, plan: Plan) -> Figure:
    count = plan.times(500, 50)
    ids = [f"idle-{number}" for number in range(count)]

    async def create(id: str) -> None:
        await AsyncSandbox.create(url=url, id=id)

    before = memory_of(descendants(pid)).pss or 0
    for at in range(0, count, 10):
        await asyncio.gather(*(create(id) for id in ids[at : at + 10]))
    after = memory_of(descendants(pid)).pss or 0
    for at in range(0, count, 10):
        await asyncio.gather(*(_destroy(url, id) for id in ids[at : at + 10]))
    return Figure(
        name=f"server: memory of one of {count} idle sandboxes",
        unit=Unit.BYTES,
        subject=single((after - before) / count),
        target=value_at_most(_MOST_IDLE_BYTES),
    )


async def _destroy(url: str, id: str) -> None:
    await (await AsyncSandbox.connect(id, url=url)).destroy()
