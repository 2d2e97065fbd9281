"""What a sandbox's neighbour notices while code inside uses up whatever it can."""

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from bench.harness import Figure, Plan, Skipped, Unit, at_most, interleave
from bench.server import server
from cove import AsyncSandbox, Limits

LIMITS = Limits(memory=192 << 20, pids=100, cpus=0.5, disk=64 << 20, inodes=4000, open_files=512)
BOMBS = {
    "a fork bomb": """
import os
while True:
    try: os.fork()
    except OSError: pass
""",
    "a thread bomb": """
import threading, time
while True:
    try: threading.Thread(target=time.sleep, args=(1000,)).start()
    except RuntimeError: pass
""",
    "memory by malloc": """
x = []
while True: x.append(bytearray(1 << 20))
""",
    "memory by a file without a name": """
import os
f = os.memfd_create('x')
while True: os.write(f, bytes(1 << 20))
""",
    "memory by files in memory": """
import os
while True:
    with open('/dev/shm/x', 'ab') as f: f.write(bytes(1 << 20))
""",
    "memory by pipes": """
import fcntl, os
pipes = []
while True:
    try:
        read, write = os.pipe2(os.O_NONBLOCK)
        pipes.append((read, write))
        fcntl.fcntl(write, 1031, 1 << 20)
        os.write(write, bytes(1 << 20))
    except OSError: pass
""",
    "a full disk": """
n = 0
while True:
    n += 1
    open(f'/workspace/{n}', 'wb').write(bytes(8 << 20))
""",
    "inodes": """
n = 0
while True:
    n += 1
    open(f'/tmp/{n}', 'w').close()
""",
    "the processor": """
import os
for _ in range(8): os.fork()
while True: pass
""",
    "output": """
import os
while True: os.write(1, b'x' * 65536)
""",
}
_PAUSE = 0.01
_BEFORE = 0.3


async def run(plan: Plan) -> list[Figure]:
    """One figure per bomb: p95 of `exec` in another sandbox of the same server, in quiet and beside it, in turns."""
    with server() as (url, home, _):
        os.environ["COVE_HOME"] = home
        return await _measure(url, plan)


async def _measure(url: str, plan: Plan) -> list[Figure]:
    rounds, calls = plan.times(5, 3), plan.times(100, 60)
    figures = []
    for name, bomb in BOMBS.items():
        async with victim_and_offender(url) as (victim, offender):
            beside, quiet = await interleave(
                [partial(loud_p95, victim, offender, bomb, calls), partial(exec_p95, victim, calls)], repetitions=rounds
            )
        figures.append(
            Figure(
                name=f"server: exec true, p95, beside {name}",
                unit=Unit.SECONDS,
                subject=beside,
                floor=quiet,
                floor_name="in quiet",
                target=at_most(3),
            )
        )
    return figures


@asynccontextmanager
async def victim_and_offender(
    url: str | None = None, api_key: str | None = None
) -> AsyncIterator[tuple[AsyncSandbox, AsyncSandbox]]:
    """Two sandboxes, of which the second has limits."""
    async with (
        AsyncSandbox.create(url=url, api_key=api_key) as victim,
        AsyncSandbox.create(url=url, api_key=api_key, limits=LIMITS) as offender,
    ):
        info = await offender.info()
        if info.warnings or not {"memory", "pids", "cpus"} <= set(info.limits_enforced):
            raise Skipped("needs control groups for memory, pids and cpus, and root for disks")
        yield victim, offender


async def exec_p95(sandbox: AsyncSandbox, calls: int) -> float:
    """Of calls with a pause in between, as a user makes them."""
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        result = await sandbox.exec(["true"])
        times.append(time.perf_counter() - began)
        assert result.ok
        await asyncio.sleep(_PAUSE)
    return sorted(times)[math.ceil(calls * 0.95) - 1]


async def loud_p95(victim: AsyncSandbox, offender: AsyncSandbox, bomb: str, calls: int) -> float:
    """The same while the other one runs the bomb."""
    async with exploding(offender, bomb):
        return await exec_p95(victim, calls)


@asynccontextmanager
async def exploding(offender: AsyncSandbox, bomb: str) -> AsyncIterator[None]:
    """Run the bomb meanwhile, again and again where it ends."""
    exploding = asyncio.create_task(_explode(offender, bomb))
    await asyncio.sleep(_BEFORE)
    try:
        yield
    finally:
        exploding.cancel()
        await asyncio.wait([exploding])


async def _explode(offender: AsyncSandbox, bomb: str) -> None:
    while True:
        result = await offender.exec(["python3", "-c", bomb], max_output=1000)
        assert not result.ok
        await offender.exec("rm -rf /workspace/* /tmp/* /dev/shm/*")
