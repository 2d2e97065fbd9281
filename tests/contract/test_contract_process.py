"""Processes and their logs, whatever way the sandbox is reached."""

import asyncio
import hashlib
import re
from contextlib import aclosing

import pytest
from support.inside import commands_inside
from support.servers import Server
from support.serving import MakeSandbox, address

from cove import (
    AsyncSandbox,
    Exit,
    Gap,
    Outcome,
    Output,
    ProcessAlreadyExists,
    ProcessExitedBeforeReady,
    ProcessNotFound,
    ProcessReadyTimeout,
    ProcessStatus,
    ProcessWaitTimeout,
    ValidationFailed,
)
from cove.api import Process
from cove.wire.operation import AnyOperation

pytestmark = pytest.mark.anyio

MEGABYTE = 1 << 20
SERVE = [
    *("python3", "-u", "-c"),
    "import http.server as h; s = h.HTTPServer(('127.0.0.1', 3000), h.SimpleHTTPRequestHandler); "
    "print('serving'); s.serve_forever()",
]


async def read_all(process: Process, since: str | None = None) -> tuple[dict[str, bytes], Exit]:
    """Everything after the cursor, by stream, and the end."""
    found = {"stdout": b"", "stderr": b""}
    async for event in process.logs(since=since):
        assert not isinstance(event, Gap)
        if isinstance(event, Exit):
            return found, event
        found[event.stream] += event.data
    raise AssertionError("the log has no end")


async def test_a_handle_tells_who_the_process_is_and_how_it_ended(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        process = await sandbox.start_process(["sh", "-c", "sleep 0.2; exit 3"], id="mine")
        assert (process.id, list(process.command)) == ("mine", ["sh", "-c", "sleep 0.2; exit 3"])
        assert process.pid > 1
        assert (process.status, process.exit_code, process.session_id) == (ProcessStatus.RUNNING, None, None)
        end = await process.wait()
        assert (end.outcome, end.exit_code, end.signal) == (Outcome.EXITED, 3, None)
        assert end.max_rss_bytes is not None
        assert (process.status, process.outcome, process.exit_code) == (ProcessStatus.FAILED, Outcome.EXITED, 3)
        assert process.ended_at is not None
        assert process.ended_at > process.started_at


ENDS: list[tuple[str | list[str], str, str, int, int | None]] = [
    ("exit 0", "completed", "exited", 0, None),
    ("exit 7", "failed", "exited", 7, None),
    ("kill -SEGV $$", "killed", "signaled", 139, 11),
    (["cove-no-such-program"], "failed", "exited", 127, None),
]


async def test_every_end_has_its_status_outcome_and_exit_code(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        for command, *expected in ENDS:
            process = await sandbox.start_process(command)
            end = await process.wait()
            assert [end.status, end.outcome, end.exit_code, end.signal] == expected
            found = await sandbox.get_process(process.id)
            assert [found.status, found.outcome, found.exit_code, found.signal] == expected


async def test_a_missing_cwd_is_a_process_that_ended_with_1_and_says_why(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        result = await (await sandbox.start_process("touch /tmp/ran", cwd="/no/such")).output()
        assert result.exit_code == 1
        assert "/no/such" in result.stderr


async def test_a_timeout_ends_the_tree_and_keeps_what_was_printed(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        process = await sandbox.start_process("echo before; setsid sleep 1000 & sleep 1000", timeout=0.3)
        result = await process.output()
        assert (result.outcome, result.exit_code, result.stdout) == (Outcome.TIMED_OUT, 124, "before\n")
        assert process.status is ProcessStatus.KILLED
        assert await commands_inside(sandbox) == []


async def test_kill_reaches_the_whole_tree(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        process = await sandbox.start_process("(sleep 1000 & setsid sleep 1000) & echo up; sleep 1000")
        await process.wait_for_log("up")
        await process.kill()
        end = await process.wait()
        assert (end.outcome, end.exit_code, end.signal) == (Outcome.KILLED, 143, 15)
        stubborn = await sandbox.start_process("trap '' TERM; echo up; while :; do sleep 1000; done")
        await stubborn.wait_for_log("up")
        await stubborn.kill("KILL")
        assert (stubborn.status, stubborn.exit_code) == (ProcessStatus.KILLED, 137)
        assert await commands_inside(sandbox) == []


async def test_terminate_escalates_and_an_ended_process_does_not_mind(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        process = await sandbox.start_process("trap '' TERM; echo up; while :; do sleep 1000; done")
        await process.wait_for_log("up")
        await process.terminate(grace=0.2)
        assert (process.outcome, process.exit_code) == (Outcome.KILLED, 137)
        for _ in range(2):
            await process.terminate()
            await process.kill("INT")
        assert (await process.wait()).exit_code == 137


async def test_signals_by_name_and_number_and_no_unknown_ones(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        process = await sandbox.start_process("trap 'echo one' USR1; echo up; while :; do sleep 0.01; done")
        await process.wait_for_log("up")
        for signal in ("USR1", "SIGUSR1", 10):
            await process.kill(signal)
        await process.wait_for_log("one")
        for wrong in ("NOSUCH", 0, 65, -1, ""):
            with pytest.raises(ValidationFailed):
                await process.kill(wrong)
        await process.kill("KILL")


async def test_an_id_is_taken_while_the_process_runs_and_while_it_is_remembered(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        process = await sandbox.start_process("sleep 1000", id="p")
        with pytest.raises(ProcessAlreadyExists):
            await sandbox.start_process("true", id="p")
        await process.kill("KILL")
        with pytest.raises(ProcessAlreadyExists):
            await sandbox.start_process("true", id="p")
        assert await sandbox.cleanup_processes() == 1
        assert (await (await sandbox.start_process("echo new", id="p")).output()).stdout == "new\n"


async def test_of_many_starts_with_one_id_exactly_one_runs(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        starts = [sandbox.start_process("echo run >> /tmp/runs", id="p") for _ in range(10)]
        results = await asyncio.gather(*starts, return_exceptions=True)
        assert sum(isinstance(result, ProcessAlreadyExists) for result in results) == 9
        await (await sandbox.get_process("p")).wait()
        assert (await sandbox.exec("cat /tmp/runs")).stdout == "run\n"


async def test_a_bad_id_is_refused_and_an_unknown_one_not_found(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        for id in ("", ".", "..", "a..b", "a/b", "a b", "ü", "x" * 129, "%2e", "a\0"):
            with pytest.raises(ValidationFailed):
                await sandbox.start_process("true", id=id)
        for call in (sandbox.get_process, sandbox.kill_process):
            with pytest.raises(ProcessNotFound):
                await call("unknown")
            for wrong in ("", "a/b", "\ud800", "\udcff", "?", 7):
                with pytest.raises((ValidationFailed, ProcessNotFound)):
                    await call(wrong)  # type: ignore[arg-type]  # on purpose


async def test_processes_are_listed_in_order_killed_and_forgotten_together(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        assert await sandbox.list_processes() == []
        for number in range(3):
            await sandbox.start_process("sleep 1000", id=f"p{number}")
        ended = await sandbox.start_process("true", id="ended")
        await ended.wait()
        assert [process.id for process in await sandbox.list_processes()] == ["p0", "p1", "p2", "ended"]
        await sandbox.kill_process("p0", "KILL")
        assert await sandbox.kill_all_processes("KILL") == 2
        assert await sandbox.cleanup_processes() == 4
        assert await sandbox.list_processes() == []


async def test_without_keep_a_process_is_forgotten_when_it_has_ended(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        process = await sandbox.start_process("sleep 0.3; echo words; exit 2", id="brief", keep=False)
        result = await process.output()
        assert (result.stdout, result.exit_code) == ("words\n", 2)
        with pytest.raises(ProcessNotFound):
            await sandbox.get_process("brief")
        assert await sandbox.list_processes() == []


async def test_waits_end_when_their_time_is_up_and_the_process_runs_on(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        process = await sandbox.start_process("sleep 1000")
        with pytest.raises(ProcessWaitTimeout):
            await process.wait(0.1)
        with pytest.raises(ProcessWaitTimeout):
            await process.output(0)
        with pytest.raises(ProcessReadyTimeout):
            await process.wait_for_log("never", timeout=0.1)
        with pytest.raises(ProcessReadyTimeout):
            await process.wait_for_port(3000, timeout=0.1)
        assert (await process.refresh()).status is ProcessStatus.RUNNING
        await process.kill("KILL")


async def test_wrong_waits_are_refused(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        process = await sandbox.start_process("sleep 1000")
        for wrong in (-1, float("nan"), "1", True):
            for wait in (process.wait, process.output):
                with pytest.raises(ValidationFailed):
                    await wait(wrong)  # type: ignore[arg-type]  # on purpose
            with pytest.raises(ValidationFailed):
                await process.wait_for_log("x", timeout=wrong)  # type: ignore[arg-type]  # on purpose
            with pytest.raises(ValidationFailed):
                await process.terminate(grace=wrong)  # type: ignore[arg-type]  # on purpose
        for port in (0, 65536, -1, "80"):
            with pytest.raises(ValidationFailed):
                await process.wait_for_port(port)  # type: ignore[arg-type]  # on purpose
        for arguments in ({"mode": "udp"}, {"path": "no-slash"}, {"path": "/a b"}, {"status": (300, 200)}):
            with pytest.raises(ValidationFailed):
                await process.wait_for_port(80, **arguments)
        await process.kill("KILL")


async def test_many_wait_for_one_end(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        process = await sandbox.start_process("sleep 0.3; exit 5")
        others = [await sandbox.get_process(process.id) for _ in range(10)]
        ends = await asyncio.gather(*(other.wait() for other in others))
        assert {end.exit_code for end in ends} == {5}


async def test_output_is_what_exec_would_give(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        command = r"printf 'a\0\xff'; echo error >&2; exit 2"
        result, other = await (await sandbox.start_process(command)).output(), await sandbox.exec(command)
        assert (result.stdout_bytes, result.stderr_bytes) == (other.stdout_bytes, other.stderr_bytes)
        assert (result.command, result.outcome, result.exit_code) == (other.command, other.outcome, other.exit_code)
        assert result.duration > 0


async def test_a_log_is_read_while_the_process_runs_and_any_number_of_times_after(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        process = await sandbox.start_process("echo out; echo error >&2; read line; echo got $line", stdin=True)
        events = process.logs()
        found = b""
        while b"out\n" not in found or b"error\n" not in found:
            event = await anext(events)
            assert isinstance(event, Output)
            found += event.data
        await process.write_stdin("more\n")
        rest = [event async for event in events]
        assert isinstance(rest[0], Output)
        assert (rest[0].stream, rest[0].data) == ("stdout", b"got more\n")
        assert isinstance(rest[-1], Exit)
        for _ in range(3):
            streams, end = await read_all(process)
            assert streams == {"stdout": b"out\ngot more\n", "stderr": b"error\n"}
            assert (end.outcome, end.exit_code) == (Outcome.EXITED, 0)


async def test_a_reader_comes_back_with_its_cursor_and_gets_the_rest_exactly_once(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        process = await sandbox.start_process(
            "for i in $(seq 300); do echo $i; [ $((i % 60)) = 0 ] && sleep 0.02; done"
        )
        await process.wait()
        found, since = b"", None
        is_over = False
        while not is_over:
            async with aclosing(process.logs(since=since)) as events:
                event = await anext(events)
                since = event.cursor
                is_over = isinstance(event, Exit)
                found += event.data if isinstance(event, Output) else b""
        assert found == b"".join(b"%d\n" % number for number in range(1, 301))
        for wrong in ("", "x", "-1", "999999999999"):
            with pytest.raises(ValidationFailed):
                await anext(process.logs(since=wrong))


async def test_without_follow_a_reader_gets_what_is_there_and_leaves(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        process = await sandbox.start_process("echo here; sleep 1000")
        await process.wait_for_log("here")
        events = [event async for event in process.logs(follow=False)]
        assert [event.data for event in events if isinstance(event, Output)] == [b"here\n"]
        await process.kill("KILL")
        assert isinstance([event async for event in process.logs(follow=False)][-1], Exit)


async def test_twenty_megabytes_of_any_bytes_come_through_a_log(make_sandbox: MakeSandbox) -> None:
    size = 20 * MEGABYTE
    async with make_sandbox() as sandbox:
        await sandbox.exec(f"head -c {size} /dev/urandom > random")
        process = await sandbox.start_process("cat random")
        streams, end = await read_all(process)
        expected = (await sandbox.exec("sha256sum random")).stdout.split()[0]
        assert (len(streams["stdout"]), hashlib.sha256(streams["stdout"]).hexdigest()) == (size, expected)
        assert end.exit_code == 0


async def test_many_readers_see_the_same_and_one_that_leaves_disturbs_nobody(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        process = await sandbox.start_process("for i in $(seq 2000); do echo line $i; done; sleep 0.2; echo end")
        async with aclosing(process.logs()) as leaver:
            await anext(leaver)
        readers = await asyncio.gather(*(read_all(process) for _ in range(10)))
        assert len({streams["stdout"] for streams, _ in readers}) == 1
        assert readers[0][0]["stdout"].endswith(b"line 2000\nend\n")


async def test_a_reader_that_is_cancelled_can_begin_again(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        process = await sandbox.start_process("echo first; sleep 1000")
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await read_all(process)
        await process.kill("KILL")
        assert (await read_all(process))[0]["stdout"] == b"first\n"


async def test_a_lossless_reader_holds_the_process_and_lets_it_go_when_it_leaves(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        process = await sandbox.start_process("head -c 100000000 /dev/zero; touch /tmp/done")
        async with aclosing(process.logs(lossless=True)) as events:
            await anext(events)
            assert (await sandbox.exec("sleep 0.3; ls /tmp/done")).exit_code == 2
        assert (await process.wait(30)).exit_code == 0


async def test_a_process_started_lossless_waits_for_a_reader_that_comes_late(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        process = await sandbox.start_process("head -c 100000000 /dev/zero; touch /tmp/done", lossless=True)
        assert (await sandbox.exec("sleep 0.3; ls /tmp/done")).exit_code == 2
        async with aclosing(process.logs(lossless=True)) as events:
            sizes = [len(event.data) for event in [each async for each in events] if isinstance(event, Output)]
        assert sum(sizes) == 100000000


async def test_what_a_tree_prints_while_it_is_terminated_is_in_the_log(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        closing = "trap 'sleep 0.3; echo closed; exit' TERM; echo up; while :; do sleep 0.02; done"
        process = await sandbox.start_process(f"({closing}) & wait")
        await process.wait_for_log("up", timeout=30)
        await process.terminate(grace=20)
        assert (await process.output()).stdout == "up\nclosed\n"


async def test_fast_processes_lose_no_byte_and_no_exit_code(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:

        async def run(number: int) -> None:
            process = await sandbox.start_process(["sh", "-c", f"printf {number}; exit {number}"])
            streams, end = await read_all(process)
            assert (streams["stdout"], end.exit_code) == (str(number).encode(), number)

        await asyncio.gather(*map(run, range(30)))


async def test_a_line_is_waited_for_by_text_or_expression(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        process = await sandbox.start_process("echo port 8080 open; sleep 0.2; printf 'half ' >&2; printf 'line\n' >&2")
        assert (await process.wait_for_log("8080")).line == "port 8080 open"
        match = await process.wait_for_log(re.compile(r"PORT (\d+)( closed)?", re.IGNORECASE))
        assert (match.line, match.groups) == ("port 8080 open", ("8080", None))
        assert (await process.wait_for_log("half line")).line == "half line"
        with pytest.raises(ProcessExitedBeforeReady) as caught:
            await process.wait_for_log("never")
        assert caught.value.exit_code == 0
        assert "half line" in str(caught.value)


async def test_a_port_is_waited_for(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        process = await sandbox.start_process(SERVE)
        await process.wait_for_port(3000, timeout=20)
        await process.wait_for_port(3000, mode="tcp", timeout=20)
        await process.wait_for_port(3000, path="/missing", status=(404, 404), timeout=20)
        await process.kill("KILL")
        with pytest.raises(ProcessExitedBeforeReady) as caught:
            await process.wait_for_port(3000, timeout=20)
        assert caught.value.exit_code == 137


async def test_standard_input_takes_bytes_and_text_and_ends(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        process = await sandbox.start_process("cat", stdin=True)
        await process.write_stdin("text ü\n")
        await process.write_stdin(b"\xff\0")
        await process.close_stdin()
        await process.close_stdin()
        assert (await process.output()).stdout_bytes == "text ü\n".encode() + b"\xff\0"
        with pytest.raises(ValidationFailed):
            await process.write_stdin("late")
        other = await sandbox.start_process("cat")
        with pytest.raises(ValidationFailed, match="stdin=True"):
            await other.write_stdin("x")
        for wrong in (None, 7, ["x"], "\ud800"):
            with pytest.raises(ValidationFailed):
                await process.write_stdin(wrong)  # type: ignore[arg-type]  # on purpose


async def test_a_large_write_waits_for_the_reader_and_loses_nothing(make_sandbox: MakeSandbox) -> None:
    data = bytes(range(256)) * 20_000
    async with make_sandbox() as sandbox:
        process = await sandbox.start_process("sleep 0.2; sha256sum", stdin=True)
        await process.write_stdin(data)
        await process.close_stdin()
        assert (await process.output()).stdout.split()[0] == hashlib.sha256(data).hexdigest()


async def test_a_write_that_nobody_reads_is_let_go_when_the_process_ends(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        process = await sandbox.start_process("sleep 1000", stdin=True)
        writing = asyncio.create_task(process.write_stdin(bytes(2 * MEGABYTE)))
        with pytest.raises(ProcessWaitTimeout):
            await process.wait(0.2)
        await process.kill("KILL")
        with pytest.raises(ProcessExitedBeforeReady):
            await writing


async def test_waiting_for_a_process_on_a_server_is_one_request(shared_server: Server) -> None:
    async with AsyncSandbox.create(**address(shared_server)) as sandbox:
        asked: list[str] = []
        transport = sandbox._calls.transport  # type: ignore[attr-defined]
        call = transport.call

        async def counted(operation: AnyOperation, *rest: object, **named: object) -> object:
            asked.append(operation.name)
            return await call(operation, *rest, **named)

        transport.call = counted
        process = await sandbox.start_process("exit 3")
        end = await process.wait()
        assert (process.status, process.outcome, process.exit_code) == ("failed", "exited", 3)
        assert process.ended_at == end.ended_at == (await process.refresh()).ended_at
        assert (await process.output()).exit_code == 3
        await process.kill()
        assert asked == ["start_process", "wait_process", "get_process", "process_output", "kill_process"]
