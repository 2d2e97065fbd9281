"""Code inside stops what would answer: every call still returns, and only its own sandbox notices."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cove import AsyncSandbox
from cove.api import Process
from cove.errors import CoveError
from cove.runtime.exec import TIMEOUT_GRACE

pytestmark = pytest.mark.anyio

# Stops every agent process but PID 1 and its own launcher: once, or again and again.
STOPPER = """
import os, signal, sys
spared = {1, os.getppid(), os.getpid()}
while True:
    for name in filter(str.isdigit, os.listdir('/proc')):
        pid = int(name)
        try:
            if pid not in spared and any(word in open(f'/proc/{pid}/cmdline').read() for word in sys.argv[2:]):
                os.kill(pid, signal.SIGSTOP)
        except OSError:
            continue
    print('stopped', flush=True)
    if sys.argv[1] == 'once':
        break
"""
# What a kill takes on a busy machine: two of the agent's passes over /proc and a round trip.
KILL_SECONDS = 3.0


@asynccontextmanager
async def stopping(sandbox: AsyncSandbox, how: str, *words: str) -> AsyncIterator[Process]:
    """Something inside that stops whatever has one of these words on its command line."""
    stopper = await sandbox.start_process(["python3", "-I", "-c", STOPPER, how, *words])
    await stopper.wait_for_log("stopped", timeout=30)
    yield stopper
    await stopper.kill("KILL")


async def run_command(sandbox: AsyncSandbox) -> None:
    assert (await sandbox.exec("echo on", timeout=30)).stdout == "on\n"


async def run_process(sandbox: AsyncSandbox) -> None:
    process = await sandbox.start_process("echo on")
    assert (await process.output(timeout=30)).stdout == "on\n"


async def run_session(sandbox: AsyncSandbox) -> None:
    session = await sandbox.create_session()
    assert (await session.exec("echo on", timeout=30)).stdout == "on\n"
    await session.delete()


async def run_terminal(sandbox: AsyncSandbox) -> None:
    terminal = await sandbox.terminal(shell=["echo", "on"])
    async with terminal.connect() as viewer:
        assert b"on" in b"".join([event.data async for event in viewer.events() if event.type == "output"])
    await terminal.destroy()


async def run_code(sandbox: AsyncSandbox) -> None:
    assert (await sandbox.run_code("1 + 1", timeout=30)).text == "2"


async def list_files(sandbox: AsyncSandbox) -> None:
    await sandbox.files.write("there", b"")
    assert "there" in [each.name for each in await sandbox.files.list(".", recursive=True)]


SURFACES: dict[str, Callable[[AsyncSandbox], Awaitable[None]]] = {
    "exec": run_command,
    "process": run_process,
    "session": run_session,
    "terminal": run_terminal,
    "code": run_code,
    "files": list_files,
}


@pytest.mark.parametrize("name", SURFACES)
async def test_launchers_that_were_stopped_are_replaced(name: str) -> None:
    async with AsyncSandbox.create() as sandbox, AsyncSandbox.create() as neighbour, asyncio.timeout(60):
        await asyncio.gather(*(sandbox.exec("true") for _ in range(4)))
        async with stopping(sandbox, "once", "init.pyc"):
            await SURFACES[name](sandbox)
            await SURFACES[name](neighbour)


@pytest.mark.parametrize("name", SURFACES)
async def test_whatever_is_stopped_all_the_time_every_call_returns(name: str) -> None:
    async with AsyncSandbox.create() as sandbox, AsyncSandbox.create() as neighbour, asyncio.timeout(90):
        async with stopping(sandbox, "again", "init.pyc", "errand.pyc", "server.pyc", "server.py"):
            for _ in range(3):
                try:
                    await SURFACES[name](sandbox)
                except (CoveError, AssertionError):
                    continue  # what it gets is its own sandbox's doing; that it gets something is ours
            await SURFACES[name](neighbour)
        await SURFACES[name](sandbox)


async def test_a_timeout_counts_from_the_call_also_where_nothing_can_be_started() -> None:
    async with AsyncSandbox.create() as sandbox:
        async with stopping(sandbox, "again", "init.pyc"):
            for _ in range(5):
                began = time.monotonic()
                try:
                    result = await sandbox.exec("sleep 1000", timeout=1)
                    assert result.outcome in ("timed_out", "signaled")
                except CoveError as error:
                    assert error.code == "SPAWN_FAILED"
                assert time.monotonic() - began < 1 + TIMEOUT_GRACE + KILL_SECONDS
        assert (await sandbox.exec("echo on")).stdout == "on\n"
