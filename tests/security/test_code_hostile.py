"""Executors and fork servers that lie, flood and stand still: a neighbour does not notice, and every wait ends."""

import asyncio
import os
from pathlib import Path

import pytest
from support.executors import executors, fork_servers, needs_python
from support.loop_time import bounded_callbacks

from cove import AsyncSandbox, ContextCrashed, SpawnFailed
from cove.api import CodeContext

pytestmark = [pytest.mark.anyio, needs_python]

# 128 MiB of results of a run, 32 MiB that wait to be read, one that arrives, and what the allocator keeps.
MEMORY_BYTES = 220 << 20

# Sends what it is told to as fast as it can, on the channel of the executor that it runs in.
FORGE = """
import os
def frame(kind, payload=b""):
    return kind + len(payload).to_bytes(4, "big") + payload
def pour(*frames, times=1 << 40):
    data = memoryview(b"".join(frames) * max(1, (1 << 18) // sum(map(len, frames))))
    for _ in range(times):
        at = 0
        while at < len(data):
            at += os.write(200, data[at:])
def send(data):
    os.write(200, data)
"""
FLOODS = {
    "a message that never ends": 'send(frame(b"D") + frame(b"T", b"a")); pour(frame(b"+", b"x" * 65536))',
    "bytes that are no text": 'send(frame(b"D") + frame(b"T", b"a")); pour(frame(b"+", b"\\xff" * 65536))',
    "single characters": 'send(frame(b"D") + frame(b"T", b"a")); pour(frame(b"+", b"x"))',
    "parts": 'send(frame(b"D")); pour(frame(b"T", b"a"))',
    "empty displays": 'pour(frame(b"D") + frame(b"."))',
    "large displays": 'pour(frame(b"D"), frame(b"T", b"a"), *[frame(b"+", b"x" * 65536)] * 200, frame(b"."))',
    "displays of control characters": 'pour(frame(b"D"), frame(b"T", b"a"), *[frame(b"+", b"\\1" * 65536)] * 40, frame(b"."))',  # noqa: E501
    "one wide character at last": 'pour(frame(b"D"), frame(b"T", b"a"), *[frame(b"+", b"x" * 65536)] * 200, frame(b"+", "\\U0001f600".encode()), frame(b"."))',  # noqa: E501
    "lists": 'send(frame(b"D") + frame(b"J", b"a") + frame(b"+", b\'["["]\')); pour(frame(b"+", b"[" + b\'"[","]",\' * 499 + b\'"[","]"]\'))',  # noqa: E501
    "whole objects": 'pour(frame(b"D"), frame(b"J", b"a"), frame(b"+", b\'["["]\'), *[frame(b"+", b"[" + b\'"{","]",\' * 499 + b\'"{","]"]\')] * 60, frame(b"+", b\'["]"]\'), frame(b"."))',  # noqa: E501
    "depth": 'pour(frame(b"D"), frame(b"J", b"a"), frame(b"+", b\'["["\' + b\',"["\' * 900 + b"]"), frame(b"."))',
    "errors": 'pour(frame(b"X"), frame(b"T", b"message"), *[frame(b"+", b"x" * 65536)] * 20, frame(b"."))',
    "ends": 'pour(frame(b"E", b"1"))',
    "greetings": 'pour(frame(b"R"))',
    "promises": 'pour(frame(b"D") + b"T\\xff\\xff\\xff\\xff")',
    "nothing of all that": "pour(bytes(range(256)))",
    "text": "import os\nwhile True: os.write(1, b'x' * 65536)",
    "text that is none": "import os\nwhile True: os.write(1, b'\\xff' * 65536); os.write(2, b'\\xe2' * 65536)",
    "single letters": "import os\nwhile True: os.write(1, b'x'); os.write(2, b'y')",
}  # fmt: skip


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


async def flood(sandbox: AsyncSandbox, code: str, *, reads: bool) -> None:
    context = await sandbox.create_code_context()
    await context.run(FORGE)
    try:
        if reads:
            await context.run(code, timeout=0.7)
        else:
            async for _ in context.stream(code, timeout=1.5):
                await asyncio.sleep(0.7)  # a reader that is slow: it does not wait for anything
                break
    except ContextCrashed:
        pass
    finally:
        await context.delete()


@pytest.mark.alone
@pytest.mark.parametrize("reads", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("name", FLOODS)
async def test_a_forged_executor_that_floods_costs_a_neighbour_nothing(name: str, reads: bool) -> None:
    async with AsyncSandbox.create() as hostile, AsyncSandbox.create() as neighbour:
        await neighbour.exec("true")
        await (await hostile.create_code_context()).run("1")
        before = resident_bytes()
        for attempt in bounded_callbacks():
            with attempt:
                flooding = asyncio.create_task(flood(hostile, f"send(b'')\n{FLOODS[name]}", reads=reads))
                most = 0
                while not flooding.done():
                    assert (await neighbour.exec("true", timeout=20)).ok
                    most = max(most, resident_bytes())
                await flooding
        assert most - before < MEMORY_BYTES
        assert (await hostile.run_code("1 + 1")).text == "2"


async def test_a_stopped_executor_is_ended() -> None:
    async with AsyncSandbox.create() as sandbox:
        context, other = [await sandbox.create_code_context() for _ in range(2)]
        async with asyncio.timeout(20):
            with pytest.raises(ContextCrashed):
                await context.run("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
            with pytest.raises(ContextCrashed):
                await context.run("1")
            await context.delete()
        assert (await other.run("1")).text == "1"
        assert len(await executors(sandbox)) == 1


STOP = """
import os
while True:
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            if b'executor/' + b'server.py' in open(f'/proc/{pid}/cmdline', 'rb').read():
                os.kill(int(pid), 19)
        except OSError:
            pass
    print('stopped', flush=True)
"""


async def test_a_python_that_is_stopped_whenever_it_starts_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.create_code_context()
        stopping = await sandbox.start_process(["/usr/bin/python3", "-I", "-S", "-c", STOP])
        await stopping.wait_for_log("stopped", timeout=20)
        monkeypatch.setattr("cove.runtime.fork_server._START_SECONDS", 1.0)
        async with asyncio.timeout(60):
            for _ in range(2):
                with pytest.raises(SpawnFailed):
                    await sandbox.create_code_context()
            await stopping.kill()
        monkeypatch.undo()
        assert (await sandbox.run_code("1 + 1")).text == "2"


async def test_a_stopped_fork_server_is_replaced_and_no_call_waits_for_it() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        (server,) = await fork_servers(sandbox)
        creations = [asyncio.create_task(sandbox.create_code_context()) for _ in range(10)]
        async with asyncio.timeout(20):
            await sandbox.exec(f"kill -STOP {server}")
            made = await asyncio.gather(*creations, return_exceptions=True)
            assert all(isinstance(each, CodeContext | SpawnFailed) for each in made), made
            with pytest.raises(ContextCrashed):
                await context.run("while True: pass")
            assert (await sandbox.run_code("1 + 1")).text == "2"
            await context.delete()
        assert server not in await fork_servers(sandbox)
