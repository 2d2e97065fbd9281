"""A terminal from its creation to its end."""

import asyncio
import hashlib
import os
import signal
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.fake_agent import Peer
from support.inside import commands_inside, init_below
from support.leaks import descriptors
from support.programs import run_program
from support.viewers import PROMPT, PS1, plain_shell, python, watch

from cove import AsyncSandbox
from cove.api import Terminal
from cove.core.command import build_invocation
from cove.errors import (
    CoveError,
    FileNotFound,
    NotFound,
    PermissionDenied,
    ProcessExitedBeforeReady,
    SandboxDestroyed,
    SandboxUnavailable,
    SpawnFailed,
    TerminalNotFound,
    ValidationFailed,
)
from cove.linux.packets import socket_pair
from cove.model import Outcome, Output, Ready
from cove.runtime.link import Link
from cove.runtime.terminals import MOST_REMEMBERED, Terminals

pytestmark = [pytest.mark.anyio, pytest.mark.pure]

MEGABYTE = 1 << 20


async def ptys_inside(sandbox: AsyncSandbox) -> list[str]:
    return (await sandbox.exec("ls /dev/pts")).stdout.split()


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def cancelled_after(count: int, work: Coroutine[object, object, Terminal]) -> None:
    """Cancel the call after so many turns of the loop; a terminal that was faster is destroyed."""
    task = asyncio.ensure_future(work)
    await turns(count)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await (await task).destroy()


async def wait_until_nothing_runs(sandbox: AsyncSandbox) -> None:
    """Whatever was abandoned is ended behind the caller's back."""
    async with asyncio.timeout(30):
        while await commands_inside(sandbox):
            pass


# Get or create


async def test_fifty_concurrent_calls_with_one_id_get_one_pty() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminals = await asyncio.gather(*(sandbox.terminal(id="one") for _ in range(50)))
        assert all(terminal is terminals[0] for terminal in terminals)
        assert await ptys_inside(sandbox) == ["0", "ptmx"]
        assert await commands_inside(sandbox) == ["/bin/bash"]
        assert [info.id for info in await sandbox.list_terminals()] == ["one"]
        assert await sandbox.terminal(id="one", shell=["sleep", "9"], cols=5) is terminals[0]
        assert await sandbox.get_terminal("one") is terminals[0]


async def test_terminals_without_an_id_are_different_ones() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminals = await asyncio.gather(*(sandbox.terminal(shell=["sleep", "1000"]) for _ in range(5)))
        assert len({terminal.id for terminal in terminals}) == 5
        assert await ptys_inside(sandbox) == ["0", "1", "2", "3", "4", "ptmx"]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"shell": "no-such-program"}, FileNotFound),
        ({"shell": ["/etc/passwd"]}, PermissionDenied),
        ({"cwd": "/no/such/place"}, FileNotFound),
    ],
)
async def test_a_creation_that_fails_leaves_nothing_and_does_not_poison_the_id(
    wrong: dict[str, object], error: type[CoveError]
) -> None:
    async with AsyncSandbox.create() as sandbox:
        calls = [sandbox.terminal(id="x", **wrong) for _ in range(10)]  # type: ignore[arg-type]  # on purpose
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [error] * 10
        assert str(results[0]).startswith("cove: ")
        assert await sandbox.list_terminals() == []
        assert await ptys_inside(sandbox) == ["ptmx"]
        with pytest.raises(TerminalNotFound):
            await sandbox.get_terminal("x")
        terminal = await sandbox.terminal(id="x", shell=["echo", "fine"])
        async with watch(terminal) as viewer:
            assert (await viewer.until_exit())[0] == b"fine\r\n"


async def test_a_creator_that_is_cancelled_does_not_disturb_those_who_wait_with_it() -> None:
    async with AsyncSandbox.create() as sandbox:
        for count in range(0, 24, 3):
            creator = asyncio.ensure_future(sandbox.terminal(id=f"t{count}", shell=["sleep", "1000"]))
            waiting = asyncio.ensure_future(sandbox.terminal(id=f"t{count}"))
            await turns(count)
            creator.cancel()
            terminal = await waiting
            assert await sandbox.get_terminal(f"t{count}") is terminal
            await terminal.destroy()


async def test_a_creation_that_nobody_waits_for_any_more_leaves_nothing_at_any_turn() -> None:
    async with AsyncSandbox.create() as sandbox:
        for count in range(40):
            await asyncio.gather(*(cancelled_after(count, sandbox.terminal(id=f"t{count}")) for _ in range(2)))
            await cancelled_after(count, sandbox.terminal())
        await wait_until_nothing_runs(sandbox)
        assert await sandbox.list_terminals() == []
        assert await ptys_inside(sandbox) == ["ptmx"]
        assert (await sandbox.terminal(id="t7")).id == "t7"


async def test_an_id_can_be_asked_for_again_while_its_abandoned_creation_is_undone() -> None:
    async with AsyncSandbox.create() as sandbox:
        for count in range(1, 24):
            await cancelled_after(count, sandbox.terminal(id="x", shell=["sleep", "1000"]))
            terminal = await sandbox.terminal(id="x", shell=["sleep", "2000"])
            assert await sandbox.get_terminal("x") is terminal
            await terminal.destroy()


async def test_a_sandbox_destroyed_while_terminals_are_made_ends_the_calls() -> None:
    for count in (0, 1, 2, 4, 8, 16, 32):
        async with AsyncSandbox.create() as sandbox:
            calls = [asyncio.ensure_future(sandbox.terminal(id=f"t{at % 3}")) for at in range(9)]
            await turns(count)
            await sandbox.destroy()
            for result in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(result, SandboxDestroyed | Terminal), result


async def test_something_that_is_no_terminal_is_refused_and_closed() -> None:
    before = descriptors()
    ours, theirs = socket_pair()
    link = Link(ours, lambda reason: None)
    terminals = Terminals(SimpleNamespace(link=link, user=b""))  # type: ignore[arg-type]  # all that is used of it
    call = asyncio.ensure_future(terminals.get_or_create("x", build_invocation("true", cwd="/", env={}), 80, 24))
    await turns(3)
    with open("/dev/null", "rb") as null, open("/dev/zero", "rb") as zero:
        Peer(theirs).send(b"ok", b"1", b"/dev/pts/0", descriptors=(null.fileno(), zero.fileno()))
    with pytest.raises(SpawnFailed, match="not a terminal"):
        await call
    await terminals.close()
    link.close()
    theirs.close()
    assert descriptors() == before


@pytest.mark.parametrize("size", [0, -1, 1001, True, "80", 2.0, None])
async def test_a_size_outside_of_1_to_1000_is_refused(size: object) -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(id="x", cols=1000, rows=1)
        for cols, rows in ((size, 24), (80, size)):
            with pytest.raises(ValidationFailed, match="from 1 to 1000"):
                await sandbox.terminal(id="new", cols=cols, rows=rows)  # type: ignore[arg-type]  # on purpose
            with pytest.raises(ValidationFailed, match="from 1 to 1000"):
                await terminal.resize(cols, rows)  # type: ignore[arg-type]  # on purpose
        assert (terminal.cols, terminal.rows) == (1000, 1)
        assert [info.id for info in await sandbox.list_terminals()] == ["x"]


@pytest.mark.parametrize("id", ["", "a/b", "..", "x" * 129, "a b", "a..b"])
async def test_a_bad_id_is_refused_and_an_unknown_one_not_found(id: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        for call in (sandbox.terminal(id=id), sandbox.get_terminal(id)):
            with pytest.raises(ValidationFailed):
                await call
        with pytest.raises(NotFound, match="no terminal nobody"):
            await sandbox.get_terminal("nobody")


# The end


async def test_the_exit_event_carries_the_code_and_comes_after_the_last_byte() -> None:
    async with AsyncSandbox.create() as sandbox:
        for command, end in (
            ("echo end; exit 3", (Outcome.EXITED, 3, None)),
            ("echo end; kill -SEGV $$", (Outcome.SIGNALED, 128 + signal.SIGSEGV, signal.SIGSEGV)),
        ):
            async with watch(await sandbox.terminal(shell=["bash", "-c", command])) as viewer:
                data, event = await viewer.until_exit()
            assert (event.outcome, event.exit_code, event.signal) == end
            assert data == b"end\r\n"
            assert event.cursor == str(len(data))


@pytest.mark.parametrize("left", ["", "sleep 1000 &", "setsid sleep 1000 &"])
async def test_a_program_that_prints_a_megabyte_and_ends_at_once_loses_none_of_it(left: str) -> None:
    command = f"trap '' HUP; {left} head -c {MEGABYTE} /dev/zero | tr '\\0' x; printf end; exit 4"
    async with AsyncSandbox.create() as sandbox:
        for _ in range(5):
            async with watch(await sandbox.terminal(shell=["bash", "-c", command]), lossless=True) as viewer:
                data, event = await viewer.until_exit()
            assert data == b"x" * MEGABYTE + b"end"
            assert event.exit_code == 4
        assert len([line for line in await commands_inside(sandbox) if "sleep" in line]) == (5 if left else 0)


async def test_a_background_job_that_prints_for_ever_does_not_delay_the_end() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=["bash", "-c", "trap '' HUP; setsid yes & echo end; exit 4"])
        async with watch(terminal) as viewer:
            data, event = await viewer.until_exit()
        assert b"end\r\n" in data
        assert event.exit_code == 4


async def test_a_shell_that_closes_its_terminal_and_opens_it_again_is_heard() -> None:
    command = "exec <&- >&- 2>&-; sleep 0.05; echo late > /dev/tty; exit 5"
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=["bash", "-c", command])
        async with watch(terminal) as viewer:
            data, event = await viewer.until_exit()
    assert (data, event.exit_code) == (b"late\r\n", 5)


async def test_who_connects_after_the_end_sees_what_was_kept_and_the_end() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(id="x", shell=["bash", "-c", "echo words; exit 6"])
        async with watch(terminal) as viewer:
            await viewer.until_exit()
        again = await sandbox.get_terminal("x")
        async with watch(again) as viewer:
            assert await viewer.until_ready() == b"words\r\n"
            assert (await viewer.until_exit())[1].exit_code == 6
            with pytest.raises(ProcessExitedBeforeReady) as caught:
                await viewer.write(b"x")
            assert caught.value.exit_code == 6
            await viewer.resize(10, 10)
        (info,) = await sandbox.list_terminals()
        assert (info.is_running, info.exit_code, info.cols, info.rows) == (False, 6, 80, 24)


async def test_an_id_whose_shell_has_ended_gives_a_new_terminal() -> None:
    async with AsyncSandbox.create() as sandbox:
        old = await sandbox.terminal(id="x", shell=["true"])
        async with watch(old) as viewer:
            await viewer.until_exit()
        new = await sandbox.terminal(id="x", shell=["sleep", "1000"])
        assert new is not old
        assert await sandbox.get_terminal("x") is new
        await old.destroy()
        assert await sandbox.get_terminal("x") is new


async def test_only_so_many_ended_terminals_are_remembered_and_every_running_one() -> None:
    async with AsyncSandbox.create() as sandbox:
        running = await sandbox.terminal(shell=["sleep", "1000"])
        for number in range(MOST_REMEMBERED + 4):
            async with watch(await sandbox.terminal(id=f"t{number}", shell=["true"])) as viewer:
                await viewer.until_exit()
        last = await sandbox.terminal(shell=["sleep", "1000"])
        ids = [info.id for info in await sandbox.list_terminals()]
        assert ids == [running.id, *(f"t{number}" for number in range(4, MOST_REMEMBERED + 4)), last.id]


async def test_destroy_ends_everything_on_the_terminal_and_tells_its_viewers() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(id="x", shell=plain_shell(), env=PS1)
        async with watch(terminal) as one, watch(terminal) as other:
            await one.wait_for(PROMPT)
            await one.write("trap '' HUP TERM; setsid sleep 1000 & (trap '' HUP; sleep 2000) & echo do''ne\n")
            await one.wait_for("done\r\n")
            await asyncio.gather(*(terminal.destroy() for _ in range(3)))
            assert await commands_inside(sandbox) == []
            for viewer in (one, other):
                _, event = await viewer.until_exit()
                assert (event.outcome, event.exit_code) == (Outcome.KILLED, 128 + signal.SIGKILL)
        await terminal.destroy()
        with pytest.raises(TerminalNotFound):
            await sandbox.get_terminal("x")
        assert await sandbox.list_terminals() == []
        assert await ptys_inside(sandbox) == ["ptmx"]


async def test_destroy_ends_what_an_ended_shell_has_left() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=["bash", "-c", "trap '' HUP; sleep 1000 & exit 2"])
        async with watch(terminal) as viewer:
            assert (await viewer.until_exit())[1].exit_code == 2
        assert await commands_inside(sandbox) == ["sleep 1000"]
        await terminal.destroy()
        assert await commands_inside(sandbox) == []


async def test_while_a_terminal_is_destroyed_it_can_be_resized_and_its_id_taken() -> None:
    async with AsyncSandbox.create() as sandbox:
        for count in range(1, 13):
            terminal = await sandbox.terminal(id="x", shell=["sleep", "1000"])
            ending = asyncio.ensure_future(terminal.destroy())
            await turns(count)
            await terminal.resize(50, 20)
            new = await sandbox.terminal(id="x", shell=["sleep", "1000"])
            assert new is not terminal
            await ending
            await terminal.resize(60, 20)
            assert (new.cols, new.rows) == (80, 24)
            await new.destroy()


async def test_a_destroy_that_is_cancelled_happens_all_the_same() -> None:
    async with AsyncSandbox.create() as sandbox:
        for count in range(8):
            terminal = await sandbox.terminal(shell=["sleep", "1000"])
            ending = asyncio.ensure_future(terminal.destroy())
            await turns(count)
            ending.cancel()
            await asyncio.wait([ending])
            await terminal.destroy()
        assert await commands_inside(sandbox) == []


async def test_viewers_of_a_sandbox_that_is_destroyed_see_the_end() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=["bash", "-c", "echo words; exec sleep 1000"])
        async with watch(terminal) as viewer:
            await viewer.wait_for("words\r\n")
            await sandbox.destroy()
            assert (await viewer.until_exit())[1].outcome is Outcome.KILLED
            with pytest.raises(ProcessExitedBeforeReady):
                await viewer.write("x")
        await terminal.resize(10, 10)
        await terminal.destroy()
        with pytest.raises(SandboxDestroyed):
            await sandbox.terminal()


async def test_viewers_of_a_sandbox_that_is_lost_see_that_it_was() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=["bash", "-c", "echo words; exec sleep 1000"])
        async with watch(terminal) as viewer:
            await viewer.wait_for("words\r\n")
            os.kill(init_below(os.getpid()), signal.SIGKILL)
            _, event = await viewer.until_exit()
            assert (event.outcome, event.exit_code) == (Outcome.LOST, None)
        with pytest.raises(SandboxUnavailable):
            await sandbox.list_terminals()
        await terminal.destroy()


# Input


WAITS_THEN_READS = """
import hashlib, os, tty
tty.setraw(0)
os.mkfifo("/tmp/go")
print("raw", flush=True)
open("/tmp/go").read()
digest, left = hashlib.sha256(), 1000000
while left:
    data = os.read(0, left)
    digest.update(data)
    left -= len(data)
print(digest.hexdigest(), flush=True)
"""


async def test_a_writer_waits_for_a_program_that_does_not_read_and_loses_nothing() -> None:
    data = bytes(range(256)) * 3906 + b"x" * 64
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=python(WAITS_THEN_READS))
        async with watch(terminal) as viewer:
            await viewer.wait_for("raw")
            writing = asyncio.ensure_future(viewer.write(data))
            _, pending = await asyncio.wait([writing], timeout=0.2)
            assert pending
            await sandbox.exec("echo > /tmp/go")
            await viewer.wait_for(hashlib.sha256(data).hexdigest())
            await writing


async def test_a_writer_that_waits_can_be_cancelled_and_others_go_on() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=python(WAITS_THEN_READS))
        async with watch(terminal) as viewer:
            await viewer.wait_for("raw")
            writers = [asyncio.ensure_future(viewer.write(b"x" * 500_000)) for _ in range(3)]
            await asyncio.wait(writers, timeout=0.1)
            writers[0].cancel()
            writers[1].cancel()
            await asyncio.wait(writers[:2])
            assert not writers[2].done()
            await sandbox.exec("echo > /tmp/go")
            await writers[2]
            await viewer.write(b"x" * 400_000)


async def test_a_terminal_destroyed_while_a_writer_waits_ends_the_writer() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=python(WAITS_THEN_READS))
        async with watch(terminal) as viewer:
            await viewer.wait_for("raw")
            writers = [asyncio.ensure_future(viewer.write(b"x" * MEGABYTE)) for _ in range(3)]
            await asyncio.wait(writers, timeout=0.1)
            await terminal.destroy()
            results = await asyncio.gather(*writers, return_exceptions=True)
            assert [type(result) for result in results] == [ProcessExitedBeforeReady] * 3


async def test_text_and_bytes_can_be_written() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=["cat"])
        async with watch(terminal) as viewer:
            await viewer.write("grüße\n")
            await viewer.wait_for("grüße\r\ngrüße\r\n")
            await viewer.write(b"")
            await viewer.write(b"\xff\n")
            await viewer.wait_for(b"\xff\r\n\xff\r\n")


async def test_a_connection_that_is_not_open_says_so() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=["cat"])
        connection = terminal.connect()
        for _ in range(2):
            with pytest.raises(ValidationFailed, match="not open"):
                await anext(connection.events())
            with pytest.raises(ValidationFailed, match="not open"):
                await connection.write(b"x")
            async with connection:
                await connection.write(b"x\n")
            await connection.close()


# Its surroundings


async def test_terminals_and_sessions_see_nothing_of_each_other() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("cd /tmp; secret=session; export secret; alias hi='echo session'")
        one = await sandbox.terminal(shell=plain_shell(), env=PS1)
        other = await sandbox.terminal(shell=plain_shell(), env=PS1)
        async with watch(one) as first, watch(other) as second:
            for viewer, path in ((first, "/dev/pts/0"), (second, "/dev/pts/1")):
                await viewer.wait_for(PROMPT)
                await viewer.write("echo [$secret] $PWD $(tty) $(type -t hi)\n")
                await viewer.wait_for(f"\r\n[] /workspace {path}\r\n")
                await viewer.wait_for(PROMPT)
            await first.write("secret=terminal; cd /usr\n")
            await first.wait_for(PROMPT)
            await second.write("echo [$secret] $PWD\n")
            await second.wait_for("\r\n[] /workspace\r\n")
        assert (await session.exec("echo $secret $PWD")).stdout == "session /tmp\n"


async def test_directory_and_environment_are_those_asked_for() -> None:
    async with AsyncSandbox.create(env={"A": "sandbox", "B": "sandbox"}) as sandbox:
        command = ["bash", "-c", "echo $A $B [$HOME] $PWD $TERM"]
        async with watch(await sandbox.terminal(shell=command, cwd="/tmp", env={"A": "call", "HOME": None})) as viewer:
            await viewer.wait_for("call sandbox [] /tmp xterm-256color\r\n")
        async with watch(await sandbox.terminal(shell=command, env={"TERM": "dumb"})) as viewer:
            await viewer.wait_for("[/home/user] /workspace dumb\r\n")


async def test_the_default_is_an_interactive_bash() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal()
        async with watch(terminal) as viewer:
            await viewer.wait_for("$ ")
            await viewer.write("echo $0 $- $((40 + 2))\r")
            assert b"i" in (await viewer.wait_for(" 42\r\n")).rpartition(b"/bin/bash ")[2]


BLOCKING = """
from cove import Exit, Output, Ready, Sandbox

with Sandbox.create() as sandbox:
    terminal = sandbox.terminal(id="x", shell=["sh"], cols=90, rows=20)
    assert (terminal.id, terminal.cols, terminal.rows) == ("x", 90, 20)
    with terminal.connect() as connection:
        connection.resize(91, 21)
        connection.write("stty size; exit 3\\n")
        events = list(connection)
    assert isinstance(events[-1], Exit) and events[-1].exit_code == 3
    assert sum(isinstance(event, Ready) for event in events) == 1
    assert b"21 91\\r\\n" in b"".join(event.data for event in events if isinstance(event, Output))
    with terminal.connect(since=events[-1].cursor) as connection:
        assert [type(event) for event in connection] == [Ready, Exit]
    with terminal.connect(lossless=True) as connection:
        for event in connection:
            assert isinstance(event, Output)
            break
    assert [info.id for info in sandbox.list_terminals()] == ["x"]
    sandbox.get_terminal("x").destroy()
    assert sandbox.list_terminals() == []
print("done")
"""


def test_the_blocking_api_is_the_same_without_await(other_home: Path) -> None:
    assert run_program(BLOCKING, other_home) == "done"


async def test_a_viewer_who_leaves_early_and_comes_back_goes_on_where_it_was() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=["bash", "-c", "echo one; read; echo two; read; echo three"])
        async with terminal.connect() as connection:
            events: list[object] = []
            for word in (b"one\r\n", b"two\r\n", b"three\r\n"):
                async for event in connection:
                    events.append(event)
                    if isinstance(event, Output) and event.data.endswith(word):
                        break
                with suppress(ProcessExitedBeforeReady):
                    await connection.write(b"\n")
            assert [type(event) for event in events].count(Ready) == 1
            data = b"".join(event.data for event in events if isinstance(event, Output))
            assert data.replace(b"\r\n\r\n", b"\r\n") == b"one\r\ntwo\r\nthree\r\n"
