"""A started process: its handle, its states, how it ends, and who can find it."""

import asyncio
import gc
import os
import signal
import weakref
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from support.inside import commands_inside

from cove import AsyncSandbox
from cove.errors import (
    CoveError,
    ProcessAlreadyExists,
    ProcessNotFound,
    ProcessWaitTimeout,
    SandboxDestroyed,
    SpawnFailed,
    ValidationFailed,
)
from cove.model import Exit, Outcome, Output, ProcessStatus
from cove.runtime import processes

pytestmark = pytest.mark.anyio


async def test_a_handle_tells_who_the_process_is_and_how_it_ended() -> None:
    async with AsyncSandbox.create() as sandbox:
        before = datetime.now(UTC)
        process = await sandbox.start_process("echo $$; read; exit 3", id="worker", stdin=True)
        assert (process.id, process.command, process.session_id) == ("worker", "echo $$; read; exit 3", None)
        assert (process.status, process.outcome) == (ProcessStatus.RUNNING, None)
        assert (process.exit_code, process.signal, process.ended_at) == (None, None, None)
        assert (await process.wait_for_log(str(process.pid))).line == str(process.pid)
        await process.close_stdin()
        end = await process.wait()
        assert (end.outcome, end.exit_code, end.signal) == (Outcome.EXITED, 3, None)
        assert (process.outcome, process.exit_code, process.signal) == (Outcome.EXITED, 3, None)
        assert process.status is ProcessStatus.FAILED
        assert process.ended_at is not None
        assert before <= process.started_at <= process.ended_at <= datetime.now(UTC)
        assert await process.refresh() is process


@pytest.mark.parametrize(
    ("command", "status", "outcome", "exit_code", "number"),
    [
        ("exit 0", "completed", "exited", 0, None),
        ("exit 7", "failed", "exited", 7, None),
        ("exit 143", "failed", "exited", 143, None),
        ("kill -SEGV $$", "killed", "signaled", 139, signal.SIGSEGV),
        ("kill -KILL $$", "killed", "signaled", 137, signal.SIGKILL),
        ("cove-no-such-program", "failed", "exited", 127, None),
        (["cove-no-such-program"], "failed", "exited", 127, None),
        (["/etc/passwd"], "failed", "exited", 126, None),
    ],
)
async def test_every_end_has_its_status_outcome_and_exit_code(
    command: str | list[str], status: str, outcome: str, exit_code: int, number: int | None
) -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process(command)
        end = await process.wait()
        assert (process.status, end.outcome, end.exit_code, end.signal) == (status, outcome, exit_code, number)
        assert [event async for event in process.logs()][-1] == Exit(
            end.outcome, exit_code, number, [event async for event in process.logs()][-1].cursor
        )


async def test_a_directory_that_is_not_there_is_a_process_that_ended_with_1_and_says_why() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("echo never", cwd="/no/such/place")
        result = await process.output()
        assert (result.exit_code, result.stdout, process.status) == (1, "", ProcessStatus.FAILED)
        assert "/no/such/place" in result.stderr


async def test_a_timeout_ends_the_tree_and_keeps_what_was_printed() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("trap '' TERM; echo so far; setsid sleep 1000 & sleep 1000", timeout=0.2)
        end = await process.wait()
        assert (end.outcome, end.exit_code, process.status) == (Outcome.TIMED_OUT, 124, ProcessStatus.KILLED)
        assert (await process.output()).stdout == "so far\n"
        assert await commands_inside(sandbox) == []


async def test_a_timeout_does_not_touch_a_process_that_ends_in_time() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("exit 4", timeout=60)
        assert (await process.wait()).outcome is Outcome.EXITED


@pytest.mark.parametrize("grace", [0, 0.1, 5])
async def test_a_longer_grace_does_not_postpone_a_kill_under_way(grace: float) -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("trap '' TERM; echo up; while :; do sleep 1000; done")
        await process.wait_for_log("up")
        async with asyncio.timeout(20):
            await asyncio.gather(process.terminate(grace=0.1), process.terminate(grace=grace or 1000))
        assert process.outcome is Outcome.KILLED


async def test_killed_means_that_the_caller_sent_the_signal_it_died_of() -> None:
    async with AsyncSandbox.create() as sandbox:
        term = await sandbox.start_process("sleep 1000")
        await term.kill()
        end = await term.wait()
        assert (end.outcome, end.exit_code, end.signal) == (Outcome.KILLED, 143, signal.SIGTERM)
        crash = await sandbox.start_process(
            "trap 'echo told' USR1; echo up; while [ ! -e go ]; do sleep 0.01; done; kill -SEGV $$"
        )
        await crash.wait_for_log("up")
        await crash.kill("USR1")
        await crash.wait_for_log("told")
        await sandbox.exec("touch go")
        end = await crash.wait()
        assert (end.outcome, end.signal) == (Outcome.SIGNALED, signal.SIGSEGV)


async def test_a_process_that_leaves_by_itself_when_terminated_has_exited() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("trap 'echo bye; exit 9' TERM; echo up; while :; do sleep 0.01; done")
        await process.wait_for_log("up")
        await process.terminate()
        assert (process.outcome, process.exit_code, process.status) == (Outcome.EXITED, 9, ProcessStatus.FAILED)
        assert (await process.output()).stdout.endswith("bye\n")


async def test_an_ended_process_does_not_mind_being_killed() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("exit 5")
        await process.wait()
        for name in ("TERM", "KILL", 9, "SIGINT"):
            await process.kill(name)
            await sandbox.kill_process(process.id, name)
        await process.terminate()
        assert (process.status, process.outcome, process.exit_code) == (ProcessStatus.FAILED, Outcome.EXITED, 5)


async def test_kill_with_kill_returns_when_nothing_is_left() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("trap '' TERM INT; setsid sleep 1000 & sleep 1000 & echo up; wait")
        await process.wait_for_log("up")
        await process.kill("KILL")
        assert (process.status, process.exit_code) == (ProcessStatus.KILLED, 137)
        assert await commands_inside(sandbox) == []


async def test_stop_and_continue_are_signals_like_others() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("echo $$; while [ ! -e go ]; do sleep 0.01; done")
        await process.wait_for_log(str(process.pid))
        await process.kill("STOP")
        await sandbox.exec(f"until grep -q '^State:.T' /proc/{process.pid}/status; do :; done", timeout=30)
        await sandbox.exec("touch go")
        await process.kill("CONT")
        assert (await process.wait()).exit_code == 0


@pytest.mark.parametrize("name", ["NOPE", "", 0, -1, 65, True, None, 1.5])
async def test_an_unknown_signal_is_refused_and_nothing_is_sent(name: object) -> None:
    async with AsyncSandbox.create() as sandbox:
        with pytest.raises(ValidationFailed):
            await sandbox.kill_all_processes(name)  # type: ignore[arg-type]
        process = await sandbox.start_process("sleep 1000", id="a")
        for refused in (process.kill(name), sandbox.kill_process("a", name), sandbox.kill_all_processes(name)):  # type: ignore[arg-type]
            with pytest.raises(ValidationFailed):
                await refused
        assert process.status is ProcessStatus.RUNNING


async def test_wrong_arguments_start_nothing() -> None:
    async with AsyncSandbox.create() as sandbox:
        wrong: list[dict[str, object]] = [
            {"command": []},
            {"command": "\0"},
            {"command": 7},
            {"timeout": -1},
            {"timeout": "1"},
            {"timeout": float("nan")},
            {"env": {"1X": "a"}},
            {"env": {"X": "a\0"}},
            {"id": ".."},
            {"id": ""},
            {"id": "a/b"},
            {"id": "x" * 129},
            {"id": 7},
        ]
        for arguments in wrong:
            with pytest.raises(ValidationFailed):
                await sandbox.start_process(**{"command": "true", **arguments})  # type: ignore[arg-type]
        assert await sandbox.list_processes() == []


async def test_wrong_waits_are_refused_and_leave_the_process_alone() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("sleep 1000")
        for refused in (
            process.wait(-1),
            process.output(float("nan")),
            process.terminate(-1),
            process.terminate(None),  # type: ignore[arg-type]
            process.wait_for_log("x", timeout=-1),
            process.wait_for_log(b"x"),  # type: ignore[arg-type]
            process.wait_for_port(80, timeout=-1),
            process.write_stdin("x"),
            process.close_stdin(),
        ):
            with pytest.raises(ValidationFailed):
                await refused
        assert process.status is ProcessStatus.RUNNING


async def test_a_wait_that_takes_too_long_leaves_the_process_running() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("echo here; read", stdin=True)
        for wait in (process.wait(0), process.wait(0.05), process.output(timeout=0.05)):
            with pytest.raises(ProcessWaitTimeout):
                await wait
        assert process.status is ProcessStatus.RUNNING
        await process.close_stdin()
        assert (await process.output()).stdout == "here\n"


async def test_many_wait_for_one_end() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("read; exit 6", stdin=True)
        waits = [asyncio.ensure_future(process.wait()) for _ in range(50)]
        outputs = [asyncio.ensure_future(process.output()) for _ in range(5)]
        await asyncio.sleep(0)
        await process.close_stdin()
        assert {end.exit_code for end in await asyncio.gather(*waits)} == {6}
        assert {result.exit_code for result in await asyncio.gather(*outputs)} == {6}


async def test_output_is_what_exec_would_give() -> None:
    command = "printf 'a\\0\\377'; echo err >&2; printf tail; exit 2"
    async with AsyncSandbox.create() as sandbox:
        executed = await sandbox.exec(command)
        result = await (await sandbox.start_process(command)).output()
        for name in ("command", "outcome", "exit_code", "stdout_bytes", "stderr_bytes", "signal", "truncated"):
            assert getattr(result, name) == getattr(executed, name)
        assert result.duration > 0


async def test_cwd_and_env_hold_for_that_process_only() -> None:
    async with AsyncSandbox.create(env={"A": "1", "B": "2"}) as sandbox:
        process = await sandbox.start_process("pwd; echo $A-${B-unset}-$C", cwd="/tmp", env={"B": None, "C": "3"})
        assert (await process.output()).stdout == "/tmp\n1-unset-3\n"
        assert (await (await sandbox.start_process("pwd; echo $B$C")).output()).stdout == "/workspace\n2\n"


async def test_a_process_leads_its_own_group_and_reads_nothing() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process(
            "cat; read -r _ _ _ _ group session _ < /proc/$$/stat; echo $$ $group $session"
        )
        numbers = (await process.output()).stdout.split()
        assert numbers == [str(process.pid)] * 3


async def test_an_id_is_taken_while_the_process_runs_and_while_it_is_remembered() -> None:
    async with AsyncSandbox.create() as sandbox:
        first = await sandbox.start_process("sleep 1000", id="one")
        with pytest.raises(ProcessAlreadyExists):
            await sandbox.start_process("true", id="one")
        await first.kill("KILL")
        with pytest.raises(ProcessAlreadyExists):
            await sandbox.start_process("true", id="one")
        assert (await sandbox.get_process("one")).pid == first.pid
        assert await sandbox.cleanup_processes() == 1
        second = await sandbox.start_process("exit 8", id="one")
        assert (await second.wait()).exit_code == 8


async def test_of_many_starts_with_one_id_exactly_one_runs() -> None:
    async with AsyncSandbox.create() as sandbox:
        starts = [sandbox.start_process("echo ran >> ran; echo up; sleep 1000", id="same") for _ in range(20)]
        started = await asyncio.gather(*starts, return_exceptions=True)
        winners = [one for one in started if not isinstance(one, BaseException)]
        assert len(winners) == 1
        assert all(isinstance(one, ProcessAlreadyExists) for one in started if one not in winners)
        assert len(await sandbox.list_processes()) == 1
        await winners[0].wait_for_log("up")
        assert (await sandbox.exec("cat ran")).stdout == "ran\n"


async def test_a_process_is_found_once_it_runs_and_never_half_made() -> None:
    async with AsyncSandbox.create() as sandbox:
        for turn in range(40):
            start = asyncio.ensure_future(sandbox.start_process("true", id=f"p{turn}"))
            while not start.done():
                for process in await sandbox.list_processes():
                    assert process.pid > 0
                with suppress(ProcessNotFound):
                    assert (await sandbox.get_process(f"p{turn}")).pid > 0
                await asyncio.sleep(0)
            assert (await (await start).wait()).exit_code == 0


async def test_a_start_that_is_refused_frees_the_id() -> None:
    async with AsyncSandbox.create() as sandbox:
        for _ in range(3):
            start = asyncio.ensure_future(sandbox.start_process("sleep 1000", id="again", stdin=True))
            await asyncio.sleep(0)
            start.cancel()
            with pytest.raises(asyncio.CancelledError):
                await start
        process = await sandbox.start_process("exit 3", id="again")
        assert (await process.wait()).exit_code == 3


async def test_processes_are_listed_in_the_order_they_were_started_until_they_are_cleaned_up() -> None:
    async with AsyncSandbox.create() as sandbox:
        assert await sandbox.list_processes() == []
        assert await sandbox.cleanup_processes() == 0
        ended = await sandbox.start_process("true", id="b")
        running = await sandbox.start_process("sleep 1000", id="a")
        await ended.wait()
        assert [(one.id, str(one.status)) for one in await sandbox.list_processes()] == [
            ("b", "completed"),
            ("a", "running"),
        ]
        assert await sandbox.cleanup_processes() == 1
        assert [one.id for one in await sandbox.list_processes()] == ["a"]
        with pytest.raises(ProcessNotFound):
            await sandbox.get_process("b")
        assert running.status is ProcessStatus.RUNNING


async def test_unknown_and_wrong_ids_are_told_apart() -> None:
    async with AsyncSandbox.create() as sandbox:
        for ask in (sandbox.get_process, sandbox.kill_process):
            with pytest.raises(ProcessNotFound):
                await ask("nobody")
            with pytest.raises(ValidationFailed):
                await ask("../nobody")


async def test_kill_all_counts_those_that_ran() -> None:
    async with AsyncSandbox.create() as sandbox:
        await (await sandbox.start_process("true")).wait()
        started = [await sandbox.start_process("sleep 1000") for _ in range(5)]
        assert await sandbox.kill_all_processes("KILL") == 5
        assert {one.exit_code for one in started} == {137}
        assert await sandbox.kill_all_processes("KILL") == 0
        assert await commands_inside(sandbox) == []


async def test_only_so_many_ended_processes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MOST_REMEMBERED", 3)
    async with AsyncSandbox.create() as sandbox:
        running = await sandbox.start_process("sleep 1000", id="running")
        for number in range(6):
            await (await sandbox.start_process("true", id=f"p{number}")).wait()
        assert [one.id for one in await sandbox.list_processes()] == ["running", "p3", "p4", "p5"]
        assert running.status is ProcessStatus.RUNNING


async def test_without_keep_the_process_is_forgotten_when_it_has_ended_and_its_readers_are_done() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process(
            "read; head -c 300000 /dev/zero; echo done >&2", id="brief", stdin=True, keep=False
        )
        reader = process.logs()
        first = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0)
        await process.close_stdin()
        event = await first
        await process.wait()
        assert (await sandbox.get_process("brief")).id == "brief"
        size = len(event.data) if isinstance(event, Output) else 0
        async for event in reader:
            size += len(event.data) if isinstance(event, Output) else 0
        assert size == 300_005
        assert await sandbox.list_processes() == []
        assert (await (await sandbox.start_process("exit 4", id="brief")).wait()).exit_code == 4


async def test_without_keep_and_without_readers_the_holder_of_the_handle_still_gets_everything() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("head -c 60000 /dev/zero; echo e >&2; exit 3", keep=False)
        async with asyncio.timeout(30):
            while await sandbox.list_processes():
                await asyncio.sleep(0)
        result = await process.output()
        assert (len(result.stdout_bytes), result.stderr, result.exit_code, result.truncated) == (
            60_000,
            "e\n",
            3,
            False,
        )


async def test_a_forgotten_process_is_freed_with_its_last_handle() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("head -c 60000 /dev/zero", keep=False)
        await process.wait()
        found = weakref.ref(process)
        gc.disable()
        try:
            del process
            for _ in range(10):
                await asyncio.sleep(0)
            assert found() is None
        finally:
            gc.enable()


async def test_a_process_ends_with_its_sandbox_and_its_handle_says_so() -> None:
    sandbox = await AsyncSandbox.create()
    process = await sandbox.start_process("echo before; sleep 1000", stdin=True)
    await process.wait_for_log("before")
    reader = asyncio.ensure_future(collect(process))
    wait = asyncio.ensure_future(process.wait())
    await asyncio.sleep(0)
    await sandbox.destroy()
    assert ((await wait).outcome, process.exit_code, process.status) == (Outcome.KILLED, 137, ProcessStatus.KILLED)
    events = await reader
    assert events[:-1] == [Output("stdout", b"before\n", "7")]
    assert isinstance(events[-1], Exit)
    await process.kill()
    await process.terminate()
    with pytest.raises(CoveError):
        await process.write_stdin("x")
    with pytest.raises(SandboxDestroyed):
        await sandbox.list_processes()


async def collect(process: object) -> list[object]:
    return [event async for event in process.logs()]  # type: ignore[attr-defined]


async def test_a_start_while_the_sandbox_is_destroyed_says_that_it_is_gone() -> None:
    for turns in range(12):
        sandbox = await AsyncSandbox.create()
        starts = [asyncio.ensure_future(sandbox.start_process("sleep 1000", stdin=True)) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await sandbox.destroy()
        for answer in await asyncio.gather(*starts, return_exceptions=True):
            if isinstance(answer, BaseException):
                assert isinstance(answer, SandboxDestroyed)
            else:
                assert (await answer.wait()).outcome is Outcome.KILLED


async def test_a_process_whose_sandbox_is_lost_is_an_error_of_the_infrastructure() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("sleep 1000")
        sandbox.lose("by this test")  # type: ignore[attr-defined]
        result = await process.output()
        assert (result.outcome, result.exit_code, process.status) == (Outcome.LOST, None, ProcessStatus.ERROR)
        assert result.is_infrastructure_failure


async def test_without_descriptors_nothing_is_started_and_nothing_is_lost() -> None:
    async with AsyncSandbox.create() as sandbox:
        held = []
        try:
            while True:
                held.append(os.dup(0))
        except OSError:
            for spare in range(6):
                with pytest.raises(SpawnFailed):
                    await sandbox.start_process("true", stdin=spare % 2 == 0)
                if spare % 2:
                    os.close(held.pop())
        finally:
            for descriptor in held:
                os.close(descriptor)
        assert await sandbox.list_processes() == []
        assert (await (await sandbox.start_process("exit 3")).wait()).exit_code == 3


@pytest.mark.parametrize("count", [300, pytest.param(1000, marks=pytest.mark.slow)])
async def test_fast_processes_lose_no_byte_and_no_exit_code(count: int) -> None:
    commands = [("true", 0, ""), ("echo x", 0, "x\n"), ("exit 3", 3, "")]
    async with AsyncSandbox.create() as sandbox:
        for start in range(0, count, 100):
            wanted = [commands[number % 3] for number in range(start, min(start + 100, count))]
            started = await asyncio.gather(*(sandbox.start_process(command) for command, _, _ in wanted))
            results = await asyncio.gather(*(process.output() for process in started))
            assert [(result.exit_code, result.stdout) for result in results] == [
                (code, text) for _, code, text in wanted
            ]
        assert len(await sandbox.list_processes()) == min(count, 1000)
        assert await sandbox.cleanup_processes() == count


async def test_what_a_left_over_child_prints_belongs_to_nobody_and_does_not_delay_the_end() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process(
            "(until [ -e go ]; do sleep 0.01; done; yes | head -c 300000; echo > ok) & echo mine"
        )
        result = await process.output(timeout=30)
        assert (result.stdout, result.exit_code) == ("mine\n", 0)
        await sandbox.exec("touch go; until [ -e ok ]; do sleep 0.01; done", timeout=30)
        assert (await process.output()).stdout == "mine\n"
