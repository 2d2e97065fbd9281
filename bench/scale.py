"""How cost grows: sandboxes, sessions, output and clients, each step beside the one before it.

A figure is the cost of one unit: one creation, one call, one request. Its floor is the same figure at the step before,
and its target that it is not more than 1.5 times that: where the cost of one does not rise, the cost of all grows no
faster than their number.
"""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from bench.harness import Figure, Plan, Summary, Unit, at_least, at_most, single, summarize
from bench.proc import descendants, memory_of
from bench.server import server
from cove import AsyncSandbox
from cove.api import Session
from cove.client.calls import Calls
from cove.client.sandbox import Sandbox as RemoteSandbox
from cove.client.transport import Transport

_MOST_RISE = 1.5
_GOOD_END = "ratio of the good ends"  # says something also when something else uses the machine
_IDLE = 0.03
_LATENCIES = 60
_SESSIONS_EACH = 250
_SESSIONS_ON_SERVER = 50
_MEASURED_BYTES = 256 << 20


@dataclass
class Series:
    """One cost at growing numbers: seconds or bytes for one unit, or how many bytes a second."""

    name: str
    of: str
    unit: Unit
    steps: list[tuple[int, Summary]] = field(default_factory=list)

    def add(self, number: int, cost: Summary) -> None:
        """What it is at that number."""
        self.steps.append((number, cost))

    def figures(self) -> list[Figure]:
        """Each step beside the one before it."""
        before: list[tuple[int, Summary] | None] = [None, *self.steps[:-1]]
        return [self._figure(step, previous) for step, previous in zip(self.steps, before, strict=True)]

    def _figure(self, step: tuple[int, Summary], previous: tuple[int, Summary] | None) -> Figure:
        name = f"{self.name}, {step[0]} {self.of}"
        if previous is None:
            return Figure(name=name, unit=self.unit, subject=step[1])
        return Figure(
            name=name,
            unit=self.unit,
            subject=step[1],
            floor=previous[1],
            floor_name=f"at {previous[0]}",
            target=at_least(1 / _MOST_RISE) if self.unit is Unit.BYTES_PER_SECOND else at_most(_MOST_RISE),
            facts={_GOOD_END: round(step[1].p10 / previous[1].p10, 2)},
        )


async def run(plan: Plan) -> list[Figure]:
    """All four."""
    series = [
        *await _sandboxes((1, 10, 50) if plan.quick else (1, 10, 100, 500)),
        *await _sessions((1, 10, 100) if plan.quick else (1, 10, 100, 1000)),
        await _output((10, 20, 24) if plan.quick else (10, 15, 20, 25, 30)),
        *await _clients((1, 10, 50) if plan.quick else (1, 10, 50, 200)),
    ]
    return [figure for each in series for figure in each.figures()]


async def _sandboxes(numbers: Sequence[int]) -> list[Series]:
    """Those of the smaller steps live on while the next ones are made."""
    creation = Series("create a sandbox", "sandboxes", Unit.SECONDS)
    latency = Series("exec in one of them", "sandboxes", Unit.SECONDS)
    memory = Series("memory of one", "sandboxes", Unit.BYTES)
    removal = Series("destroy a sandbox", "sandboxes", Unit.SECONDS)
    living: list[AsyncSandbox] = []

    async def create() -> None:
        living.append(await AsyncSandbox.create())

    await create()  # the first one finds out what the machine has
    await living.pop().destroy()
    for number in numbers:
        creation.add(number, await _timed([create] * (number - len(living))))
        spread = [living[at % number] for at in range(0, _LATENCIES * 7, 7)]
        latency.add(number, await _timed([partial(sandbox.exec, "true") for sandbox in spread], idle=_IDLE))
        pss = (await asyncio.to_thread(lambda: memory_of(descendants(os.getpid())))).pss
        if pss is not None:
            memory.add(number, single(pss / number))
    for number in reversed(numbers):
        left = numbers[numbers.index(number) - 1] if number != numbers[0] else 0
        removal.steps.insert(0, (number, await _timed([sandbox.destroy for sandbox in living[left:]])))
        del living[left:]
    return [creation, latency, memory, removal]


async def _sessions(numbers: Sequence[int]) -> list[Series]:
    """A sandbox has at most 256: more of them are in more sandboxes, which are made before."""
    creation = Series("create a session", "sessions", Unit.SECONDS)
    latency = Series("exec in one of them", "sessions", Unit.SECONDS)
    living: list[Session] = []
    async with AsyncExitStack() as stack:
        homes = [
            await stack.enter_async_context(AsyncSandbox.create()) for _ in range(-(-numbers[-1] // _SESSIONS_EACH))
        ]

        async def create() -> None:
            living.append(await homes[len(living) % len(homes)].create_session())

        for _ in homes:
            await create()
        while living:
            await living.pop().delete()
        for number in numbers:
            creation.add(number, await _timed([create] * (number - len(living))))
            spread = [living[at % number] for at in range(0, _LATENCIES * 7, 7)]
            latency.add(number, await _timed([partial(session.exec, ":") for session in spread], idle=_IDLE))
    return [creation, latency]


async def _output(powers: Sequence[int]) -> Series:
    """Of one exec, through its bounded capture."""
    series = Series("output of one exec", "bytes", Unit.BYTES_PER_SECOND)
    async with AsyncSandbox.create() as sandbox:
        for power in powers:
            size = 1 << power
            repetitions = min(max(_MEASURED_BYTES // size, 2), 20)
            whole = await _timed([partial(sandbox.exec, f"head -c {size} /dev/zero")] * repetitions)
            series.add(size, Summary(size / whole.p50, size / whole.p95, whole.count, size / whole.p10))
    return series


async def _clients(numbers: Sequence[int]) -> list[Series]:
    """Each with a connection and a session of its own, all calling as fast as they can."""
    requests = Series("a request", "clients", Unit.SECONDS)
    waiting = Series("wait for an answer, per client", "clients", Unit.SECONDS)
    with server() as (url, home, _):
        key = (await asyncio.to_thread(_read, os.path.join(home, "key"))).strip()
        async with _remote_sessions(url, key, numbers[-1]) as sessions:
            for number in numbers:
                each = max(2000 // number, 20)
                began = time.perf_counter()
                samples = await asyncio.gather(*(_call(session, each) for session in sessions[:number]))
                seconds = time.perf_counter() - began
                requests.add(number, single(seconds / (each * number)))
                answers = summarize([sample for series in samples for sample in series])
                waiting.add(number, _scaled(answers, 1 / number))
    return [requests, waiting]


@asynccontextmanager
async def _remote_sessions(url: str, key: str, count: int) -> AsyncGenerator[list[Session], None]:
    async with AsyncExitStack() as stack:
        sandboxes = [
            await stack.enter_async_context(AsyncSandbox.create(url=url, api_key=key))
            for _ in range(-(-count // _SESSIONS_ON_SERVER))
        ]
        sessions: list[Session] = []
        for at in range(count):
            home = sandboxes[at % len(sandboxes)]
            transport = Transport(url, key)
            own = RemoteSandbox.of(Calls(transport), await home.info())
            stack.push_async_callback(own.detach)
            sessions.append(await own.create_session())
        yield sessions


async def _call(session: Session, times: int) -> list[float]:
    samples = []
    for _ in range(times):
        began = time.perf_counter()
        await session.exec(":")
        samples.append(time.perf_counter() - began)
    return samples


async def _timed(works: Sequence[Callable[[], Awaitable[object]]], *, idle: float = 0.0) -> Summary:
    """One after the other, with a pause before each."""
    samples = []
    for work in works:
        await asyncio.sleep(idle)
        began = time.perf_counter()
        await work()
        samples.append(time.perf_counter() - began)
    return summarize(samples)


def _scaled(summary: Summary, factor: float) -> Summary:
    return Summary(p50=summary.p50 * factor, p95=summary.p95 * factor, count=summary.count, p10=summary.p10 * factor)


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
