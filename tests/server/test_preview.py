"""Preview URLs of a real server: who gets through, and what passes in either direction."""

import asyncio
import hashlib
import json
import os
import signal
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.programs import wait_until_gone
from support.raw_http import Client, Reply, connect
from support.servers import Server, eventually, serving
from support.services import ECHO, FLOOD, HTTP, RAW, start
from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import ConnectionClosed

from cove import AsyncSandbox, ExposedPort, SandboxStatus
from cove.api import AwaitableContext

pytestmark = [pytest.mark.anyio, pytest.mark.pure]


@pytest.fixture
def server(shared_server: Server) -> Server:
    return shared_server


def on(server: Server, **fields: float) -> AwaitableContext[AsyncSandbox]:
    return AsyncSandbox.create(url=server.url, api_key=server.key, **fields)  # type: ignore[arg-type]  # a spec's fields


class Visitor:
    """Somebody who knows an URL: dials the server whatever the URL's host name is, and says that name."""

    def __init__(self, exposed: ExposedPort) -> None:
        self.host = urlsplit(exposed.url).netloc
        port = urlsplit(exposed.path_url).port
        assert port is not None
        self.port = port
        self.prefix = urlsplit(exposed.path_url).path.rstrip("/")

    async def get(self, path: str = "/", *, method: str = "GET", **headers: str) -> Reply:
        async with self.connect() as client:
            self.ask(client, path, method=method, **headers)
            return await client.reply(head_only=method == "HEAD")

    async def get_by_path(self, path: str, **headers: str) -> Reply:
        async with self.connect() as client:
            return await client.ask(self.prefix + path, body=None, **headers)

    def connect(self) -> AbstractAsyncContextManager[Client]:
        return connect(self.port)

    def ask(self, client: Client, path: str, *, method: str = "GET", **headers: str) -> None:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.host}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        client.send("\r\n".join([*lines, "", ""]).encode())


@asynccontextmanager
async def preview(server: Server, script: str, *arguments: str) -> AsyncIterator[tuple[AsyncSandbox, Visitor]]:
    """A sandbox that serves this on port 3000, and somebody who may see it."""
    async with on(server) as sandbox:
        await start(sandbox, script, 3000, *arguments)
        yield sandbox, Visitor(await sandbox.ports.expose(3000))


def headers_seen(reply: Reply) -> dict[str, str]:
    return {name.lower(): value for name, value in json.loads(reply.body)["headers"]}


async def test_a_page_is_seen_by_host_name_and_by_path(server: Server) -> None:
    async with preview(server, HTTP) as (_, visitor):
        reply = await visitor.get("/hello")
        assert (reply.status, reply.body) == (200, b"you asked for /hello")
        assert "content-security-policy" not in reply.headers
        reply = await visitor.get_by_path("/hello")
        assert (reply.status, reply.body) == (200, b"you asked for /hello")
        reply = await visitor.get_by_path("")
        assert (reply.status, reply.headers["location"]) == (308, f"{visitor.prefix}/")


async def test_pages_by_path_have_no_origin_that_they_could_share(server: Server) -> None:
    async with preview(server, HTTP) as (_, visitor):
        policy = (await visitor.get_by_path("/")).headers["content-security-policy"]
        assert policy.startswith("sandbox ")
        assert "allow-same-origin" not in policy


async def test_a_service_sees_itself_at_localhost_and_who_asked(server: Server) -> None:
    async with preview(server, HTTP) as (_, visitor):
        reply = await visitor.get("/headers?a=1&b=%20", X_Forwarded_For="9.9.9.9", Origin=f"http://{visitor.host}")
        seen = headers_seen(reply)
        assert json.loads(reply.body)["path"] == "/headers?a=1&b=%20"
        assert (seen["host"], seen["origin"]) == ("localhost:3000", "http://localhost:3000")
        assert (seen["x-forwarded-host"], seen["x-forwarded-proto"]) == (visitor.host, "http")
        assert seen["x-forwarded-for"] == "127.0.0.1"
        seen = headers_seen(await visitor.get_by_path("/headers"))
        assert seen["x-forwarded-prefix"] == visitor.prefix


async def test_the_servers_key_and_cookies_stay_outside_and_the_services_own_pass(server: Server) -> None:
    async with preview(server, HTTP) as (_, visitor):
        seen = headers_seen(
            await visitor.get("/headers", Authorization=f"Bearer {server.key}", Cookie="cove_session=1; theirs=2")
        )
        assert "authorization" not in seen
        assert seen["cookie"] == "theirs=2"
        seen = headers_seen(
            await visitor.get("/headers", Authorization="Basic dTpw", Cookie="cove_session=1; __Host-cove_console=2")
        )
        assert seen["authorization"] == "Basic dTpw"
        assert "cookie" not in seen


async def test_what_concerns_one_connection_only_is_not_passed_on(server: Server) -> None:
    async with preview(server, HTTP) as (_, visitor):
        seen = headers_seen(await visitor.get("/headers", Connection="keep-alive, X-Mine", X_Mine="1", TE="gzip"))
        assert "x-mine" not in seen
        assert "te" not in seen
        reply = await visitor.get("/hop")
        assert (reply.status, reply.headers["x-public"]) == (200, "2")
        assert not {"x-private", "keep-alive", "connection"} & set(reply.headers)


async def test_a_redirect_is_passed_and_leads_to_the_preview(server: Server) -> None:
    async with preview(server, HTTP) as (_, visitor):
        for location, seen, by_path in (
            ("/headers", "/headers", f"{visitor.prefix}/headers"),
            ("https://example.com/", "https://example.com/", "https://example.com/"),
            ("//example.com/", "//example.com/", "//example.com/"),
            ("http://localhost:3000/x", f"http://{visitor.host}/x", f"http://localhost{visitor.prefix}/x"),
            ("http://localhost:30001/x", "http://localhost:30001/x", "http://localhost:30001/x"),
        ):
            reply = await visitor.get(f"/redirect?{location}")
            assert (reply.status, reply.headers["location"]) == (302, seen)
            assert (await visitor.get_by_path(f"/redirect?{location}")).headers["location"] == by_path


async def test_several_cookies_are_kept_and_belong_to_this_preview_only(server: Server) -> None:
    async with preview(server, HTTP) as (_, visitor):
        async with visitor.connect() as client:
            visitor.ask(client, "/cookies")
            head = await client.reader.readuntil(b"\r\n\r\n")
        cookies = [line[12:] for line in head.decode().split("\r\n") if line.lower().startswith("set-cookie: ")]
        assert cookies == ["a=1; Path=/; HttpOnly", "b=2; Path=/x"]
        async with visitor.connect() as client:
            client.send(f"GET {visitor.prefix}/cookies HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head = await client.reader.readuntil(b"\r\n\r\n")
        cookies = [line[12:] for line in head.decode().split("\r\n") if line.lower().startswith("set-cookie: ")]
        assert cookies == [f"a=1; HttpOnly; Path={visitor.prefix}/", f"b=2; Path={visitor.prefix}/x"]


async def test_an_answer_arrives_while_it_is_being_written(server: Server) -> None:
    async with preview(server, HTTP) as (sandbox, visitor), visitor.connect() as client:
        visitor.ask(client, "/stream?3")
        assert (await client.head()).headers["transfer-encoding"] == "chunked"
        chunks = client.chunks()
        for number in range(3):
            assert await anext(chunks) == b"%d\n" % number
            await sandbox.files.write(f"go{number}", b"")
        assert [chunk async for chunk in chunks] == []
        visitor.ask(client, "/again")
        assert (await client.reply()).body == b"you asked for /again"


async def test_a_body_is_answered_while_it_is_being_sent(server: Server) -> None:
    async with preview(server, HTTP) as (_, visitor), visitor.connect() as client:
        visitor.ask(client, "/", method="POST", Transfer_Encoding="chunked")
        client.send(b"5\r\nfirst\r\n")
        await client.head()
        chunks = client.chunks()
        assert await anext(chunks) == b"first"
        client.send(b"6\r\nsecond\r\n")
        assert await anext(chunks) == b"second"
        client.send(b"0\r\n\r\n")
        assert [chunk async for chunk in chunks] == []


async def test_a_large_body_arrives_whole(server: Server) -> None:
    async with preview(server, HTTP) as (_, visitor), visitor.connect() as client:
        body = bytes(range(256)) * (20 << 12)
        visitor.ask(client, "/", method="POST", Content_Length=str(len(body)))
        client.send(body)
        assert (await client.reply()).body.decode() == hashlib.sha256(body).hexdigest()


async def test_an_answer_to_head_has_a_length_and_no_body(server: Server) -> None:
    async with preview(server, HTTP) as (_, visitor), visitor.connect() as client:
        visitor.ask(client, "/abc", method="HEAD")
        assert (await client.head()).headers["content-length"] == str(len("you asked for /abc"))
        visitor.ask(client, "/abc")
        assert (await client.reply()).body == b"you asked for /abc"


async def test_a_websocket_goes_through_by_host_name_and_by_path(server: Server) -> None:
    async with preview(server, HTTP) as (_, visitor):
        for address in (f"ws://{visitor.host}/websocket", f"ws://127.0.0.1:{visitor.port}{visitor.prefix}/websocket"):
            async with open_websocket(address, host="127.0.0.1", port=visitor.port, compression=None) as websocket:
                for message in ("hello", "x" * 70_000, b"\0\xff" * 1000):
                    await websocket.send(message)
                    assert await websocket.recv() == message


async def test_a_websocket_ends_when_its_port_is_unexposed(server: Server) -> None:
    async with preview(server, HTTP) as (sandbox, visitor):
        address = f"ws://{visitor.host}/websocket"
        async with open_websocket(address, host="127.0.0.1", port=visitor.port, compression=None) as websocket:
            await websocket.send("hello")
            assert await websocket.recv() == "hello"
            await sandbox.ports.unexpose(3000)
            with pytest.raises(ConnectionClosed):
                await websocket.recv()


@pytest.mark.parametrize("end", ["restarted", "destroyed", "killed"])
async def test_open_previews_end_with_what_ran_in_the_sandbox(server: Server, end: str) -> None:
    async with preview(server, HTTP) as (sandbox, visitor), visitor.connect() as client:
        visitor.ask(client, "/stream?2")
        await client.head()
        address = f"ws://{visitor.host}/websocket"
        async with open_websocket(address, host="127.0.0.1", port=visitor.port, compression=None) as websocket:
            await websocket.send("hello")
            assert await websocket.recv() == "hello"
            if end == "restarted":
                await sandbox.restart()
            elif end == "destroyed":
                await sandbox.destroy()
            else:
                os.kill(await server.runtime(sandbox.id), signal.SIGKILL)
            with pytest.raises(ConnectionClosed):
                await websocket.recv()
        assert b"\r\n0\r\n\r\n" not in await client.rest()


async def test_a_port_that_is_exposed_anew_is_not_reached_by_its_old_url(server: Server) -> None:
    async with preview(server, HTTP) as (sandbox, old):
        assert (await old.get()).status == 200
        await sandbox.ports.unexpose(3000)
        assert (await old.get()).status == 404
        new = Visitor(await sandbox.ports.expose(3000))
        assert [(await old.get()).status, (await new.get()).status] == [404, 200]


async def test_what_passes_a_preview_passes_the_runtime_by(server: Server) -> None:
    async with preview(server, HTTP) as (sandbox, visitor), visitor.connect() as client:
        visitor.ask(client, "/endless")
        await client.head()
        runtime = await server.runtime(sandbox.id)
        os.kill(runtime, signal.SIGSTOP)
        try:
            for _ in range(512):
                await client.reader.readexactly(1 << 16)
        finally:
            os.kill(runtime, signal.SIGCONT)


async def test_an_open_preview_keeps_a_sandbox_awake(server: Server) -> None:
    async with on(server, idle_timeout=0.5) as sandbox:
        listening = "until (: > /dev/tcp/127.0.0.1/3000) 2> /dev/null; do sleep 0.02; done"
        await sandbox.exec(["bash", "-c", f'python3 -c "$0" 3000 > /dev/null 2>&1 & {listening}', HTTP])
        visitor = Visitor(await sandbox.ports.expose(3000))
        address = f"ws://{visitor.host}/websocket"
        async with open_websocket(address, host="127.0.0.1", port=visitor.port, compression=None) as websocket:
            await websocket.send("x")
            assert await websocket.recv() == "x"
            await asyncio.sleep(1.0)
            await websocket.send("y")
            assert await websocket.recv() == "y"


async def test_every_wrong_address_gets_the_same_answer(server: Server) -> None:
    async with preview(server, HTTP) as (sandbox, visitor):
        label = visitor.host.partition(".")[0]
        port, key, token = label.split("-")
        wrong = [f"{port}-{key}-{token[:-1]}", f"{port}-{key}-x", f"3001-{key}-{token}", f"{port}-{'a' * 12}-{token}"]
        answers = set()
        for name in (*wrong, "www", f"x{label}", f"{label}x"):
            async with visitor.connect() as client:
                client.send(f"GET / HTTP/1.1\r\nHost: {name}.localhost:{visitor.port}\r\n\r\n".encode())
                reply = await client.reply()
                answers.add((reply.status, reply.body, tuple(sorted(reply.headers))))
        assert len(answers) == 1
        status, body, _ = answers.pop()
        assert (status, json.loads(body)["code"]) == (404, "PORT_NOT_EXPOSED")
        await sandbox.ports.unexpose(3000)
        assert (await visitor.get()).status == 404


async def test_how_long_a_refusal_takes_says_nothing(server: Server) -> None:
    async with preview(server, HTTP) as (_, visitor), visitor.connect() as client:
        port, key, token = visitor.host.partition(".")[0].split("-")
        almost, far = f"{port}-{key}-{token[:-1]}1", f"{port}-{key}-a"
        for _ in range(3):  # a shared machine has pauses of its own
            times: dict[str, list[float]] = {almost: [], far: []}
            for label in [almost, far] * 200:
                before = time.perf_counter()
                client.send(f"GET / HTTP/1.1\r\nHost: {label}.localhost\r\n\r\n".encode())
                assert (await client.reply()).status == 404
                times[label].append(time.perf_counter() - before)
            ratio = statistics.median(times[almost]) / statistics.median(times[far])
            if 0.5 < ratio < 2:
                return
        pytest.fail(f"a token that is almost right takes {ratio:.1f} times as long")


async def test_the_preview_port_serves_no_api(server: Server) -> None:
    async with preview(server, HTTP) as (sandbox, visitor):
        for path in ("/v1/sandboxes", f"/v1/sandboxes/{sandbox.id}", "/health", "/metrics", "/"):
            async with visitor.connect() as client:
                assert (await client.ask(path, Authorization=f"Bearer {server.key}")).status == 404


async def test_two_sandboxes_show_each_their_own_port(server: Server) -> None:
    async with preview(server, HTTP) as (one, to_one), preview(server, HTTP) as (other, to_other):
        for sandbox, visitor in ((one, to_one), (other, to_other)):
            await sandbox.files.write("page", sandbox.id)
            assert (await visitor.get("/file/page")).body.decode() == sandbox.id
        assert to_one.host != to_other.host


async def test_where_nothing_listens_a_preview_says_that_nothing_responds(server: Server) -> None:
    async with on(server) as sandbox:
        reply = await Visitor(await sandbox.ports.expose(3000)).get()
        assert (reply.status, json.loads(reply.body)["code"]) == (502, "SERVICE_NOT_RESPONDING")


async def test_a_stopped_sandbox_is_not_woken_by_its_preview_and_keeps_its_exposures(server: Server) -> None:
    async with on(server, idle_timeout=0.2) as sandbox:
        exposed = await sandbox.ports.expose(3000)
        record = await server.record(sandbox.id)
        await eventually(lambda: server.directory.status(server.directory.read(record.key)) is SandboxStatus.STOPPED)  # type: ignore[arg-type]
        await eventually(lambda: not server.directory.is_held(record.key))  # who comes before finds it running still
        reply = await Visitor(exposed).get()
        assert (reply.status, json.loads(reply.body)["code"]) == (502, "SERVICE_NOT_RESPONDING")
        assert await server.status(sandbox.id) is SandboxStatus.STOPPED
        await sandbox.exec("true")
        assert await sandbox.ports.list() == [exposed]


async def test_a_destroyed_sandbox_leaves_a_url_that_leads_nowhere(server: Server) -> None:
    async with preview(server, HTTP) as (_, visitor):
        assert (await visitor.get()).status == 200
    assert (await visitor.get()).status == 404


async def test_an_open_connection_keeps_a_sandbox_awake(server: Server) -> None:
    async with on(server, idle_timeout=0.5) as sandbox:
        listening = "until (: > /dev/tcp/127.0.0.1/3000) 2> /dev/null; do sleep 0.02; done"
        await sandbox.exec(["bash", "-c", f'python3 -c "$0" 3000 > /dev/null 2>&1 & {listening}', ECHO])
        async with sandbox.ports.connect(3000) as connection:
            await connection.write(b"x")
            assert await connection.read(1) == b"x"
            await asyncio.sleep(1.0)
            await connection.write(b"y")
            assert await connection.read(1) == b"y"


HOSTILE = {
    "garbage": (r"SSH-2.0-OpenSSH\r\n", "stay"),
    "nothing": ("", "leave"),
    "a head without end": (r"HTTP/1.1 200 OK\r\nX: y\r\n", "leave"),
    "two lengths": (r"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "stay"),
    "a length and chunks": (
        r"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "stay",
    ),
    "another encoding": (r"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "stay"),
    "a switch nobody asked for": (r"HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", "stay"),
    "a bad status": (r"HTTP/1.1 abc OK\r\n\r\n", "stay"),
    "an answer as the body of one with no status": (
        r"HTTP/1.1 050 X\r\n\r\nHTTP/1.1 200 OK\r\nSet-Cookie: cove_a=b\r\nContent-Length: 2\r\n\r\nhi",
        "stay",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
async def test_what_is_no_answer_is_502(server: Server, case: str) -> None:
    async with preview(server, RAW, *HOSTILE[case]) as (_, visitor):
        reply = await visitor.get()
        assert (reply.status, json.loads(reply.body)["code"]) == (502, "SERVICE_NOT_RESPONDING")


# What is sent first, and what for ever after that.
FLOODS = {
    "a head of many lines": (r"HTTP/1.1 200 OK\r\n", r"X: y\r\n"),
    "a head of one line": (r"HTTP/1.1 200 OK\r\nX: ", "y"),
    "interim answers": ("", r"HTTP/1.1 100 Continue\r\n\r\n"),
    "trailers": (r"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ", "y"),
}


@pytest.mark.parametrize("case", FLOODS)
async def test_an_answer_that_never_comes_to_the_point_is_broken_off(server: Server, case: str) -> None:
    async with preview(server, FLOOD, *FLOODS[case]) as (_, visitor), visitor.connect() as client:
        before = memory_of(server)
        visitor.ask(client, "/")
        if case == "trailers":
            assert not (await client.rest()).endswith(b"0\r\n\r\n")
        else:
            assert (await client.reply()).status == 502
        assert memory_of(server) < before + (16 << 20)


async def test_an_answer_that_is_shorter_than_it_says_is_cut_off(server: Server) -> None:
    async with preview(server, RAW, r"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", "leave") as (_, visitor):
        with pytest.raises(asyncio.IncompleteReadError):
            await visitor.get()


async def test_what_follows_an_answer_is_dropped(server: Server) -> None:
    answer = r"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
    async with preview(server, RAW, answer, "stay") as (_, visitor), visitor.connect() as client:
        for _ in range(2):
            visitor.ask(client, "/")
            assert (await client.reply()).body == b"ok"


async def test_an_answer_without_a_length_ends_with_its_connection(server: Server) -> None:
    async with preview(server, RAW, r"HTTP/1.0 200 OK\r\n\r\nall of it", "leave") as (_, visitor):
        async with visitor.connect() as client:
            visitor.ask(client, "/")
            assert (await client.reply()).body == b"all of it"
        async with visitor.connect() as client:
            client.send(f"GET / HTTP/1.0\r\nHost: {visitor.host}\r\n\r\n".encode())
            assert (await client.rest()).endswith(b"\r\n\r\nall of it")


async def test_an_endless_answer_waits_for_its_reader_and_harms_no_other(server: Server) -> None:
    async with (
        preview(server, HTTP) as (_, visitor),
        preview(server, HTTP) as (_, other),
        visitor.connect() as lazy,
    ):
        visitor.ask(lazy, "/endless")
        await lazy.head()
        before = memory_of(server)
        for _ in range(50):
            assert (await other.get()).status == 200
            assert (await visitor.get()).status == 200
        assert memory_of(server) < before + (32 << 20)


async def test_those_who_leave_at_any_time_leave_nothing_behind(server: Server) -> None:
    async with preview(server, HTTP) as (sandbox, visitor):
        assert (await visitor.get()).status == 200
        pids = [await server.runtime(sandbox.id), *server.children()]
        await come_and_go(sandbox, visitor)  # each worker then has the connections that it keeps
        await asyncio.sleep(1)
        before = descriptors_of(pids)
        await come_and_go(sandbox, visitor)
        await eventually(lambda: descriptors_of(pids) <= before)


async def test_a_server_stops_soon_whoever_has_left_it_before(other_home: Path) -> None:
    with serving(other_home, "--on-stop", "destroy") as server:
        async with preview(server, HTTP) as (sandbox, visitor):
            await come_and_go(sandbox, visitor)
        workers = [pid for pid, role in server.children().items() if role == "worker"]
        server.process.terminate()
        assert await asyncio.to_thread(wait_until_gone, workers, 10.0) == []


async def come_and_go(sandbox: AsyncSandbox, visitor: Visitor) -> None:
    async def leave(steps: int) -> None:
        connection = sandbox.ports.connect(3000)
        opening = asyncio.ensure_future(connection.open())
        await asyncio.wait([opening], timeout=0.0005 * steps)
        opening.cancel()
        await asyncio.wait([opening])
        await connection.close()
        async with visitor.connect() as client:
            visitor.ask(client, "/endless")
            with suppress(TimeoutError):
                await asyncio.wait_for(client.head(), 0.0005 * steps)

    for _ in range(10):
        await asyncio.gather(*map(leave, range(20)))


def descriptors_of(pids: list[int]) -> int:
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)


def memory_of(server: Server) -> int:
    """What the workers of a server have in memory."""
    total = 0
    for pid, role in server.children().items():
        if role == "worker":
            pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
            total += int(pages) * 4096
    return total
