"""Code inside stops what would answer: every call still returns, and only its own sandbox notices."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress

import pytest
from support.inside import agents_outside, init_below, inits_below

from cove import AsyncSandbox
from cove.api import Process
from cove.errors import (
    ConnectionLost,
    ContextCrashed,
    CoveError,
    ProcessExitedBeforeReady,
    ServiceNotResponding,
    SpawnFailed,
)
from cove.model import Output
from cove.runtime import launcher, link

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
WELL_BELOW_START = launcher.START_SECONDS - 5


@asynccontextmanager
async def stopping(sandbox: AsyncSandbox, how: str, *words: str) -> AsyncIterator[Process]:
    """Something inside that stops whatever has one of these words on its command line."""
    stopper = await sandbox.start_process(["python3", "-I", "-c", STOPPER, how, *words])
    await stopper.wait_for_log("stopped", timeout=30)
    yield stopper
    await stopper.kill("KILL")


def send(number: int, *pids: int) -> None:
    for pid in pids:
        os.kill(pid, number)


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
        assert b"on" in b"".join([event.data async for event in viewer.events() if isinstance(event, Output)])
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


# Without code contexts: all of them end with the launcher of the Python that they are forked from.
@pytest.mark.parametrize("name", sorted(SURFACES.keys() - {"code"}))
async def test_what_was_handed_to_a_launcher_that_is_killed_before_it_reads_it_runs_all_the_same(name: str) -> None:
    async with AsyncSandbox.create() as sandbox, asyncio.timeout(60):
        await SURFACES[name](sandbox)
        await asyncio.gather(*(sandbox.exec("true") for _ in range(4)))
        init = init_below(os.getpid())
        launchers = set(agents_outside()) - {init}
        send(signal.SIGSTOP, init, *launchers)  # init too, which would end a launcher that is stopped
        call = asyncio.ensure_future(SURFACES[name](sandbox))
        for _ in range(20):
            await asyncio.sleep(0)
        send(signal.SIGKILL, *launchers)
        send(signal.SIGCONT, init)
        await call


@pytest.mark.parametrize("language", ["python", "javascript"])
async def test_a_context_that_is_stopped_has_crashed(language: str) -> None:
    async with AsyncSandbox.create() as sandbox, asyncio.timeout(60):
        context = await sandbox.create_code_context(language)
        code = "import os; os.getpid()" if language == "python" else "process.pid"
        pid = (await context.run(code)).text
        run = asyncio.ensure_future(context.run("while True: pass" if language == "python" else "while (true);"))
        await sandbox.exec(f"kill -STOP {pid}")
        with pytest.raises(ContextCrashed):
            await run
        assert (await sandbox.run_code("1 + 1", language=language)).text == "2"


async def test_the_python_that_contexts_are_forked_from_is_replaced_when_it_is_stopped() -> None:
    async with AsyncSandbox.create() as sandbox, asyncio.timeout(60):
        assert (await sandbox.run_code("1 + 1")).text == "2"
        async with stopping(sandbox, "once", "executor/server.py"):
            with suppress(SpawnFailed, ContextCrashed):  # it was just being ended
                await sandbox.run_code("1 + 1")
            assert (await sandbox.run_code("1 + 1")).text == "2"


async def test_a_file_operation_that_is_stopped_fails() -> None:
    async with AsyncSandbox.create() as sandbox, asyncio.timeout(60):
        async with aclosing(sandbox.files.watch(".")) as events:
            await anext(events)
            async with stopping(sandbox, "once", "errand.pyc"):
                with pytest.raises(ProcessExitedBeforeReady):
                    await anext(events)
        await list_files(sandbox)


# Its queue is full when a connection to it is not made at once.
DEAF = """
import socket
server = socket.socket()
server.bind(('127.0.0.1', 3000))
server.listen(0)
waiting = []
while True:
    waiting.append(socket.socket())
    waiting[-1].settimeout(0.5)
    try:
        waiting[-1].connect(('127.0.0.1', 3000))
    except TimeoutError:
        break
print('full', flush=True)
input()
"""


@pytest.mark.slow
async def test_a_service_that_never_accepts_does_not_respond() -> None:
    async with AsyncSandbox.create() as sandbox:
        server = await sandbox.start_process(["python3", "-I", "-c", DEAF], stdin=True)
        await server.wait_for_log("full", timeout=30)
        async with asyncio.timeout(20):  # seven of them until the kernel gives up
            with pytest.raises(ServiceNotResponding):
                await sandbox.ports.connect(3000).open()


async def test_a_sandbox_whose_agent_hangs_is_destroyed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "ANSWER_SECONDS", 1000.0)  # whoever asks it anything does not return
    sandbox = await AsyncSandbox.create()
    await sandbox.start_process("sleep 1000")
    send(signal.SIGSTOP, init_below(os.getpid()))
    await sandbox.destroy()
    assert agents_outside() == []


async def test_an_agent_that_does_not_answer_fails_the_call_and_not_the_sandbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "ANSWER_SECONDS", 2.0)
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("there", b"content")
        init = init_below(os.getpid())
        send(signal.SIGSTOP, init)
        with pytest.raises(ConnectionLost, match="did not answer"):
            await sandbox.files.read("there")
        send(signal.SIGCONT, init)
        assert await sandbox.files.read("there") == b"content"


async def test_a_tree_that_cannot_be_ended_costs_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "ANSWER_SECONDS", 2.0)
    async with AsyncSandbox.create() as sandbox, AsyncSandbox.create() as neighbour:
        await sandbox.exec("true")
        init = inits_below(os.getpid())[0]
        call = asyncio.ensure_future(sandbox.exec("trap '' TERM; sleep 1000", timeout=0.5))
        send(signal.SIGSTOP, init)
        result = await asyncio.wait_for(call, 30)
        assert result.outcome in ("timed_out", "lost")  # by its control group the command could be ended, or not
        assert (await sandbox.info()).status == "lost"
        assert (await neighbour.exec("echo on")).stdout == "on\n"


async def test_a_timeout_counts_from_the_call_also_where_nothing_can_be_started() -> None:
    async with AsyncSandbox.create() as sandbox:
        async with stopping(sandbox, "again", "init.pyc"):
            for _ in range(5):
                with suppress(SpawnFailed):
                    result = await asyncio.wait_for(sandbox.exec("sleep 1000", timeout=1), WELL_BELOW_START)
                    assert result.outcome in ("timed_out", "signaled")
        assert (await sandbox.exec("echo on")).stdout == "on\n"
