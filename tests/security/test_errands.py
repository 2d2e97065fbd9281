"""What a forged errand can do: its answers are checked, bounded, and read in small steps."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.loop_time import bounded_callbacks

from cove import (
    AsyncSandbox,
    CoveError,
    FileEvent,
    FileInfo,
    FileTooLarge,
    LimitExceeded,
    ProcessExitedBeforeReady,
    ValidationFailed,
)
from cove.api import Files
from cove.runtime import file_transfer
from cove.runtime.files import Files as LivingFiles

pytestmark = pytest.mark.anyio

SAY = """#!/usr/bin/python3 -IS
import os, sys, time
def say(*fields):
    message = b"\\0".join(fields)
    data = len(message).to_bytes(4, "big") + message
    while data:
        data = data[os.write(1, data):]
def entry(path, target=b"", mode=b"33188"):
    say(b"entry", mode, b"1", b"1", path, target)
"""
MOST_GROWTH_BYTES = 200 << 20


def memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@asynccontextmanager
async def forged(script: str) -> AsyncIterator[Files]:
    """The files of a sandbox whose errands are this program."""
    async with AsyncSandbox.create() as sandbox:
        files = sandbox.files
        await files.write("forge", SAY + script, mode=0o755)
        assert isinstance(files, LivingFiles)
        files._errands._command[:] = [b"/workspace/forge"]
        yield files
        assert (await sandbox.exec("echo alive")).stdout == "alive\n"


async def drain_archive(files: Files) -> None:
    async for _ in files.read_archive():
        pass


async def drain(files: Files) -> list[FileEvent]:
    return [event async for event in files.watch()]


CALLS: dict[str, Callable[[Files], Awaitable[object]]] = {
    "list": lambda files: files.list(recursive=True),
    "glob": lambda files: files.glob("**"),
    "search": lambda files: files.search("x"),
    "watch": drain,
    "check_changes": lambda files: files.check_changes(),
    "remove_tree": lambda files: files.remove_tree("x"),
    "upload": lambda files: files.upload(Path(__file__).parent.parent / "clients", "x"),
}
SAID: dict[str, str] = {
    "list": "entry({})",
    "glob": "say(b'path', {})",
    "search": "say(b'match', {}, b'1', b'line')",
    "watch": "say(b'watching', b'0'); say(b'event', b'create', {}, b'0', b'')",
}
PATHS = ["b'../x'", "b'/etc/passwd'", "b'a/../../x'", "b'a//b'", "b'.'", "b'a' * 300", "b'a/' * 3000 + b'a'"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("call", SAID)
async def test_a_path_that_leads_elsewhere_is_refused(call: str, path: str) -> None:
    async with forged(f"{SAID[call].format(path)}; say(b'done')") as files:
        with pytest.raises(ProcessExitedBeforeReady, match="a path that is"):
            await CALLS[call](files)


FORGED = {
    "many fields": "say(*[b''] * 16000); say(b'done')",
    "a long message": "os.write(1, b'\\xff' * 100)",
    "another kind": "say(b'surprise', b'x', b'y'); say(b'done')",
    "an end and more": "say(b'done'); say(b'done')",
    "no end": "say",
    "half a message": "os.write(1, b'\\0\\0\\1\\0half')",
    "an end that is none": "say(b'error', b'99999999999', b'')",
    "numbers": "say(b'entry', b'1' * 15000, b'1', b'1', b'x', b''); say(b'done')",
    "unsorted": "entry(b'b'); entry(b'a'); say(b'done')",
    "twice": "entry(b'a'); entry(b'a'); say(b'done')",
    "a mode that is none": "entry(b'a', mode=b'99999999'); say(b'done')",
    "a long link": "entry(b'a', b'x' * 5000, b'41471'); say(b'done')",
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", FORGED)
async def test_a_forged_answer_is_an_error(call: str, name: str) -> None:
    async with forged(FORGED[name]) as files:
        for attempt in bounded_callbacks():
            with attempt, pytest.raises(CoveError):
                await CALLS[call](files)


FLOODS = {
    "bytes": "while True: os.write(1, bytes(1 << 20))",
    "long entries": "for n in range(10 ** 9): entry(b'%09d' % n + b'/a' * 2000)",
    "short entries": "for n in range(10 ** 9): entry(b'%09d' % n)",
    "paths": "for n in range(10 ** 9): say(b'path', b'%09d' % n)",
    "matches": "for n in range(10 ** 9): say(b'match', b'a', b'1', b'x' * 8000)",
    "empty messages": "while True: os.write(1, bytes(4) * 10000)",
    "errors": "while True: os.write(2, b'x' * (1 << 16))",
}


@pytest.mark.parametrize("call", [call for call in CALLS if call != "watch"])
@pytest.mark.parametrize("name", [name for name in FLOODS if name != "errors"])
async def test_a_flood_ends_the_call_in_small_steps_and_bounded_memory(call: str, name: str) -> None:
    async with forged(FLOODS[name]) as files:
        before = memory_bytes()
        for attempt in bounded_callbacks():
            with attempt, pytest.raises(CoveError):
                await CALLS[call](files)
        assert memory_bytes() - before < MOST_GROWTH_BYTES


async def test_a_flood_of_events_makes_the_flooder_wait() -> None:
    flood = "say(b'watching', b'0')\nwhile True: os.write(1, b'\\0\\0\\0\\x17event\\0modify\\0name.py\\x000\\0' * 5000)"
    async with forged(flood) as files:
        for attempt in bounded_callbacks():
            before, count = memory_bytes(), 0
            with attempt:
                async for _ in files.watch():
                    count += 1
                    if count == 30_000:
                        break
            assert memory_bytes() - before < MOST_GROWTH_BYTES


async def test_an_archive_without_end_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_transfer, "MOST_STREAM_BYTES", 20 << 20)
    async with forged("while True: os.write(0, bytes(1 << 20))") as files:
        for attempt in bounded_callbacks():
            with attempt, pytest.raises(FileTooLarge):
                await drain_archive(files)


async def test_as_many_entries_as_agreed_are_listed_in_small_steps() -> None:
    async with forged("for n in range(200_000): entry(b'%09d' % n)\nsay(b'done')") as files:
        for attempt in bounded_callbacks():
            with attempt:
                found = await files.list(recursive=True)
        assert len(found) == 200_000
        assert isinstance(found[0], FileInfo)
        assert (found[0].path, found[-1].name) == ("/workspace/000000000", "000199999")


async def test_paths_that_would_fill_memory_are_refused() -> None:
    """The directory's own name counts for each of them."""
    top = "d" * 200 + "/"
    async with forged("for n in range(100_000): entry(b'%09d' % n)\nsay(b'done')") as files:
        with pytest.raises(LimitExceeded, match="one by one"):
            await files.list(top * 15, recursive=True)


async def test_more_than_an_answer_may_hold_is_told_by_the_errand_itself() -> None:
    """Long paths: far fewer files than are agreed."""
    make = (
        "import os\n"
        "for n in range(10): os.mkdir('d' * 250); os.chdir('d' * 250)\n"
        "for n in range(13_000): os.mkdir('%06d' % n + 'x' * 245)\n"
    )
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec(["python3", "-ISc", make], cwd="/dev/shm")).check()
        with pytest.raises(LimitExceeded, match="look for less"):
            await sandbox.files.list("/dev/shm", recursive=True)


async def test_a_pattern_is_compiled_inside_and_measured_before() -> None:
    async with AsyncSandbox.create() as sandbox:
        for attempt in bounded_callbacks():
            with attempt:
                for pattern in ("x" * 70_000, "(" * 4000, "(?P<x"):
                    with pytest.raises(ValidationFailed):
                        await sandbox.files.search(pattern)


async def test_a_line_with_a_nul_far_in_a_text_file_is_found() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("x", b"a\n" * 10_000 + b"needle \0 in it\n")
        (match,) = await sandbox.files.search("needle")
        assert match.line == "needle \ufffd in it"
