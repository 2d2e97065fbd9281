"""The journal, whatever way the sandbox is reached."""

import asyncio
import json
from contextlib import aclosing

import pytest
from support.serving import MakeSandbox, Where

from cove import (
    AsyncSandbox,
    CoveError,
    JournalEvent,
    JournalKind,
    NetworkPolicy,
    Outcome,
    Output,
    SandboxStatus,
    ValidationFailed,
)
from cove.core.replay import asciicast

pytestmark = pytest.mark.anyio


async def read(sandbox: AsyncSandbox, since: str | None = None) -> list[JournalEvent]:
    """All that is there, but for what a machine warns of."""
    return [event async for event in sandbox.journal(since=since) if event.kind is not JournalKind.WARNING]


async def test_every_surface_leaves_its_event(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await sandbox.exec("echo hello; exit 3")
        session = await sandbox.create_session()
        await session.exec(["printf", "%s", "a b"])
        process = await sandbox.start_process("echo out", id="job")
        await process.wait()
        await sandbox.files.write("notes.txt", b"12345")
        await sandbox.files.rename("notes.txt", "kept.txt")
        with pytest.raises(CoveError):
            await sandbox.files.remove("missing")
        await sandbox.ports.expose(8000)
        events = await read(sandbox)
    kinds = [event.kind.value for event in events]
    assert kinds == [
        "created",
        "exec",
        "command",
        "process_started",
        "process_ended",
        "files",
        "files",
        "files",
        "port",
    ]
    _, run, command, started, ended, written, renamed, refused, port = events
    assert (run.text, run.outcome, run.exit_code, run.output_bytes) == ("echo hello; exit 3", Outcome.EXITED, 3, 6)
    assert None not in (run.duration, run.user_seconds, run.system_seconds, run.max_rss_bytes)
    assert (command.text, command.subject, command.output_bytes) == ("printf %s 'a b'", session.id, 3)
    assert (started.subject, started.text) == ("job", "echo out")
    assert (ended.subject, ended.exit_code, ended.output_bytes) == ("job", 0, 4)
    assert (written.path, written.size) == ("/workspace/notes.txt", 5)
    assert (renamed.operation, renamed.path) == ("rename", "/workspace/notes.txt")
    assert renamed.target == "/workspace/kept.txt"
    assert (refused.operation, refused.error) == ("remove", "FILE_NOT_FOUND")
    assert (port.operation, port.port) == ("expose", 8000)


async def test_a_cursor_continues_right_after_its_event(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await sandbox.exec("true")
        events = await read(sandbox)
        await sandbox.exec("false")
        (later,) = await read(sandbox, events[-1].cursor)
        assert later.text == "false"
        assert await read(sandbox, later.cursor) == []
        with pytest.raises(ValidationFailed, match="cursor"):
            await read(sandbox, "the beginning")


async def test_a_journal_can_be_followed(make_sandbox: MakeSandbox) -> None:
    async with (
        make_sandbox() as sandbox,
        aclosing(sandbox.journal(follow=True)) as events,
        asyncio.timeout(60),
    ):
        assert (await anext(events)).kind is JournalKind.CREATED
        await sandbox.exec("echo $((40 + 2))")
        async for event in events:
            if event.kind is JournalKind.EXEC:
                break
        assert event.text == "echo $((40 + 2))"


async def test_the_life_of_a_sandbox_is_written_down(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await sandbox.pause()
        await sandbox.resume()
        await sandbox.set_env({"NAME": "value"})
        await sandbox.reset()
        events = await read(sandbox)
    kinds = [event.kind.value for event in events]
    assert kinds == ["created", "paused", "resumed", "settings", "stopped", "started", "reset"]
    assert events[3].target == "NAME"


async def test_snapshots_and_copies_are_written_down(where: Where) -> None:
    async with AsyncSandbox.create(**where) as sandbox:
        snapshot = await sandbox.snapshot()
        await sandbox.restore(snapshot)
        (copy,) = await sandbox.fork()
        events = await read(sandbox)
        await copy.destroy()
        await snapshot.delete()
    assert [event.kind.value for event in events] == ["created", "snapshot", "restored", "forked"]
    assert [event.subject for event in events[1:]] == [snapshot.id, snapshot.id, copy.id]


async def test_a_journal_outlives_a_stop(where: Where) -> None:
    async with AsyncSandbox.create(**where) as sandbox:
        await sandbox.exec("true")
        await sandbox.stop()
        before = await read(sandbox)
        assert [event.kind.value for event in before] == ["created", "exec", "stopped"]
        assert (await sandbox.info()).status is SandboxStatus.STOPPED
        await sandbox.start()
        await sandbox.exec("false")
        events = await read(sandbox)
    assert events[:3] == before
    assert [event.kind.value for event in events[3:]] == ["started", "exec"]


async def test_code_is_written_down(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await sandbox.run_code("print('x' * 10)")
        await sandbox.run_code("1 / 0")
        printed, failed = (event for event in await read(sandbox) if event.kind is JournalKind.CODE)
    assert (printed.text, printed.language, printed.output_bytes) == ("print('x' * 10)", "python", 11)
    assert (printed.outcome, failed.reason) == (Outcome.EXITED, "ZeroDivisionError")


async def test_the_network_is_written_down(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox(network=NetworkPolicy(allow=["files.example"])) as sandbox:
        await sandbox.exec("getent ahostsv4 other.example")
        (event,) = (event for event in await read(sandbox) if event.kind is JournalKind.NETWORK)
    assert (event.operation, event.host, event.allowed) == ("name", "other.example", False)


async def test_command_text_can_be_left_out(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox(journal="events") as sandbox:
        await sandbox.exec("echo hello")
        await sandbox.start_process("echo hello")
        await sandbox.terminal(id="t")
        await sandbox.run_code("1 + 1")
        events = await read(sandbox)
    assert {"exec", "process_started", "terminal_started", "code"} <= {event.kind.value for event in events}
    assert [event.text for event in events if event.text is not None] == []


async def test_output_is_kept_only_where_that_is_asked_for(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox(journal="output") as sandbox:
        await sandbox.exec("echo from exec; echo to stderr >&2")
        process = await sandbox.start_process("echo from process", id="job")
        await process.wait()
        events = await read(sandbox)
    printed = [(event.operation, event.stream, event.data) for event in events if event.kind is JournalKind.OUTPUT]
    assert printed == [
        ("exec", "stdout", b"from exec\n"),
        ("exec", "stderr", b"to stderr\n"),
        ("process_started", "stdout", b"from process\n"),
    ]


SHOWS = r"printf '\033[2Jfirst \303\274\n\033[31mred\033[0m last'"


async def test_a_terminal_is_replayed_as_an_asciicast(make_sandbox: MakeSandbox) -> None:
    """Version 2 of the format: a header, then frames of ascending seconds, a code and what was shown."""
    async with make_sandbox(journal="output") as sandbox:
        terminal = await sandbox.terminal(id="t", shell=["sh", "-c", SHOWS], cols=100, rows=30)
        async with asyncio.timeout(60), terminal.connect() as viewer:
            shown = b"".join([event.data async for event in viewer if isinstance(event, Output)])
        header, *frames = map(json.loads, asciicast(await read(sandbox), "t"))
    assert shown == b"\x1b[2Jfirst \xc3\xbc\r\n\x1b[31mred\x1b[0m last"
    assert (header["version"], header["width"], header["height"]) == (2, 100, 30)
    assert "".join(text for _, code, text in frames if code == "o") == shown.decode()
    assert [at for at, _, _ in frames] == sorted(at for at, _, _ in frames)
    assert frames[0][0] >= 0
