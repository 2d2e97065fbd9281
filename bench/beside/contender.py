"""What every contender is asked to do, and how that is timed. Needs nothing but the standard library."""

import asyncio
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

from bench.proc import descendants, memory_of

Work = Callable[[], Awaitable[object]]

STREAM_BYTES = 50_000_000
SESSIONS = 50
UNITS = 4
_SECONDS = 2.0
_MOST_SAMPLES = 200
_ECHO = "import os, tty; tty.setraw(0); os.write(1, b'R')\nwhile 1: os.write(1, os.read(0, 1))"
ECHO = ["python3", "-I", "-c", _ECHO]


class Contender:
    """One unit: a sandbox, a session, a kernel. Methods that stay as they are here are not offered."""

    async def open(self) -> None:
        """Make it; it is ready when the first result is there."""
        raise NotImplementedError

    async def close(self) -> None:
        """End it."""

    async def first(self) -> None:
        """A first command."""
        raise NotImplementedError

    async def exec(self) -> None:
        """One command that does nothing, without state."""
        raise NotImplementedError

    async def sessions(self, count: int) -> Sequence[Work]:
        """Shells with state; each work is one command in one of them."""
        raise NotImplementedError

    async def stream(self) -> None:
        """STREAM_BYTES of output of one command."""
        raise NotImplementedError

    async def keys(self) -> Work:
        """A program on a terminal that echoes; each work is one key and its echo."""
        raise NotImplementedError

    async def cells(self) -> Work:
        """Code with state; each work is `1 + 1` and its result."""
        raise NotImplementedError


async def measure(make: Callable[[], Contender]) -> dict[str, float]:
    """Everything the contender offers, in seconds, per second, or bytes."""
    found: dict[str, float] = {}
    found["create"] = await _offered(lambda: _creation(make))
    found["memory"] = await _offered(lambda: _memory(make))
    unit = make()
    await unit.open()
    try:
        found["exec"] = await _offered(lambda: _latency(unit.exec))
        found["session"] = await _offered(lambda: _of_first(unit.sessions(1)))
        found["sessions"] = await _offered(lambda: _rate(unit.sessions(SESSIONS)))
        found["stream"] = await _offered(lambda: _throughput(unit.stream))
        found["key"] = await _offered(lambda: _of_one(unit.keys()))
        found["cell"] = await _offered(lambda: _of_one(unit.cells()))
    finally:
        await unit.close()
    return {name: value for name, value in found.items() if value >= 0}


async def _offered(figure: Callable[[], Awaitable[float]]) -> float:
    try:
        return await figure()
    except NotImplementedError:
        return -1.0


async def _creation(make: Callable[[], Contender]) -> float:
    samples = []
    for _ in range(3):
        unit = make()
        began = time.perf_counter()
        await unit.open()
        await unit.first()
        samples.append(time.perf_counter() - began)
        await unit.close()
    return statistics.median(samples[1:])


async def _memory(make: Callable[[], Contender]) -> float:
    """The proportional share of one idle unit, with what it adds to this program."""
    units = [make() for _ in range(UNITS)]
    before = _proportional()
    for unit in units:
        await unit.open()
        await unit.first()
    after = _proportional()
    for unit in units:
        await unit.close()
    return (after - before) / UNITS


def _proportional() -> float:
    return float(memory_of([os.getpid(), *descendants(os.getpid())]).pss or 0)


async def _latency(work: Work) -> float:
    """The middle of as many as fit in a short time."""
    await work()
    samples: list[float] = []
    deadline = time.perf_counter() + _SECONDS
    while len(samples) < 3 or (len(samples) < _MOST_SAMPLES and time.perf_counter() < deadline):
        began = time.perf_counter()
        await work()
        samples.append(time.perf_counter() - began)
    return statistics.median(samples)


async def _of_one(making: Awaitable[Work]) -> float:
    return await _latency(await making)


async def _of_first(making: Awaitable[Sequence[Work]]) -> float:
    return await _latency((await making)[0])


async def _rate(making: Awaitable[Sequence[Work]]) -> float:
    """Commands per second in all sessions at once."""
    works = await making
    began = time.perf_counter()
    deadline = began + 2 * _SECONDS

    async def repeat(work: Work) -> int:
        count = 0
        while count < 1 or (count < 100 and time.perf_counter() < deadline):
            await work()
            count += 1
        return count

    counts = await asyncio.gather(*map(repeat, works))
    return sum(counts) / (time.perf_counter() - began)


async def _throughput(work: Work) -> float:
    await work()
    samples = []
    for _ in range(3):
        began = time.perf_counter()
        await work()
        samples.append(STREAM_BYTES / (time.perf_counter() - began))
    return statistics.median(samples)


def main() -> None:
    """Print what was measured as JSON, after whatever the contender's libraries print."""
    module = importlib.import_module(f"bench.beside.{sys.argv[1]}")
    print(json.dumps(asyncio.run(measure(module.Unit))))


if __name__ == "__main__":
    main()
