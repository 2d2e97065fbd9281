"""Terminals and their viewers, whatever way the sandbox is reached."""

import asyncio
import hashlib

import pytest
from support.inside import commands_inside
from support.serving import MakeSandbox
from support.viewers import PROMPT, PS1, Viewer, plain_shell, python, watch

from cove import (
    AsyncSandbox,
    ExecResult,
    FileNotFound,
    Outcome,
    Output,
    ProcessExitedBeforeReady,
    Ready,
    TerminalNotFound,
    ValidationFailed,
)
from cove.api import Terminal

pytestmark = pytest.mark.anyio

MEGABYTE = 1 << 20


async def shell(sandbox: AsyncSandbox, **options: object) -> Terminal:
    return await sandbox.terminal(shell=plain_shell(), env=PS1, **options)  # type: ignore[arg-type]  # as the test says


async def type_at_prompt(viewer: Viewer, command: str) -> None:
    await viewer.wait_for(PROMPT)
    await viewer.write(f"{command}\n")


async def look_for_ever(terminal: Terminal) -> None:
    async with watch(terminal) as viewer:
        while True:
            await viewer.next()


async def ptys(sandbox: AsyncSandbox) -> ExecResult:
    return await sandbox.exec("ls /dev/pts | grep -c '[0-9]'")


async def test_what_is_typed_is_run_and_what_it_prints_is_seen(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        terminal = await shell(sandbox, id="t", cwd="/tmp")
        async with watch(terminal) as viewer:
            await viewer.wait_for(PROMPT)
            await viewer.write("tty; pwd; echo $TERM; echo ü\n")
            seen = await viewer.wait_for("ü\r\n" + PROMPT.decode())
            assert b"/dev/pts/" in seen
            assert b"\r\n/tmp\r\nxterm-256color\r\n" in seen
            await viewer.write(b"exit 7\n")
            _, end = await viewer.until_exit()
        assert (end.outcome, end.exit_code) == (Outcome.EXITED, 7)


async def test_control_characters_work(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox, watch(await shell(sandbox)) as viewer:
        await type_at_prompt(viewer, "cat")
        await viewer.write("up\n")
        await viewer.wait_for("up\r\nup\r\n")
        await viewer.write(b"\x03")
        await type_at_prompt(viewer, "echo =$?=")
        await viewer.wait_for("=130=")
        await viewer.wait_for(PROMPT)
        await viewer.write(b"\x04")
        assert (await viewer.until_exit())[1].exit_code == 0


async def test_text_that_came_from_bytes_is_typed_as_these_bytes(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        terminal = await sandbox.terminal(shell=["bash", "-c", "stty raw -echo; echo up; head -c 2 | od -An -tx1"])
        async with watch(terminal) as viewer:
            await viewer.wait_for("up")
            for data in ("\ud800", None, 5):
                with pytest.raises(ValidationFailed):
                    await viewer.write(data)  # type: ignore[arg-type]  # what is refused
            await viewer.write(b"\xff\xfe".decode("utf-8", "surrogateescape"))
            await viewer.wait_for(" ff fe")


async def test_many_calls_with_one_id_get_one_terminal(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        terminals = await asyncio.gather(*(sandbox.terminal(id="one") for _ in range(20)))
        assert {terminal.id for terminal in terminals} == {"one"}
        assert (await ptys(sandbox)).stdout == "1\n"
        other = await sandbox.terminal()
        assert other.id != "one"
        assert [info.id for info in await sandbox.list_terminals()] == ["one", other.id]


async def test_terminals_are_found_listed_and_destroyed(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        assert await sandbox.list_terminals() == []
        await sandbox.terminal(id="t", cols=100, rows=30)
        found = await sandbox.get_terminal("t")
        assert (found.id, found.cols, found.rows) == ("t", 100, 30)
        (info,) = await sandbox.list_terminals()
        assert (info.id, info.cols, info.rows, info.is_running, info.exit_code) == ("t", 100, 30, True, None)
        await found.destroy()
        await found.destroy()
        with pytest.raises(TerminalNotFound):
            await sandbox.get_terminal("t")
        assert await commands_inside(sandbox) == []


async def test_a_size_is_seen_inside_changed_and_checked(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        terminal = await shell(sandbox, cols=100, rows=30)
        async with watch(terminal) as viewer:
            await type_at_prompt(viewer, "stty size")
            await viewer.wait_for("30 100\r\n")
            await viewer.resize(120, 40)
            await type_at_prompt(viewer, "stty size")
            await viewer.wait_for("40 120\r\n")
            await terminal.resize(90, 20)
            await type_at_prompt(viewer, "stty size")
            await viewer.wait_for("20 90\r\n")
            for cols, rows in ((0, 1), (1, 0), (1001, 1), (1, 1001), (-1, 1), ("80", 24), (80.5, 24)):
                with pytest.raises(ValidationFailed):
                    await terminal.resize(cols, rows)  # type: ignore[arg-type]  # on purpose
                with pytest.raises(ValidationFailed):
                    await viewer.resize(cols, rows)  # type: ignore[arg-type]  # on purpose
                with pytest.raises(ValidationFailed):
                    await sandbox.terminal(cols=cols, rows=rows)  # type: ignore[arg-type]  # on purpose
        assert ((await sandbox.get_terminal(terminal.id)).cols, terminal.rows) == (90, 20)


async def test_a_bad_creation_is_refused_and_leaves_nothing(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        for bad in ("", ".", "a..b", "a/b", "x" * 129):
            with pytest.raises(ValidationFailed):
                await sandbox.terminal(id=bad)
        with pytest.raises(ValidationFailed):
            await sandbox.terminal(id="t", env={"1": "x"})
        with pytest.raises(FileNotFound):
            await sandbox.terminal(id="t", cwd="/no/such")
        with pytest.raises(FileNotFound):
            await sandbox.terminal(id="t", shell=["no-such-shell"])
        assert await sandbox.list_terminals() == []
        assert (await sandbox.terminal(id="t")).id == "t"


async def test_a_viewer_first_gets_what_was_kept_then_ready_then_what_comes(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        terminal = await shell(sandbox)
        async with watch(terminal) as first:
            await type_at_prompt(first, "echo be''fore")
            await first.wait_for("before\r\n" + PROMPT.decode())
        async with watch(terminal) as second:
            assert b"before\r\n" in await second.until_ready()
            await second.write("echo af''ter\n")
            await second.wait_for("after\r\n")


async def test_a_viewer_comes_back_with_its_cursor_and_misses_nothing(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        terminal = await sandbox.terminal(shell=python("for i in range(3000): print(i)\ninput()"))
        seen, since = b"", None
        while not seen.endswith(b"2999\r\n"):
            async with terminal.connect(since=since) as connection:
                async for event in connection:
                    since = event.cursor
                    if isinstance(event, Output):
                        seen += event.data
                        break
        assert seen == b"".join(b"%d\r\n" % number for number in range(3000))
        for wrong in ("", "x", "-1", "99999999"):
            with pytest.raises(ValidationFailed):
                async with watch(terminal, since=wrong) as viewer:
                    await viewer.next()


async def test_several_viewers_see_the_same(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        terminal = await sandbox.terminal(shell=["bash", "-c", "read; seq 1 20000; exit 3"])
        async with watch(terminal) as one, watch(terminal) as two, watch(terminal) as three:
            await two.write("go\n")
            ends = [await viewer.until_exit() for viewer in (one, two, three)]
        assert ends[0] == ends[1] == ends[2]
        assert ends[0][0].endswith(b"\r\n19999\r\n20000\r\n")


async def test_megabytes_come_whole_to_a_lossless_viewer(make_sandbox: MakeSandbox) -> None:
    count = 300_000
    async with make_sandbox() as sandbox:
        terminal = await sandbox.terminal(shell=["bash", "-c", f"stty raw; read; seq {count}"])
        async with watch(terminal, lossless=True) as viewer:
            await viewer.write("\n")
            seen, end = await viewer.until_exit()
        expected = "".join(f"{number}\n" for number in range(1, count + 1)).encode()
        assert hashlib.sha256(seen[-len(expected) :]).digest() == hashlib.sha256(expected).digest()
        assert end.exit_code == 0


async def test_who_connects_after_the_end_sees_what_was_kept_and_the_end(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        terminal = await sandbox.terminal(id="t", shell=["bash", "-c", "echo last words; exit 4"])
        for _ in range(2):
            async with watch(terminal) as viewer:
                seen, end = await viewer.until_exit()
                assert (seen, end.exit_code) == (b"last words\r\n", 4)
                assert [event for event in viewer.seen if isinstance(event, Ready)]
        (info,) = await sandbox.list_terminals()
        assert (info.is_running, info.exit_code) == (False, 4)
        again = await sandbox.terminal(id="t", shell=["bash", "-c", "echo new"])
        async with watch(again) as viewer:
            assert (await viewer.until_exit())[0] == b"new\r\n"


async def test_destroying_a_terminal_is_seen_by_its_viewers(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        terminal = await shell(sandbox)
        async with watch(terminal) as viewer:
            await type_at_prompt(viewer, "setsid sleep 1000 & sleep 1000")
            await viewer.wait_for("sleep 1000\r\n")
            await terminal.destroy()
            assert (await viewer.until_exit())[1].outcome is Outcome.KILLED
        assert await commands_inside(sandbox) == []


async def test_typing_to_an_ended_program_and_to_a_closed_viewer(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        terminal = await shell(sandbox)
        connection = terminal.connect()
        await connection.open()
        await connection.close()
        await connection.close()
        with pytest.raises(ValidationFailed):
            await connection.write("x")
        async with watch(terminal) as viewer:
            assert (await sandbox.exec("kill -9 -1")).exit_code == 137
            assert (await viewer.until_exit())[1].exit_code == 137
            with pytest.raises(ProcessExitedBeforeReady, match="signaled, exit code 137") as caught:
                await viewer.write("x")
            assert caught.value.exit_code == 137


async def test_a_viewer_that_leaves_early_disturbs_nobody(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        terminal = await shell(sandbox)
        for _ in range(5):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(look_for_ever(terminal), 0.05)
        async with watch(terminal) as viewer:
            await type_at_prompt(viewer, "echo still' 'here")
            await viewer.wait_for("still here\r\n")


async def test_terminals_and_sessions_see_nothing_of_each_other(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        session = await sandbox.create_session(id="same", cwd="/tmp")
        await session.exec("export A=session")
        async with watch(await shell(sandbox, id="same")) as viewer:
            await type_at_prompt(viewer, "cd /usr; export A=terminal$A; echo =$A=")
            await viewer.wait_for("=terminal=\r\n")
        assert (await session.exec("echo $A $PWD")).stdout == "session /tmp\n"
