"""Callers that go away and sessions that are deleted, wherever a call was suspended."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from support.inside import commands_inside
from support.servers import eventually

from cove import AsyncSandbox, SessionNotFound, SessionTerminated
from cove.api import Session
from cove.runtime.session import Session as RunningSession

pytestmark = pytest.mark.anyio

ENV = {"A": "call", "B": None}


async def cancel_after(turns: int, work: Coroutine[object, object, object]) -> bool:
    """Cancel the work after that many turns of the loop; True if it was still running."""
    task = asyncio.ensure_future(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    was_running = not task.done()
    task.cancel()
    await asyncio.wait([task])
    return was_running


async def check_unchanged(session: Session) -> None:
    result = await session.exec("echo $x $A $B $PWD")
    assert result.stdout == "1 mine too /usr\n"
    assert await session.cwd() == "/usr"
    assert (await session.env())["A"] == "mine"


async def test_a_call_cancelled_at_any_turn_leaves_the_session_as_it_was() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session(env={"A": "mine", "B": "too"})
        await session.exec("x=1; cd /usr")
        for turns in (*range(12), 15, 20, 30, 50, 100, 200):
            for timeout in (None, 1000):
                work = session.exec("A=command; sleep 100; x=2", cwd="/tmp", env=ENV, timeout=timeout)
                assert await cancel_after(turns, work)
                await check_unchanged(session)
        assert await commands_inside(sandbox) == ["/bin/bash -s"]


async def test_changes_and_processes_cancelled_at_any_turn_leave_a_session_that_answers() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session(env={"A": "mine", "B": "too"})
        await session.exec("x=1; cd /usr")
        for turns in range(25):
            await cancel_after(turns, session.set_env({"C": str(turns)}))
            await cancel_after(turns, session.start_process("sleep 100"))
            await check_unchanged(session)
        await sandbox.kill_all_processes("KILL")


@pytest.mark.parametrize("size", [1, 300_000])
async def test_what_a_cancelled_process_would_have_started_from_is_not_what_the_next_one_does(size: int) -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec(f"large=$(printf %{size}s)")
        for turns in range(25):
            await session.exec(f"x=before-{turns}")
            await cancel_after(turns, session.start_process("sleep 100"))
            await session.exec(f"x=after-{turns}")
            process = await session.start_process('echo "$x ${#large}"')
            assert (await process.output()).stdout == f"after-{turns} {size}\n"
        await sandbox.kill_all_processes("KILL")


async def test_a_cancelled_call_that_was_still_queued_does_not_run() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await sandbox.exec("mkfifo /tmp/gate")
        first = asyncio.ensure_future(session.exec("cat /tmp/gate"))
        second = asyncio.ensure_future(session.exec("touch /tmp/second"))
        third = asyncio.ensure_future(session.exec("ls /tmp/second"))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        await sandbox.exec("echo open > /tmp/gate")
        assert (await first).stdout == "open\n"
        assert (await third).exit_code == 2


async def test_a_cancelled_call_that_ran_is_ended_with_all_it_started() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await sandbox.exec("mkfifo /tmp/f")
        command = "x=1; sleep 1000 & setsid sleep 1001 & echo > /tmp/f; sleep 1002; touch /tmp/ran"
        call = asyncio.ensure_future(session.exec(command))
        await sandbox.exec("read < /tmp/f")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await session.exec("echo $x; ls /tmp/ran")).stdout == "1\n"
        assert await commands_inside(sandbox) == ["/bin/bash -s"]


async def test_a_call_cancelled_while_its_timeout_is_handled_leaves_the_state() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session(env={"A": "mine", "B": "too"})
        await session.exec("x=1; cd /usr")
        for pause in (0.0, 0.1, 0.4, 0.75, 0.8, 0.81, 0.82):
            command = "trap '' INT TERM RTMAX-7; while :; do :; done"
            call = asyncio.ensure_future(session.exec(command, timeout=0.05, env=ENV, cwd="/tmp"))
            await asyncio.wait([call], timeout=0.05 + pause)
            call.cancel()
            await asyncio.wait([call])
            await check_unchanged(session)
        assert await commands_inside(sandbox) == ["/bin/bash -s"]


@pytest.mark.parametrize("change", [{}, {"env": ENV}])
async def test_a_shell_replaced_after_a_cancelled_call_is_told_with_the_next_result(change: dict[str, Any]) -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=1")
        await (await session.start_process("true")).wait()  # it takes a snapshot
        await sandbox.exec("mkfifo /tmp/f")
        call = asyncio.ensure_future(session.exec("trap '' INT TERM RTMAX-7; echo > /tmp/f; while :; do :; done"))
        await sandbox.exec("read < /tmp/f")
        call.cancel()
        await asyncio.wait([call])
        assert await cancel_after(1, session.exec("echo never"))
        result = await session.exec("echo $x", **change)
        assert (result.stdout, result.session_restarted, result.restored_command) == ("1\n", True, "x=1")
        result = await session.exec("echo $x")
        assert (result.stdout, result.session_restarted, result.restored_command) == ("1\n", False, None)


async def test_a_creation_cancelled_at_any_turn_leaves_nothing() -> None:
    async with AsyncSandbox.create() as sandbox:
        turns = 0
        while await cancel_after(turns, sandbox.create_session(id="s")):
            assert await sandbox.list_sessions() == []
            turns = turns + 1 if turns < 20 else turns * 5 // 4
        await sandbox.delete_session("s")
        assert await commands_inside(sandbox) == []
        assert list(shells(sandbox).iterdir()) == []


def shells(sandbox: AsyncSandbox) -> Path:
    return sandbox._place.shell  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize(
    "command",
    [
        "sleep 1000",
        "trap '' INT TERM HUP; while :; do sleep 1000; done",
        "sleep 1000 & setsid sleep 1001 & (sleep 1002 &); yes",
        "while :; do :; done",
    ],
)
async def test_deleting_a_session_ends_its_running_and_its_queued_commands(command: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session(id="s")
        await session.exec("sleep 2000 & setsid sleep 2001 > /dev/null 2>&1 & disown -a")
        process = await session.start_process("sleep 2002 & setsid sleep 2003")
        await sandbox.exec("mkfifo /tmp/f")
        running = asyncio.ensure_future(session.exec(f"echo out; echo > /tmp/f; {command}"))
        queued = [asyncio.ensure_future(call) for call in (session.exec("touch /tmp/q"), session.start_process("true"))]
        await sandbox.exec("read < /tmp/f")
        await session.delete()
        with pytest.raises(SessionTerminated) as caught:
            await running
        assert caught.value.output.startswith("out\n")
        for call in queued:
            with pytest.raises(SessionNotFound):
                await call
        assert (await process.wait(10)).outcome == "killed"
        assert await commands_inside(sandbox) == []
        assert list(shells(sandbox).iterdir()) == []
        assert (await sandbox.exec("ls /tmp/q")).stdout == ""
        assert await sandbox.list_sessions() == []


async def test_deleting_a_session_at_any_turn_of_a_call_leaves_nothing() -> None:
    async with AsyncSandbox.create() as sandbox:
        for turns in (*range(10), 20, 40):
            for call in ("exec", "process", "set_env", "snapshot"):
                session = await sandbox.create_session(id="s")
                work = {
                    "exec": lambda s=session: s.exec("sleep 1000", cwd="/tmp", env={"A": "1"}, timeout=1000),
                    "process": lambda s=session: s.start_process("sleep 1000"),
                    "set_env": lambda s=session: s.set_env({"A": "1"}),
                    "snapshot": lambda s=session: s._idle.snapshot_when_free(),
                }[call]()
                task = asyncio.ensure_future(work)
                for _ in range(turns):
                    await asyncio.sleep(0)
                await asyncio.gather(session.delete(), session.delete(), sandbox.list_sessions())
                await asyncio.gather(task, return_exceptions=True)
        assert await commands_inside(sandbox) == []
        assert list(shells(sandbox).iterdir()) == []


async def test_destroying_the_sandbox_ends_calls_in_every_state() -> None:
    for pause in (0.0, 0.06, 0.3, 0.9):
        sandbox = await AsyncSandbox.create()
        session = await sandbox.create_session()
        calls = [
            asyncio.ensure_future(session.exec("trap '' INT TERM RTMAX-7; while :; do :; done", timeout=0.05)),
            asyncio.ensure_future(session.exec("echo queued")),
            asyncio.ensure_future(session.set_env({"A": "1"})),
            asyncio.ensure_future(sandbox.create_session()),
        ]
        await asyncio.wait(calls[:1], timeout=pause)
        await sandbox.destroy()
        done, pending = await asyncio.wait(calls, timeout=10)
        assert not pending
        for call in done:
            call.exception()


async def test_a_session_whose_first_use_after_a_start_was_cancelled_comes_back_after_the_next() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        assert isinstance(session, RunningSession)
        await session.exec("x=kept")
        for _ in range(2):
            await sandbox.restart()
            waking = asyncio.ensure_future(session.exec("true"))
            while session._shell._waking.is_done or not session._shell._waking.is_started:
                await asyncio.sleep(0)
            waking.cancel()
            await asyncio.wait([waking])
            await eventually(lambda: not session._shell.is_sleeping)  # its shell starts all the same
            await sandbox.restart()
            assert (await session.exec("echo $x")).stdout == "kept\n"
