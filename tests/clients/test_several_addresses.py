"""What a client does with several addresses of one server, separated by commas."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from support.scripted_server import Script, scripted
from support.servers import Server

from cove import AsyncSandbox
from cove.client import retry, servers
from cove.client.servers import parse_addresses
from cove.client.transport import Transport
from cove.errors import ConnectionLost, NodeLost, NodeUnavailable, SandboxUnavailable, Unreachable, ValidationFailed
from cove.wire import operations, requests
from cove.wire.errors import encode_error, status_of

pytestmark = [pytest.mark.anyio, pytest.mark.pure]

REFUSING = "http://127.0.0.1:1"
_BLOCKING = """
from cove import Sandbox
with Sandbox.create() as sandbox:
    print(sandbox.exec("echo in").stdout, end="")
"""


class Node:
    """An address that counts the requests it reads, and answers or does as it is told."""

    def __init__(self) -> None:
        self.asked = 0
        self.breaks = False
        self.is_stopping = False
        self.error: ConnectionLost | SandboxUnavailable | None = None
        self.answering = asyncio.Event()
        self.answering.set()
        self.url = ""

    async def script(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = [line for line in head.split(b"\r\n") if line.startswith(b"content-length")]
            await reader.readexactly(int(length[0].split(b":")[1]) if length else 0)
            self.asked += 1
            if self.breaks:
                return
            await self.answering.wait()
            status, body = 200, b"[]"
            if self.error is not None:
                status, body = status_of(self.error), encode_error(self.error)
            if self.is_stopping:
                status, body = 408, encode_error(SandboxUnavailable("the server is stopping"))
            writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))


@asynccontextmanager
async def listening(script: Script) -> AsyncIterator[str]:
    async with scripted(script, lambda begin: asyncio.start_server(begin, "127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def cluster(count: int, *others: str) -> AsyncIterator[tuple[list[Node], Transport]]:
    """So many nodes and a client of all of them, and of the other addresses."""
    nodes = [Node() for _ in range(count)]
    async with AsyncExitStack() as stack:
        for node in nodes:
            node.url = await stack.enter_async_context(listening(node.script))
        transport = Transport(", ".join((*others, *(node.url for node in nodes))), None)
        transport.acquire()
        stack.push_async_callback(transport.release)
        yield nodes, transport


async def list_sandboxes(transport: Transport) -> bytes:
    return await transport.call(operations.LIST, operations.LIST.path)


async def run(transport: Transport) -> bytes:
    """A call that may not be repeated when it may have run."""
    return await transport.call(operations.EXEC, "/v1/sandboxes/x/exec", requests.Exec.of(command="true"))


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("http://a:1,http://b:2", ["a", "b"]),
        (" http://a:1 , https://b ", ["a", "b"]),
        ("http://a:1,http://a:1", ["a"]),
        ("http://a/with,comma", ["a"]),
    ],
)
def test_addresses_are_separated_by_commas(url: str, hosts: list[str]) -> None:
    assert [address.host for address in parse_addresses(url)] == hosts


@pytest.mark.parametrize("url", ["http://a:1,b:2", "http://a:1,", ",http://a:1", "http://a,ftp://b"])
def test_what_is_no_list_of_addresses_is_refused(url: str) -> None:
    with pytest.raises(ValidationFailed, match="is not the address of a server"):
        parse_addresses(url)


def test_there_may_not_be_any_number_of_addresses() -> None:
    with pytest.raises(ValidationFailed, match="256 addresses at most, not 257"):
        parse_addresses(",".join(f"http://a:{port}" for port in range(1, 258)))


async def test_who_refuses_is_passed_over_whatever_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.0)
    async with cluster(1, REFUSING) as ((node,), transport):
        for call in (list_sandboxes, run) * 3:
            await call(transport)
        assert node.asked == 6


async def test_calls_one_after_another_stay_and_calls_at_once_spread() -> None:
    async with cluster(3) as (nodes, transport):
        for _ in range(10):
            await list_sandboxes(transport)
        assert sorted(node.asked for node in nodes) == [0, 0, 10]
        for node in nodes:
            node.asked = 0
            node.answering.clear()
        calls = [asyncio.ensure_future(list_sandboxes(transport)) for _ in range(12)]
        async with asyncio.timeout(10):
            while sum(node.asked for node in nodes) < 12:
                await asyncio.sleep(0)
        assert [node.asked for node in nodes] == [4, 4, 4]
        for node in nodes:
            node.answering.set()
        await asyncio.gather(*calls)


async def test_what_may_have_run_is_repeated_nowhere_and_reading_elsewhere() -> None:
    async with cluster(2) as (nodes, transport):
        for node in nodes:
            node.breaks = True
        with pytest.raises(ConnectionLost):
            await run(transport)
        (asked,) = [node for node in nodes if node.asked]
        (other,) = [node for node in nodes if not node.asked]
        other.breaks = False
        await run(transport)
        assert (asked.asked, other.asked) == (1, 1), "the one that broke is left out"
        other.breaks, asked.breaks = True, False
        assert await list_sandboxes(transport) == b"[]"
        assert (asked.asked, other.asked) == (2, 2)


async def test_one_that_stops_has_not_read_the_call_and_another_gets_it() -> None:
    async with cluster(2) as (nodes, transport):
        nodes[0].is_stopping = True
        nodes[1].is_stopping = True
        first = asyncio.ensure_future(run(transport))
        async with asyncio.timeout(10):
            while not any(node.asked for node in nodes):
                await asyncio.sleep(0)
        for node in nodes:
            node.is_stopping = bool(node.asked)
        assert await first == b"[]"
        assert sorted(node.asked for node in nodes) == [1, 1]


async def test_a_single_call_tries_one_that_failed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_FIRST_REST", 0.05)
    async with cluster(2) as (nodes, transport):
        for node in nodes:
            node.breaks = True
        with pytest.raises(ConnectionLost):
            await run(transport)
        (failed,) = [node for node in nodes if node.asked]
        (other,) = [node for node in nodes if not node.asked]
        failed.breaks = other.breaks = False
        failed.asked = 0
        failed.answering.clear()
        await asyncio.sleep(0.1)  # what it rests
        calls = [asyncio.ensure_future(list_sandboxes(transport)) for _ in range(8)]
        async with asyncio.timeout(10):
            while other.asked + failed.asked < 8:
                await asyncio.sleep(0)
        assert failed.asked == 1
        failed.answering.set()
        await asyncio.gather(*calls)


async def test_when_nobody_answers_the_reason_is_that_of_who_may_be_back_soonest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(servers, "_CONNECT_SECONDS_BESIDE_OTHERS", 0.05)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        fillers = [socket.socket() for _ in range(2)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        silent = f"http://127.0.0.1:{full.getsockname()[1]}"
        transport = Transport(f"{silent},{REFUSING},unix:///no/such", None)
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1: Connection refused|unix:///no/such: No such file"):
            await run(transport)
        for filler in fillers:
            filler.close()


@pytest.mark.parametrize("call", [list_sandboxes, run])
async def test_what_a_server_says_of_its_nodes_is_raised_and_not_waited_for(
    call: Callable[[Transport], Awaitable[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "SILENT_SECONDS", 0.0)
    async with cluster(1) as ((node,), transport):
        for error in (NodeUnavailable("node b does not answer", node="b"), NodeLost("node b is gone", node="b")):
            node.error, node.asked = error, 0
            with pytest.raises(type(error), match="node b"):
                await call(transport)
            assert node.asked == 1


async def test_silence_counts_from_when_a_machine_was_last_heard() -> None:
    long_ago = asyncio.get_running_loop().time() - 1000
    silent, refused = Unreachable("no answer in time", is_silent=True), Unreachable("Connection refused")
    with pytest.raises(Unreachable, match="no answer in time"):
        await retry.Backoff(None, long_ago).pause(silent)
    backoff = retry.Backoff(None, long_ago)
    await backoff.pause(refused)
    await backoff.pause(silent)


async def test_a_sandbox_is_used_through_whichever_address_answers(shared_server: Server) -> None:
    url = f"{REFUSING},{shared_server.url}"
    async with AsyncSandbox.create(url=url, api_key=shared_server.key) as sandbox:
        assert (await sandbox.exec("echo in")).stdout == "in\n"


@pytest.mark.parametrize("program", ["blocking", "command line"])
def test_other_programs_take_several_addresses(shared_server: Server, program: str) -> None:
    code = "from cove.cli import main; main()"
    arguments = ["exec", "--", "echo", "in"]
    if program == "blocking":
        code, arguments = _BLOCKING, []
    end = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "COVE_URL": f"{REFUSING},{shared_server.url}", "COVE_API_KEY": shared_server.key},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (end.returncode, end.stdout) == (0, "in\n"), end.stderr
