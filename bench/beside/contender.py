"""What every contender is asked to do, and how that is timed. Needs nothing but the standard library."""

import asyncio
import importlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

from bench.proc import descendants, memory_of

Work = Callable[[], Awaitable[object]]

STREAM_BYTES = 50_000_000
SESSIONS = 50
OVERRUN = 0.2
IDLE = 200
_UNITS = 4
_AT_ONCE = 8
_SECONDS = 2.0
_MOST_SAMPLES = 200
_FEW = 3
_ECHO = "import os, tty; tty.setraw(0); os.write(1, b'R')\nwhile 1: os.write(1, os.read(0, 1))"
ECHO = ["python3", "-I", "-c", _ECHO]


class Contender:
    """One unit: a sandbox, a session, a kernel. Methods that stay as they are here are not offered."""

    # Whether it confines what it runs: how many can be made, and what many cost, is asked of sandboxes only.
    is_sandbox = False
    # Whether something of it stays in memory between two calls.
    is_resident = False

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

    async def timed_session(self) -> Work:
        """A shell with state; each work is one command with a timeout that it does not reach."""
        raise NotImplementedError

    async def overrun(self) -> Work:
        """A shell with state; each work is a command that hits a timeout of OVERRUN, then one in the same shell."""
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


Samples = list[float]


async def measure(make: Callable[[], Contender]) -> dict[str, Samples]:
    """Everything the contender offers, in seconds, per second, or bytes."""
    found: dict[str, Samples] = {}
    found["create"] = await _offered(lambda: _creation(make))
    found["memory"] = await _offered(lambda: _memory(make, _UNITS))
    found["lives"] = await _offered(lambda: _lives(make))
    found["density"] = await _offered(lambda: _density(make))
    unit = make()
    await unit.open()
    try:
        found["exec"] = await _offered(lambda: latencies(unit.exec))
        found["session"] = await _offered(lambda: _of_first(unit.sessions(1)))
        found["timed_session"] = await _offered(lambda: _of_one(unit.timed_session()))
        found["overrun"] = await _offered(lambda: _of_one(unit.overrun()))
        found["sessions"] = await _offered(lambda: _rates(unit.sessions(SESSIONS)))
        found["stream"] = await _offered(lambda: _throughput(unit.stream))
        found["key"] = await _offered(lambda: _of_one(unit.keys()))
        found["cell"] = await _offered(lambda: _of_one(unit.cells()))
    finally:
        await unit.close()
    return {name: samples for name, samples in found.items() if samples}


async def _offered(figure: Callable[[], Awaitable[Samples]]) -> Samples:
    """Nothing when the contender does not offer it, or fails at it: the other figures count."""
    try:
        return await figure()
    except NotImplementedError:
        return []
    except Exception as error:  # noqa: BLE001 - of whatever kind the contender's library raises
        print(f"a figure failed and is skipped: {error!r}"[:300], file=sys.stderr)
        return []


async def _creation(make: Callable[[], Contender]) -> Samples:
    samples = []
    for _ in range(_FEW + 1):
        unit = make()
        began = time.perf_counter()
        await unit.open()
        await unit.first()
        samples.append(time.perf_counter() - began)
        await unit.close()
    return samples[1:]


async def _memory(make: Callable[[], Contender], count: int) -> Samples:
    """The proportional share of one idle unit, with what it adds to this program."""
    units = [make() for _ in range(count)]
    before = _proportional()
    for at in range(0, count, _AT_ONCE):
        await asyncio.gather(*map(_begin, units[at : at + _AT_ONCE]))
    after = _proportional()
    for at in range(0, count, _AT_ONCE):
        await asyncio.gather(*(unit.close() for unit in units[at : at + _AT_ONCE]))
    return [max(after - before, 0) / count]


async def _density(make: Callable[[], Contender]) -> Samples:
    unit = make()
    if not (unit.is_sandbox and unit.is_resident):
        raise NotImplementedError
    return await _memory(make, IDLE)


async def _begin(unit: Contender) -> None:
    await unit.open()
    await unit.first()


def _proportional() -> float:
    return float(memory_of([os.getpid(), *descendants(os.getpid())]).pss or 0)


async def _lives(make: Callable[[], Contender]) -> Samples:
    """Whole lives per second, eight at a time: made, used once, ended."""
    if not make().is_sandbox:
        raise NotImplementedError

    async def live() -> None:
        unit = make()
        await _begin(unit)
        await unit.close()

    await live()
    return await _repeated([live] * _AT_ONCE)


async def latencies(work: Work) -> Samples:
    """As many as fit in a short time."""
    await work()
    samples: Samples = []
    deadline = time.perf_counter() + _SECONDS
    while len(samples) < _FEW or (len(samples) < _MOST_SAMPLES and time.perf_counter() < deadline):
        began = time.perf_counter()
        await work()
        samples.append(time.perf_counter() - began)
    return samples


async def _of_one(making: Awaitable[Work]) -> Samples:
    return await latencies(await making)


async def _of_first(making: Awaitable[Sequence[Work]]) -> Samples:
    return await latencies((await making)[0])


async def _rates(making: Awaitable[Sequence[Work]]) -> Samples:
    works = await making
    return await _repeated(works)


async def _repeated(works: Sequence[Work]) -> Samples:
    """A few rates, or one where one takes long."""
    deadline = time.perf_counter() + _FEW * _SECONDS
    samples = [await _rate(works)]
    while len(samples) < _FEW and time.perf_counter() < deadline:
        samples.append(await _rate(works))
    return samples


async def _rate(works: Sequence[Work]) -> float:
    """How often per second, with all of them at once; each at least once."""
    began = time.perf_counter()
    deadline = began + _SECONDS

    async def repeat(work: Work) -> int:
        count = 0
        while count < 1 or (count < 100 and time.perf_counter() < deadline):
            await work()
            count += 1
        return count

    counts = await asyncio.gather(*map(repeat, works))
    return sum(counts) / (time.perf_counter() - began)


async def _throughput(work: Work) -> Samples:
    await work()
    samples = []
    for _ in range(_FEW):
        began = time.perf_counter()
        await work()
        samples.append(STREAM_BYTES / (time.perf_counter() - began))
    return samples


def main() -> None:
    """Print what was measured as JSON, after whatever the contender's libraries print."""
    module = importlib.import_module(f"bench.beside.{sys.argv[1]}")
    print(json.dumps(asyncio.run(measure(module.Unit))))


if __name__ == "__main__":
    main()
