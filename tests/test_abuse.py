"""Code that uses up whatever it can: it is stopped or limited, and another sandbox hardly notices."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from servers import Server
from serving import address

from cove import AsyncSandbox, Limits

pytestmark = [pytest.mark.anyio, pytest.mark.alone]

LIMITS = Limits(memory=192 << 20, pids=100, cpus=0.5, disk=64 << 20, inodes=4000, open_files=512)
FORK_BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
THREAD_BOMB = """
import threading, time
while True:
    try: threading.Thread(target=time.sleep, args=(1000,)).start()
    except RuntimeError: pass
"""
MALLOC_BOMB = "x = []\nwhile True: x.append(bytearray(1 << 20))"
MEMFD_BOMB = "import os\nf = os.memfd_create('x')\nwhile True: os.write(f, bytes(1 << 20))"
SHM_BOMB = "import os\nwhile True:\n    with open('/dev/shm/x', 'ab') as f: f.write(bytes(1 << 20))"
PIPE_BOMB = """
import fcntl, os
pipes = []
while True:
    try:
        read, write = os.pipe2(os.O_NONBLOCK)
        pipes.append((read, write))
        fcntl.fcntl(write, 1031, 1 << 20)
        os.write(write, bytes(1 << 20))
    except OSError: pass
"""
DISK_FILL = "n = 0\nwhile True:\n    n += 1\n    open(f'/workspace/{n}', 'wb').write(bytes(8 << 20))"
INODE_FILL = "n = 0\nwhile True:\n    n += 1\n    open(f'/tmp/{n}', 'w').close()"
CPU_BURN = "import os\nfor _ in range(8): os.fork()\nwhile True: pass"
FLOOD = "import os\nwhile True: os.write(1, b'x' * 65536)"
BOMBS = {
    "fork bomb": FORK_BOMB,
    "thread bomb": THREAD_BOMB,
    "memory by malloc": MALLOC_BOMB,
    "memory by a file without a name": MEMFD_BOMB,
    "memory by files in memory": SHM_BOMB,
    "memory by pipes": PIPE_BOMB,
    "disk": DISK_FILL,
    "inodes": INODE_FILL,
    "processor": CPU_BURN,
    "output": FLOOD,
}
CALLS = 40
SECONDS = 2.0


async def exec_p95(sandbox: AsyncSandbox) -> float:
    """Of calls with a pause in between, as a user makes them."""
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        assert (await sandbox.exec(["true"])).ok
        times.append(time.perf_counter() - began)
        await asyncio.sleep(0.01)
    return sorted(times)[int(CALLS * 0.95) - 1]


@asynccontextmanager
async def victim_and_offender() -> AsyncIterator[tuple[AsyncSandbox, AsyncSandbox]]:
    async with AsyncSandbox.create() as victim, AsyncSandbox.create(limits=LIMITS) as offender:
        held = set((await offender.info()).limits_enforced)
        if not {"memory", "pids", "cpus"} <= held or (await offender.info()).warnings:
            pytest.skip("needs control groups for memory, pids and cpus, and root for disks")
        yield victim, offender


@pytest.mark.parametrize("bomb", BOMBS)
async def test_a_bomb_is_limited_and_another_sandbox_hardly_notices(bomb: str) -> None:
    async with victim_and_offender() as (victim, offender):
        await exec_p95(victim)
        quiet = await exec_p95(victim)
        exploding = asyncio.create_task(offender.exec(["python3", "-c", BOMBS[bomb]], timeout=SECONDS, max_output=1000))
        await asyncio.sleep(0.3)
        loud = await exec_p95(victim)
        result = await exploding
        assert not result.ok
        # A shared machine has pauses of its own: below this nobody notices.
        assert loud < max(3 * quiet, 0.03), f"{quiet * 1000:.1f} ms in quiet, {loud * 1000:.1f} ms beside it"
        assert (await victim.exec("echo alive")).stdout == "alive\n"


@pytest.mark.parametrize("bomb", ["memory by malloc", "memory by a file without a name"])
async def test_who_uses_up_memory_is_told_so(bomb: str) -> None:
    async with victim_and_offender() as (_, offender):
        result = await offender.exec(["python3", "-c", BOMBS[bomb]], timeout=30)
        assert result.outcome == "out_of_memory"
        usage = await offender.usage()
        assert (usage.memory_bytes or 0) < 192 << 20
        assert (usage.memory_kills or 0) >= 1


async def test_after_a_fork_bomb_the_sandbox_works_again() -> None:
    async with victim_and_offender() as (_, offender):
        result = await offender.exec(["python3", "-c", FORK_BOMB], timeout=2)
        assert result.timed_out
        assert (await offender.exec("echo alive", timeout=30)).stdout == "alive\n"
        assert ((await offender.usage()).pids or 0) < 20


async def test_a_disk_that_is_full_is_emptied_by_its_own_code_and_by_the_file_api() -> None:
    async with victim_and_offender() as (_, offender):
        full = await offender.exec(["python3", "-c", DISK_FILL], timeout=30)
        assert "No space left" in full.stderr
        assert (await offender.exec("rm /workspace/1")).ok
        await offender.files.remove("/workspace/2")
        await offender.files.write("/workspace/new", b"x" * 1000)
        assert (await offender.exec("wc -c < /workspace/new")).stdout == "1000\n"


async def test_a_hundred_thousand_files_are_made_counted_and_removed() -> None:
    make = """
import os
for folder in range(100):
    os.mkdir(f'/workspace/{folder}')
    for number in range(1000):
        os.close(os.open(f'/workspace/{folder}/{number}', os.O_CREAT))
"""
    async with AsyncSandbox.create() as sandbox, AsyncSandbox.create() as victim:
        assert (await sandbox.exec(["python3", "-c", make], timeout=100)).ok
        assert (await sandbox.usage()).files == 100_100
        destroying = asyncio.create_task(sandbox.destroy())
        assert (await victim.exec("echo alive")).stdout == "alive\n"
        await destroying


async def test_offenders_one_beside_the_other_are_all_limited() -> None:
    bombs = [FORK_BOMB, MALLOC_BOMB, FLOOD, DISK_FILL]
    async with victim_and_offender() as (victim, first):
        others = [await AsyncSandbox.create(limits=LIMITS) for _ in bombs[1:]]
        try:
            results = await asyncio.gather(
                *(
                    each.exec(["python3", "-c", bomb], timeout=SECONDS, max_output=1000)
                    for each, bomb in zip([first, *others], bombs, strict=True)
                ),
                exec_p95(victim),
            )
            assert not any(result.ok for result in results[:-1])
            assert (await victim.exec("echo alive")).stdout == "alive\n"
        finally:
            await asyncio.gather(*(each.destroy() for each in others))


async def test_a_server_stays_up_whatever_its_sandboxes_do(shared_server: Server) -> None:
    where = address(shared_server)
    async with AsyncExitStack() as stack:
        victim = await stack.enter_async_context(AsyncSandbox.create(**where))
        offenders = [await stack.enter_async_context(AsyncSandbox.create(**where, limits=LIMITS)) for _ in BOMBS]
        if not {"memory", "pids", "cpus"} <= set((await offenders[0].info()).limits_enforced):
            pytest.skip("needs control groups for memory, pids and cpus")
        results = await asyncio.gather(
            *(
                offender.exec(["python3", "-c", bomb], timeout=SECONDS, max_output=1000)
                for offender, bomb in zip(offenders, BOMBS.values(), strict=True)
            ),
            exec_p95(victim),
        )
        assert not any(result.ok for result in results[:-1])
        for sandbox in (victim, *offenders):
            assert (await sandbox.exec("echo alive")).stdout == "alive\n"
        assert len(await AsyncSandbox.list(**where)) >= len(BOMBS) + 1
