"""A caller that stops waiting for a process, wherever it was suspended, leaves the process running."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial

import pytest
from support.cancellation import cancel_after
from support.inside import commands_inside
from support.leaks import descriptors
from support.servers import eventually

from cove import AsyncSandbox
from cove.api import Process
from cove.model import ProcessStatus
from cove.runtime import log

pytestmark = pytest.mark.anyio

# Prints a line a hundredth of a second, listens on a port that never answers well, and goes on until told.
COMMAND = """
python3 -c '
import socket
s = socket.create_server(("127.0.0.1", 4000))
print("listening", flush=True)
while True:
    c, _ = s.accept()
    c.recv(100)
    c.sendall(b"HTTP/1.1 500 no\\r\\n\\r\\n")
    c.close()
' &
head -c 200000 /dev/zero; echo
until [ -e go ]; do sleep 0.01; echo tick; done; kill %1; exit 7
"""


async def read_all(process: Process, follow: bool = True) -> None:
    async for _ in process.logs(follow=follow):
        await asyncio.sleep(0)


WAITS: dict[str, Callable[[Process], Coroutine[object, object, object]]] = {
    "wait": lambda process: process.wait(),
    "output": lambda process: process.output(),
    "a reader": read_all,
    "wait_for_log": lambda process: process.wait_for_log("never"),
    "wait_for_port": lambda process: process.wait_for_port(4000),
    "wait_for_port that nobody has": lambda process: process.wait_for_port(4001),
    "write_stdin": lambda process: process.write_stdin(b"x" * 1_000_000),
}


@pytest.mark.parametrize("name", WAITS)
async def test_a_wait_cancelled_at_any_turn_leaves_the_process_and_nothing_else(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "WINDOW_BYTES", 4096)
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process(COMMAND, stdin=True)
        await process.wait_for_log("listening")
        await process.wait_for_log("tick")
        before = None
        for turns in [*range(25), 40, 80, 160, 320]:
            assert await cancel_after(turns, WAITS[name](process))
            if turns == 10:
                before = len(descriptors())
        assert before is not None
        await eventually(partial(_holds_at_most, before))  # a thread closes what a cancelled call has opened in it
        assert process.log.readers == 0  # type: ignore[attr-defined]
        assert process.status is ProcessStatus.RUNNING
        await sandbox.exec("touch go")
        assert (await process.wait(timeout=30)).exit_code == 7


def _holds_at_most(number: int) -> bool:
    return len(descriptors()) <= number


async def test_a_start_cancelled_at_any_turn_leaves_nothing_running() -> None:
    async with AsyncSandbox.create() as sandbox:
        for turns in range(40):
            command = "setsid sleep 1000 & trap '' TERM; sleep 2000"
            start = asyncio.ensure_future(sandbox.start_process(command, id="same", stdin=True))
            for _ in range(turns):
                await asyncio.sleep(0)
            start.cancel()
            await asyncio.wait([start])
            if not start.cancelled():
                await start.result().kill("KILL")
                assert await sandbox.cleanup_processes() == 1
            assert await sandbox.list_processes() == []
        assert await commands_inside(sandbox) == []


@pytest.mark.parametrize("name", ["kill", "terminate"])
async def test_an_end_goes_on_when_its_caller_is_cancelled(name: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        for turns in range(15):
            process = await sandbox.start_process("trap '' TERM; sleep 1000 & echo up; wait; sleep 1000")
            await process.wait_for_log("up")
            await cancel_after(turns, process.kill("KILL") if name == "kill" else process.terminate(0.01))
            if turns:
                assert (await process.wait(timeout=30)).exit_code == 137
            else:
                await process.kill("KILL")
        assert await commands_inside(sandbox) == []


async def test_a_reader_that_is_left_in_the_middle_is_freed_at_once() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("echo a; echo b >&2; sleep 1000")
        await process.wait_for_log("b")
        events = process.logs()
        await anext(events)
        assert process.log.readers == 1  # type: ignore[attr-defined]
        await events.aclose()
        assert process.log.readers == 0  # type: ignore[attr-defined]
