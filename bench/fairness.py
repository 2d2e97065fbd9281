"""What a quiet tenant's commands cost beside a busy one: 200 clients that call, burn processors, or create.

The clients are processes of their own, as they would be on other machines: the busy ones are nice to the server, and
the quiet one waits for no processor where it may say so. What is measured is how the server shares itself out, and not
how this machine shares itself between it and them.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TypedDict

from bench.harness import Figure, Plan, Summary, Unit, at_most, summarize
from bench.server import server
from cove import AsyncApiKey, AsyncSandbox

_CLIENTS = 200
_MOST = 3.0
_NICE = 10
_BEGIN_SECONDS = 10.0
_LOADS = ("echo", "burn", "create")


async def run(plan: Plan) -> list[Figure]:
    """Each kind of load."""
    with server() as (url, home, _):
        admin = Path(home, "key").read_text().strip()
        busy, quiet = [(await AsyncApiKey.create(name, url=url, api_key=admin)).key for name in ("busy", "quiet")]
        async with AsyncSandbox.create(url=url, api_key=quiet) as sandbox:
            with suppress(PermissionError):
                os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(10))
            return [await _compare(kind, url, busy, sandbox, plan) for kind in _LOADS]


async def _compare(kind: str, url: str, busy: str, sandbox: AsyncSandbox, plan: Plan) -> Figure:
    seconds = plan.times(10, 3)
    before = await _measure(sandbox, seconds)
    async with _beside(kind, url, busy) as load:
        beside = await _measure(sandbox, seconds)
        done = await load.stop()
    alone = before + await _measure(sandbox, seconds)
    return Figure(
        name=f"quiet tenant's exec, p95, beside {_CLIENTS} clients: {kind}",
        unit=Unit.SECONDS,
        subject=_bad_end(summarize(beside)),
        floor=_bad_end(summarize(alone)),
        floor_name="alone",
        target=at_most(_MOST),
        facts={
            "p50": f"{summarize(beside).p50 * 1e3:.2f} ms",
            "p50 alone": f"{summarize(alone).p50 * 1e3:.2f} ms",
            "the other's": f"{done:.0f} /s",
        },
    )


def _bad_end(summary: Summary) -> Summary:
    """The 95th percentile, as the figure that is compared."""
    return Summary(p50=summary.p95, p95=summary.p95, count=summary.count, p10=summary.p95)


async def _measure(sandbox: AsyncSandbox, seconds: float) -> list[float]:
    found = []
    until = time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        result = await sandbox.exec("echo quiet")
        found.append(time.perf_counter() - began)
        assert result.stdout == "quiet\n", result
    return found


class Load:
    """The process of the busy clients."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    async def begun(self) -> None:
        """Wait until all of them are at it."""
        line = await asyncio.to_thread(self._line)
        assert line == "busy\n", line

    async def stop(self) -> float:
        """End the load; returns how many calls a second it has made."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return float(await asyncio.to_thread(self._line))


@asynccontextmanager
async def _beside(kind: str, url: str, key: str) -> AsyncIterator[Load]:
    command = [sys.executable, "-m", "bench.fairness", kind, url, key]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
        start_new_session=True,
    ) as process:
        load = Load(process)
        await load.begun()
        yield load


class Where(TypedDict):
    """Where sandboxes live, and by which key."""

    url: str
    api_key: str


class _Busy:
    """Clients of one tenant that call without a pause."""

    def __init__(self, url: str, key: str) -> None:
        self.where: Where = {"url": url, "api_key": key}
        self.done = 0
        self.is_over = False
        self._under_way = 0
        self.all_begun = asyncio.Event()

    def begin(self) -> None:
        """One more client has had its first answer."""
        self._under_way += 1
        if self._under_way == _CLIENTS:
            self.all_begun.set()

    async def call(self, sandbox: AsyncSandbox, command: str) -> None:
        """Call until it is over."""
        await sandbox.exec(command)
        self.begin()
        while not self.is_over:
            await sandbox.exec(command)
            self.done += 1

    async def create(self) -> None:
        """Create and destroy until it is over."""
        self.begin()
        while not self.is_over:
            async with AsyncSandbox.create(**self.where):
                self.done += 1


async def _load(kind: str, url: str, key: str) -> None:
    busy = _Busy(url, key)
    async with AsyncExitStack() as stack:
        if kind == "create":
            clients = [busy.create() for _ in range(_CLIENTS)]
        else:
            boxes = [await stack.enter_async_context(AsyncSandbox.create(**busy.where)) for _ in range(8)]
            if kind == "burn":
                for box in boxes:
                    await box.start_process("while :; do :; done")
            clients = [busy.call(boxes[at % len(boxes)], "echo busy") for at in range(_CLIENTS)]
        calling = asyncio.gather(*clients)
        with suppress(TimeoutError):
            await asyncio.wait_for(busy.all_begun.wait(), _BEGIN_SECONDS)
        busy.done, began = 0, time.perf_counter()
        print("busy", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        rate = busy.done / (time.perf_counter() - began)
        busy.is_over = True
        print(rate, flush=True)
        await calling


if __name__ == "__main__":
    os.nice(_NICE)
    asyncio.run(_load(*sys.argv[1:]))
