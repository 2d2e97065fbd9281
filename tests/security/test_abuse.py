"""Code that uses up whatever it can: it is stopped or limited, and another sandbox hardly notices."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from support.servers import Server
from support.serving import address

from bench import bombs
from bench.bombs import BOMBS, LIMITS, exec_p95, exploding
from bench.harness import Skipped
from cove import AsyncSandbox, ExecResult
from cove.core.limits import MOST_PROCESSES

pytestmark = [pytest.mark.anyio, pytest.mark.alone]

CALLS = 60
PAUSE = 0.01
TRIES = 3
MOST_RATIO = 3
SECONDS = 2.0


@asynccontextmanager
async def victim_and_offender(**where: str) -> AsyncIterator[tuple[AsyncSandbox, AsyncSandbox]]:
    try:
        async with bombs.victim_and_offender(**where) as pair:
            yield pair
    except Skipped as reason:
        pytest.skip(str(reason))


async def exec_mean(sandbox: AsyncSandbox) -> float:
    """The mean of calls with a pause in between: the slowest tenth says more about the scheduler than about us."""
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        assert (await sandbox.exec(["true"])).ok
        times.append(time.perf_counter() - began)
        await asyncio.sleep(PAUSE)
    return statistics.mean(times)


@pytest.mark.parametrize("bomb", BOMBS)
async def test_another_sandbox_hardly_notices_a_bomb(bomb: str, shared_server: Server) -> None:
    async with victim_and_offender(**address(shared_server)) as (victim, offender):
        for _ in range(TRIES):  # a shared machine has pauses of its own
            quiet = await exec_mean(victim)
            async with exploding(offender, BOMBS[bomb]):
                loud = await exec_mean(victim)
            if loud < MOST_RATIO * quiet:
                break
        else:
            pytest.fail(f"{quiet * 1000:.1f} ms in quiet, {loud * 1000:.1f} ms beside it")
        assert (await victim.exec("echo alive")).stdout == "alive\n"


@pytest.mark.parametrize("bomb", BOMBS)
async def test_a_bomb_is_limited(bomb: str) -> None:
    async with victim_and_offender() as (_, offender):
        result = await offender.exec(["python3", "-c", BOMBS[bomb]], timeout=SECONDS, max_output=1000)
        assert not result.ok
        usage = await offender.usage()
        assert (usage.memory_bytes or 0) <= (LIMITS.memory or 0)
        assert (await offender.exec("rm -rf /workspace/* /tmp/* /dev/shm/*; echo alive")).stdout == "alive\n"


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
        result = await offender.exec(["python3", "-c", BOMBS["a fork bomb"]], timeout=2)
        assert result.timed_out
        assert (await offender.exec("echo alive", timeout=30)).stdout == "alive\n"
        assert ((await offender.usage()).pids or 0) < 20


async def test_a_fork_bomb_ends_also_in_a_sandbox_without_limits() -> None:
    count = "import os, time\nn = 0\nwhile True:\n"
    count += "    try:\n        if not os.fork(): time.sleep(100)\n        n += 1\n    except OSError: break\nprint(n)"
    async with AsyncSandbox.create() as victim, AsyncSandbox.create() as offender:
        forked = await offender.exec(["python3", "-c", count], timeout=100)
        assert 0.9 * MOST_PROCESSES < int(forked.stdout) < MOST_PROCESSES
        assert (await victim.exec("echo alive")).stdout == "alive\n"
    async with AsyncSandbox.create() as offender:
        assert (await offender.exec(["python3", "-c", BOMBS["a fork bomb"]], timeout=SECONDS)).timed_out
        assert (await offender.exec("echo alive", timeout=30)).stdout == "alive\n"


async def test_a_disk_that_is_full_is_emptied_by_its_own_code_and_by_the_file_api() -> None:
    async with victim_and_offender() as (_, offender):
        full = await offender.exec(["python3", "-c", BOMBS["a full disk"]], timeout=30)
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
    programs = [BOMBS[name] for name in ("a fork bomb", "memory by malloc", "output", "a full disk")]
    async with victim_and_offender() as (victim, first):
        others = [await AsyncSandbox.create(limits=LIMITS) for _ in programs[1:]]
        try:
            results = await asyncio.gather(
                *(
                    each.exec(["python3", "-c", bomb], timeout=SECONDS, max_output=1000)
                    for each, bomb in zip([first, *others], programs, strict=True)
                ),
                exec_p95(victim, CALLS),
            )
            assert not any(result.ok for result in results if isinstance(result, ExecResult))
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
            exec_p95(victim, CALLS),
        )
        assert not any(result.ok for result in results if isinstance(result, ExecResult))
        for sandbox in (victim, *offenders):
            assert (await sandbox.exec("echo alive")).stdout == "alive\n"
        assert len(await AsyncSandbox.list(**where)) >= len(BOMBS) + 1
