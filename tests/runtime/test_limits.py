"""Limits hold for the offender, and `usage` says what is used."""

import asyncio

import pytest

from cove import AsyncSandbox, Limits

pytestmark = pytest.mark.anyio

MEMORY = Limits(memory=128 << 20)
EATER = "x = bytearray(400 << 20)"


async def needs(sandbox: AsyncSandbox, *names: str) -> None:
    """Skip where the machine has no control group for these."""
    info = await sandbox.info()
    missing = [name for name in names if name not in info.limits_enforced or any(name in w for w in info.warnings)]
    if missing:
        pytest.skip(f"needs control groups for {', '.join(missing)}: {'; '.join(info.warnings)}")


async def test_who_uses_up_the_memory_is_told_so_and_nobody_else() -> None:
    async with AsyncSandbox.create(limits=MEMORY) as sandbox:
        await needs(sandbox, "memory")
        bystander = await sandbox.start_process("read; echo still here", stdin=True)
        result = await sandbox.exec(["python3", "-c", EATER], timeout=60)
        assert (result.outcome, result.exit_code, result.signal) == ("out_of_memory", 137, 9)
        await bystander.write_stdin(b"\n")
        assert (await bystander.output()).stdout == "still here\n"
        assert (await sandbox.exec("echo alive")).stdout == "alive\n"


async def test_a_shell_whose_program_used_up_the_memory_says_so() -> None:
    async with AsyncSandbox.create(limits=MEMORY) as sandbox:
        await needs(sandbox, "memory")
        result = await sandbox.exec(f"python3 -c '{EATER}'; exit $?", timeout=60)
        assert (result.outcome, result.exit_code) == ("out_of_memory", 137)
        process = await sandbox.start_process(["python3", "-c", EATER])
        await process.wait(60)
        assert (process.outcome, process.status, process.exit_code) == ("out_of_memory", "killed", 137)


async def test_a_session_tells_who_used_up_the_memory_and_goes_on() -> None:
    async with AsyncSandbox.create(limits=MEMORY) as sandbox:
        await needs(sandbox, "memory")
        session = await sandbox.create_session()
        await session.exec("x=kept")
        result = await session.exec(f"python3 -c '{EATER}'", timeout=60)
        assert (result.outcome, result.exit_code) == ("out_of_memory", 137)
        assert (await session.exec("echo $x")).stdout == "kept\n"
        assert (await session.exec("(exit 137)")).outcome in ("exited", "out_of_memory")
        await asyncio.sleep(0.5)  # a rise counts for a quarter of a second
        assert (await session.exec("(exit 137)")).outcome == "exited"


async def test_a_kill_that_has_another_reason_is_no_lack_of_memory() -> None:
    async with AsyncSandbox.create(limits=MEMORY) as sandbox:
        await needs(sandbox, "memory")
        assert (await sandbox.exec("kill -9 $$")).outcome == "signaled"
        survivor = await sandbox.exec(f"python3 -c '{EATER}'; true", timeout=60)
        assert survivor.ok
        process = await sandbox.start_process(f"python3 -c '{EATER}'; exit 3")
        assert (await process.wait(60)).outcome == "exited"
        await asyncio.sleep(0.5)  # a rise counts for a quarter of a second
        assert (await sandbox.exec("kill -9 $$")).outcome == "signaled"
        killed = await sandbox.start_process("sleep 100")
        await killed.kill("KILL")
        assert (await killed.wait(30)).outcome == "killed"


async def test_several_that_are_ended_at_once_are_all_told() -> None:
    async with AsyncSandbox.create(limits=MEMORY) as sandbox:
        await needs(sandbox, "memory")
        results = await asyncio.gather(*(sandbox.exec(["python3", "-c", EATER], timeout=60) for _ in range(4)))
        assert {result.outcome for result in results} == {"out_of_memory"}


async def test_the_least_limits_are_enough_for_a_command() -> None:
    async with AsyncSandbox.create(limits=Limits(memory=16 << 20, pids=4, open_files=64)) as sandbox:
        await needs(sandbox, "memory", "pids")
        assert (await sandbox.exec("echo started")).stdout == "started\n"


async def test_commands_go_before_the_agent_does() -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec(
            "cat /proc/self/oom_score_adj /proc/1/oom_score_adj; sh -c 'cat /proc/self/oom_score_adj'"
        )
        own, agent, below = map(int, result.stdout.split())
        assert own == below == 1000 > agent
        session = await sandbox.create_session()
        assert (await session.exec("cat /proc/$$/oom_score_adj")).stdout == "1000\n"


@pytest.mark.parametrize("limits", [Limits(), Limits(memory=256 << 20, cpus=1.0, pids=50)])
async def test_usage_says_what_is_used(limits: Limits) -> None:
    async with AsyncSandbox.create(limits=limits) as sandbox:
        before = await sandbox.usage()
        process = await sandbox.start_process(
            [
                "python3",
                "-c",
                "x = bytearray(b'1') * (64 << 20)\nfor _ in range(3000000): pass\nprint(1, flush=True); input()",
            ],
            stdin=True,
        )
        await process.wait_for_log("1", timeout=60)
        await sandbox.exec("head -c 5M /dev/urandom > /workspace/a; touch ~/b /tmp/c; mkdir /tmp/d")
        after = await sandbox.usage()
        await process.kill()
    assert before.memory_bytes is not None
    assert after.memory_bytes is not None
    assert after.memory_bytes - before.memory_bytes > 50 << 20
    assert after.cpu_seconds is not None
    assert before.cpu_seconds is not None
    assert after.cpu_seconds - before.cpu_seconds > 0.05
    assert (after.pids or 0) > (before.pids or 0) >= 1
    assert before.disk_bytes is not None
    assert 5 << 20 <= (after.disk_bytes or 0) - before.disk_bytes < 6 << 20
    assert (after.files or 0) - (before.files or 0) == 4
    assert after.memory_kills in (None, 0)


FORKS = """
import os, time
count = 0
try:
    while count < 500:
        if not os.fork(): time.sleep(100)
        count += 1
except OSError: print(count)
"""


async def test_pids_are_limited_with_or_without_control_groups() -> None:
    async with AsyncSandbox.create(limits=Limits(pids=40)) as sandbox:
        assert "pids" in (await sandbox.info()).limits_enforced
        result = await sandbox.exec(["python3", "-c", FORKS], timeout=60)
        assert 10 < int(result.stdout) < 40


async def test_memory_is_limited_for_each_process_where_there_is_no_control_group() -> None:
    async with AsyncSandbox.create(limits=MEMORY) as sandbox:
        info = await sandbox.info()
        if not any("memory holds for each process" in warning for warning in info.warnings):
            pytest.skip("this machine has a control group for memory")
        result = await sandbox.exec(["python3", "-c", EATER], timeout=60)
    assert "MemoryError" in result.stderr


async def test_open_files_are_limited() -> None:
    async with AsyncSandbox.create(limits=Limits(open_files=100)) as sandbox:
        result = await sandbox.exec(["python3", "-c", "f = [open('/dev/null') for _ in range(200)]"])
    assert "Too many open files" in result.stderr


async def test_the_processor_is_shared_as_the_limit_says() -> None:
    burn = "import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
    async with AsyncSandbox.create(limits=Limits(cpus=0.25)) as sandbox:
        await needs(sandbox, "cpus")
        result = await sandbox.exec(["python3", "-c", burn], timeout=60)
    assert float(result.stdout) < 1.0
