"""The lines that a server prints: of processes that die, and of requests that it refuses."""

import asyncio
import json
import os
import signal
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.programs import wait_until_gone
from support.raw_http import connect
from support.servers import Server, eventually, serving

from cove import SandboxStatus
from cove.errors import SandboxUnavailable

pytestmark = pytest.mark.anyio

JSON = ("--log-format", "json")


async def read_line(server: Server) -> dict[str, object]:
    assert server.process.stdout is not None
    async with asyncio.timeout(20):
        found = json.loads(await asyncio.to_thread(server.process.stdout.readline))
    assert isinstance(found, dict)
    assert str(found.pop("time")).endswith("Z")
    return found


def death(role: str, pid: int, end: str | None, then: str, **facts: str | None) -> dict[str, object]:
    how = "has ended" if end is None else f"was ended by {end}"
    message = f"The {role} with pid {pid} {how}: {then}."
    ended = {"event": "process_ended", "role": role, "pid": pid, "exit_code": None, "signal": end, "then": then}
    return {**ended, **facts, "message": message}


def lost(id: str) -> str:
    return f"what ran in sandbox {id} is lost, and its files are kept"


async def test_every_process_that_is_killed_has_a_line(other_home: Path) -> None:
    with serving(other_home, *JSON) as server:
        assert json.loads(server.said)["event"] == "serving"
        assert "memory" in json.loads(server.said)["defaults"]
        before = await server.create("before")
        await eventually(lambda: not server.directory.look_up("before").is_offered)  # its process has noted the answer
        restarted = "another one is started"
        worker = next(pid for pid, role in server.children().items() if role == "worker")
        os.kill(worker, signal.SIGKILL)
        assert await read_line(server) == death("worker", worker, "SIGKILL", restarted)
        own = await server.runtime("before")
        os.kill(own, signal.SIGKILL)
        line = await read_line(server)
        assert line == death("runtime", own, "SIGKILL", lost("before"), sandbox="before", owner=None)
        await before.restart()
        zygote, runtime = server.zygote(), await server.runtime("before")
        os.kill(zygote, signal.SIGKILL)
        assert await read_line(server) == death("zygote", zygote, "SIGKILL", restarted)
        await create_when_the_next_zygote_is_ready(server, "after")
        os.kill(runtime, signal.SIGKILL)  # of the zygote before: nobody is told how it has ended
        line = await read_line(server)
        assert line == death("runtime", runtime, None, lost("before"), sandbox="before", owner=None)
        for id in ("before", "after"):
            await server.starter.destroy(id)


async def create_when_the_next_zygote_is_ready(server: Server, id: str) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await server.create(id)
            except SandboxUnavailable:
                await asyncio.sleep(0.01)  # there is nothing else to wait by
            else:
                return


async def test_a_runtime_that_ends_as_it_should_has_no_line(other_home: Path) -> None:
    with serving(other_home, *JSON) as server:
        sandbox = await server.create("x")
        runtime = await server.runtime("x")
        await sandbox.stop()
        assert await asyncio.to_thread(wait_until_gone, [runtime]) == []
        assert await server.status("x") is SandboxStatus.STOPPED
        await server.starter.destroy("x")
        worker = next(pid for pid, role in server.children().items() if role == "worker")
        os.kill(worker, signal.SIGKILL)
        assert (await read_line(server))["role"] == "worker"


async def test_refused_requests_are_announced_by_class_and_each_once(other_home: Path) -> None:
    port = 0
    with serving(other_home, *JSON) as server:
        port = urlsplit(server.url).port or 0
        await asyncio.gather(*(refused(port, b"authorization: Bearer wrong\r\n") for _ in range(20)))
        lines = [await read_line(server)]
        await refused(port, b"origin: http://elsewhere.example\r\n")
        server.process.terminate()
        await asyncio.to_thread(server.process.wait)
        assert server.process.stdout is not None
        lines += [json.loads(line) for line in server.process.stdout.readlines() if line.startswith("{")]
    counts: dict[object, int] = {}
    for line in lines:
        assert line["event"] == "requests_refused"
        assert isinstance(line["count"], int)
        counts[line["code"]] = counts.get(line["code"], 0) + line["count"]
    assert counts == {"UNAUTHORIZED": 20, "PERMISSION_DENIED": 1}
    assert len(lines) <= 4


async def refused(port: int, header: bytes) -> None:
    async with connect(port) as client:
        client.send(b"GET /v1/sandboxes HTTP/1.1\r\nhost: 127.0.0.1\r\n" + header + b"\r\n")
        assert (await client.reply()).status in (401, 403)


async def test_a_server_whose_lines_nobody_reads_goes_on(other_home: Path) -> None:
    """A pipe that is full takes no line, and no process waits for its reader."""
    with serving(other_home) as server:
        assert server.process.stdout is not None
        fill(server)
        for _ in range(2):
            worker = next(pid for pid, role in server.children().items() if role == "worker")
            os.kill(worker, signal.SIGKILL)
            await eventually(lambda: len(server.children()) == 3 and worker not in server.children())  # noqa: B023
        sandbox = await server.create("x")
        assert (await sandbox.exec("echo fine")).stdout == "fine\n"
        await sandbox.destroy()


def fill(server: Server) -> None:
    """Fill the pipe that the server prints to, through its own descriptor."""
    descriptor = os.open(f"/proc/{server.process.pid}/fd/1", os.O_WRONLY | os.O_NONBLOCK)
    try:
        while True:
            os.write(descriptor, b"\n" * 4096)
    except BlockingIOError:
        os.close(descriptor)
