"""A server that is told to stop, as its clients see it: what was not read is repeated, what was read is answered."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
from support.leaks import is_exiting, processes_below
from support.servers import Server, eventually, left_behind, name_of, serving

from cove import AsyncSandbox
from cove.client.retry import retry
from cove.client.transport import Transport
from cove.errors import ConnectionLost, ProcessReadyTimeout
from cove.wire import operations, requests
from soak.server import free_port

pytestmark = pytest.mark.anyio


def is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False


async def test_a_server_that_gives_its_last_answers_takes_no_new_connection(other_home: Path) -> None:
    port = str(free_port())
    with serving(other_home, "--port", port, "--on-stop", "destroy") as server:
        sandbox = await server.create("x")
        last = asyncio.ensure_future(sandbox.exec("touch begun; while [ ! -e end ]; do sleep 0.01; done; echo done"))
        while not await sandbox.files.exists("begun"):
            await asyncio.sleep(0)
        runtime = server.directory.socket(await server.record("x"))
        async with AsyncSandbox.connect("x", url=f"unix://{runtime}") as inside:
            server.process.terminate()
            await eventually(lambda: is_refused(int(port)), seconds=4.0)
            assert not last.done()
            await inside.files.write("end", "")
            assert (await last).stdout == "done\n"
        await sandbox.detach()


async def test_a_server_that_stops_while_it_makes_a_warm_sandbox_leaves_nothing(other_home: Path) -> None:
    with serving(other_home, "--warm", "1", "--on-stop", "destroy") as server:
        await eventually(lambda: bool(_runtimes()))
        (making,) = _runtimes()
        os.kill(making, signal.SIGSTOP)
        server.process.terminate()
        await eventually(lambda: not server.children())
        os.kill(making, signal.SIGCONT)
        await asyncio.to_thread(server.process.wait, 60)
        assert (_runtimes(), left_behind(other_home)) == ([], [])


async def test_a_server_that_stops_waits_for_its_warm_sandboxes(other_home: Path) -> None:
    with serving(other_home, "--warm", "2") as server:
        waiting = other_home / "server" / "warm"
        await eventually(lambda: len(list(waiting.glob("*/*"))) == 2)
        server.process.terminate()
        await asyncio.to_thread(server.process.wait, 60)
        assert (_runtimes(), left_behind(other_home)) == ([], [])


def _runtimes() -> list[int]:
    """The processes of sandboxes below this one, also those that wait for an id; not those in exit(2)."""
    below = (pid for pid in processes_below(os.getpid()) if not is_exiting(pid))
    return [pid for pid in below if name_of(pid) == "cove-runtime"]


@asynccontextmanager
async def _appending(server: Server, calls: int, *, is_pooled: bool) -> AsyncIterator["asyncio.Future[list[None]]"]:
    """Clients that add a line with every call, each on the connection of its last call or on a new one."""
    path = f"/v1/sandboxes/x{operations.EXEC.path}"

    async def append() -> None:
        pooled = Transport(server.url, server.key)
        pooled.acquire()
        for _ in range(calls):
            transport = pooled if is_pooled else Transport(server.url, server.key)
            await transport.call(operations.EXEC, path, requests.Exec(command="echo line >> lines"))
        await pooled.release()

    async with asyncio.TaskGroup() as group:
        yield asyncio.gather(*(group.create_task(append()) for _ in range(8)))


@pytest.mark.parametrize("is_pooled", [True, False], ids=["on kept connections", "on new connections"])
async def test_no_call_is_lost_or_done_twice_while_a_server_is_restarted(other_home: Path, is_pooled: bool) -> None:
    port = str(free_port())
    with ExitStack() as stack:
        server = stack.enter_context(serving(other_home, "--port", port))
        sandbox = await server.create("x")
        async with _appending(server, 100, is_pooled=is_pooled) as done:
            for _ in range(3):
                await sandbox.exec("true")
                server.process.terminate()
                assert await asyncio.to_thread(server.process.wait, 30) == 0
                server = stack.enter_context(serving(other_home, "--port", port))
            await done
        assert (await sandbox.exec("wc -l < lines")).stdout == f"{8 * 100}\n"
        await sandbox.destroy()


async def test_a_wait_that_outlives_a_restart_ends_at_its_limit(other_home: Path) -> None:
    port = str(free_port())
    with serving(other_home, "--port", port) as first:
        sandbox = await first.create("x")
        process = await sandbox.start_process("sleep 1000")
        waiting = asyncio.ensure_future(process.wait_for_log("never", timeout=6))
        await sandbox.exec("true")
        first.kill_all()
        with serving(other_home, "--port", port):
            with pytest.raises(ProcessReadyTimeout):
                await waiting
            await sandbox.destroy()


async def test_the_limit_of_a_wait_counts_from_the_call_however_often_it_is_repeated() -> None:
    limits: list[float] = []

    async def wait(request: requests.Request | None) -> None:
        assert isinstance(request, requests.Waiting)
        limits.append(request.timeout or 0.0)
        if len(limits) < 3:
            await asyncio.sleep(0.1)
            raise ConnectionLost("the server is away")

    await retry(wait, requests.Wait(timeout=60), is_repeatable=True)
    assert limits[0] == 60
    assert limits[1] <= 59.9
    assert limits[2] <= 59.8


async def test_what_a_refused_connection_was_for_is_done_when_the_server_is_back(other_home: Path) -> None:
    port = str(free_port())
    with serving(other_home, "--port", port) as first:
        sandbox = await first.create("x")
        first.kill_all()

        async def chunks() -> AsyncIterator[bytes]:
            yield b"streamed"

        ran = asyncio.ensure_future(sandbox.exec("echo run"))
        made = asyncio.ensure_future(first.create("y"))
        others = [
            asyncio.ensure_future(sandbox.files.write("written", "text")),
            asyncio.ensure_future(sandbox.files.write_stream("streamed", chunks())),
            asyncio.ensure_future(sandbox.start_process("sleep 1000", id="p")),
        ]
        ended, _ = await asyncio.wait([ran, made, *others], timeout=0.2)
        assert [each.exception() for each in ended] == []
        with serving(other_home, "--port", port):
            await asyncio.gather(*others)
            assert (await ran).stdout == "run\n"
            assert await sandbox.files.read_text("written") == "text"
            assert await sandbox.files.read("streamed") == b"streamed"
            for each in (sandbox, await made):
                await each.destroy()
