"""The agent in its jail: what the code beside it can do to it."""

import asyncio
import os
import signal

import pytest
from support.inside import commands_inside, pids_of_launchers
from support.leaks import process_table

from cove import AsyncSandbox
from cove.errors import CoveError, SandboxUnavailable

pytestmark = pytest.mark.anyio

# Python does not let a program catch the two signals glibc keeps for itself.
UNCATCHABLE = {signal.SIGKILL, signal.SIGSTOP, 32, 33}


async def test_no_signal_from_inside_reaches_the_agent() -> None:
    async with AsyncSandbox.create() as sandbox:
        for number in range(1, 65):
            result = await sandbox.exec(f"kill -{number} 1; echo sent")
            assert result.stdout == "sent\n"
        await sandbox.exec("for i in {1..200}; do kill -CHLD 1; kill -INT 1; done")
        assert (await sandbox.exec("cat /proc/1/comm; echo ok")).stdout.endswith("ok\n")


async def test_no_catchable_signal_disturbs_a_launcher() -> None:
    async with AsyncSandbox.create() as sandbox:
        for number in set(range(1, 65)) - UNCATCHABLE:
            result = await sandbox.exec(f"kill -{number} $PPID; echo sent; exit 3", timeout=30)
            assert (result.stdout, result.outcome, result.exit_code) == ("sent\n", "exited", 3), number


async def test_a_command_cannot_read_or_trace_the_agent() -> None:
    async with AsyncSandbox.create() as sandbox:
        for pid in ("1", "$PPID"):
            for name in ("environ", "mem", "maps", "fd/3", "cwd/x", "root/x"):
                result = await sandbox.exec(f"cat /proc/{pid}/{name}")
                assert result.exit_code == 1
                assert "Permission denied" in result.stderr


@pytest.mark.parametrize("number", [9, 32, 33])
async def test_a_launcher_killed_under_its_command_ends_the_command(number: int) -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec(f"echo before; setsid sleep 1000 & kill -{number} $PPID; sleep 2000", timeout=30)
        assert (result.outcome, result.exit_code, result.signal) == ("signaled", 137, 9)
        assert result.stdout == "before\n"
        assert await commands_inside(sandbox) == []
        assert (await sandbox.exec("echo on")).stdout == "on\n"


async def test_parked_launchers_killed_by_a_command_are_replaced() -> None:
    async with AsyncSandbox.create() as sandbox:
        for _ in range(10):
            await asyncio.gather(*(sandbox.exec("true") for _ in range(4)))
            victims = await pids_of_launchers(sandbox)
            killing = await sandbox.exec(f"kill -9 {' '.join(map(str, victims))} 2>/tmp/errors", timeout=30)
            assert killing.outcome in ("exited", "signaled")
            results = [await sandbox.exec("echo on", timeout=30) for _ in range(len(victims) + 1)]
            assert {result.stdout for result in results} == {"on\n"}
        assert len(await pids_of_launchers(sandbox)) < 12


async def test_a_launcher_stopped_under_its_command_ends_the_command() -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec("echo before; setsid sleep 1000 & kill -STOP $PPID; sleep 2000")
        assert (result.outcome, result.exit_code, result.stdout) == ("signaled", 137, "before\n")
        assert await commands_inside(sandbox) == []


async def test_a_command_that_kills_every_launcher_it_sees_harms_only_its_sandbox() -> None:
    async with AsyncSandbox.create() as sandbox, AsyncSandbox.create() as bystander:
        killer = "while :; do for p in $(pgrep -f init.pyc); do [ $p != 1 -a $p != $PPID ] && kill -9 $p; done; done"
        hostile = asyncio.ensure_future(sandbox.exec(killer, timeout=3))
        for _ in range(60):
            try:
                result = await sandbox.exec("echo on", timeout=2)
            except CoveError:
                break
            assert result.outcome in ("exited", "signaled", "timed_out")
        assert (await bystander.exec("echo on")).stdout == "on\n"
        assert (await hostile).outcome in ("timed_out", "lost", "signaled")


async def test_an_agent_killed_from_outside_is_an_infrastructure_failure() -> None:
    async with AsyncSandbox.create() as sandbox, AsyncSandbox.create() as bystander:
        call = asyncio.ensure_future(sandbox.exec("echo before; echo > /tmp/up; sleep 1000"))
        await sandbox.exec("until [ -e /tmp/up ]; do :; done", timeout=30)
        os.kill(init_of(sandbox), signal.SIGKILL)
        result = await asyncio.wait_for(call, 30)
        assert (result.outcome, result.exit_code, result.is_infrastructure_failure) == ("lost", None, True)
        assert result.stdout == "before\n"
        with pytest.raises(SandboxUnavailable, match="lost"):
            await sandbox.exec("true")
        assert (await sandbox.info()).status == "lost"
        assert (await bystander.exec("echo on")).stdout == "on\n"
        await sandbox.destroy()
        assert sandbox.id not in [info.id for info in await AsyncSandbox.list()]


def init_of(sandbox: AsyncSandbox) -> int:
    """The sandbox's PID 1 by its number on the host: the only child of bubblewrap."""
    jail = sandbox._jail.pid  # type: ignore[attr-defined]
    (pid,) = [pid for pid, (_, parent) in process_table().items() if parent == jail]
    return pid


async def test_bubblewrap_killed_from_outside_ends_everything_inside() -> None:
    async with AsyncSandbox.create() as sandbox:
        call = asyncio.ensure_future(sandbox.exec("touch runs; sleep 1000"))
        await sandbox.exec("until [ -e runs ]; do sleep 0.01; done")
        os.kill(sandbox._jail.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        result = await asyncio.wait_for(call, 30)
        assert result.outcome == "lost"
