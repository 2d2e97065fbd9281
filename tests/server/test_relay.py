"""The relay, between a real client and a real upstream: every byte, both ways, and every way in which one side ends."""

import asyncio
import hashlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.event_loops import each_event_loop, turns, until_still
from support.raw_http import TIMEOUT_SECONDS, Client, connect, serve, serve_unix, talk
from support.scripted_server import Script
from support.scripted_server import scripted as scripted_server
from websockets.asyncio.client import connect as open_websocket

from cove.errors import SandboxNotFound
from cove.http import Answer, HttpLimits, HttpServer, Request, Response, Stream, Upgrade
from cove.http.websocket import WebSocket, accept
from cove.server.gateway.relay import SocketRelay
from cove.server.gateway.upstream import Upstream, Upstreams

pytestmark = [pytest.mark.anyio, pytest.mark.pure]
anyio_backend = each_event_loop

MEGABYTE = 1 << 20
HOST = b"Host: localhost\r\n"


@pytest.fixture
def path() -> Iterator[Path]:
    """A short one, as unix(7) wants it: that of `tmp_path` has the whole name of the test."""
    with tempfile.TemporaryDirectory(prefix="relay-") as directory:
        yield Path(directory, "runtime.sock")


@asynccontextmanager
async def relaying(
    path: Path,
    *,
    find_again: Callable[[], Awaitable[str]] | None = None,
    limits: HttpLimits | None = None,
    upstreams: Upstreams | None = None,
) -> AsyncIterator[int]:
    """A gateway that passes everything on to that socket."""
    upstreams = upstreams or Upstreams()

    def relay(request: Request) -> Answer:
        return SocketRelay(upstreams, str(path), headers=((b"x-added", b"yes"),), find_again=find_again)  # type: ignore[arg-type]

    async with serve(relay, limits=limits, grace=1.0) as port:
        yield port
    await upstreams.aclose()


@asynccontextmanager
async def scripted(path: Path, script: Script) -> AsyncIterator[None]:
    """An upstream that does exactly what the script says, once per connection."""
    async with scripted_server(script, lambda begin: asyncio.start_unix_server(begin, path)):
        yield


async def request_of(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


async def digest(request: Request) -> Answer:
    """The digest of the body, whatever its size."""
    state = hashlib.sha256()
    async for data in request.chunks():
        state.update(data)
    return Response(200, (), state.hexdigest().encode())


def pieces(total: int) -> list[bytes]:
    return [os.urandom(MEGABYTE) for _ in range(total // MEGABYTE)]


# Every byte


async def test_the_head_is_passed_on_without_what_is_only_between_client_and_gateway(path: Path) -> None:
    seen: list[list[tuple[bytes, bytes]]] = []

    def remember(request: Request) -> Answer:
        seen.append(request.raw_headers)
        return Response(200, (), f"{request.method} {request.path}?{request.query}".encode())

    async with serve_unix(remember, path), relaying(path) as port, connect(port) as client:
        client.send(
            b"PATCH /a%2Fb//../c?x=%20&y=1 HTTP/1.1\r\nhOst: localhost\r\nAuthorization: Bearer secret\r\n"
            b"Connection: keep-alive, X-Private\r\nX-Private: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\n"
            b"X-Twice: 1\r\nCookie: a=b\r\nX-Twice: 2\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n"
        )
        assert (await client.reply()).body == b"PATCH /a%2Fb//../c?x=%20&y=1"
        assert seen == [
            [
                *((b"host", b"localhost"), (b"x-twice", b"1"), (b"cookie", b"a=b"), (b"x-twice", b"2")),
                *((b"content-length", b"0"), (b"x-added", b"yes")),
            ]
        ]


async def test_a_client_cannot_hide_the_length_of_its_body_from_the_runtime(path: Path) -> None:
    seen: list[tuple[str, bytes]] = []

    async def remember(request: Request) -> Answer:
        seen.append((request.path, await request.read(1000)))
        return Response(200, (), request.path.encode())

    hidden = b"GET /hidden HTTP/1.1\r\n" + HOST + b"\r\n"
    async with serve_unix(remember, path), relaying(path) as port, connect(port) as client, connect(port) as other:
        client.send(b"POST /one HTTP/1.1\r\nConnection: keep-alive, Content-Length, Host\r\n" + HOST)
        client.send(b"Content-Length: %d\r\n\r\n%b" % (len(hidden), hidden))
        assert (await client.reply()).body == b"/one"
        assert (await other.ask("/other")).body == b"/other"
        assert seen == [("/one", hidden), ("/other", b"")]


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_fifty_megabytes_reach_the_runtime_byte_by_byte(path: Path, is_chunked: bool) -> None:
    body = pieces(50 * MEGABYTE)
    async with serve_unix(digest, path), relaying(path) as port, connect(port) as client:
        if is_chunked:
            client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
        else:
            client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % (50 * MEGABYTE))
        for piece in body:
            client.send(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
            await client.writer.drain()
        if is_chunked:
            client.send(b"0\r\n\r\n")
        assert (await client.reply()).body == hashlib.sha256(b"".join(body)).hexdigest().encode()
        assert (await client.ask(method="POST", body=b"x")).status == 200


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_fifty_megabytes_reach_the_client_byte_by_byte(path: Path, is_chunked: bool) -> None:
    content = b"".join(pieces(50 * MEGABYTE))

    async def body() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(content), 100_000):
            yield content[start : start + 100_000]

    def give(request: Request) -> Answer:
        return Response(200, (), body() if is_chunked else content)

    async with serve_unix(give, path), relaying(path) as port, connect(port) as client:
        for _ in range(2):
            assert (await client.ask()).body == content


async def test_pieces_of_a_stream_are_passed_on_as_they_come(path: Path) -> None:
    go_on = asyncio.Event()

    async def body() -> AsyncGenerator[bytes, None]:
        yield b"one"
        await go_on.wait()
        yield b"two"

    stream = Response(200, (), body())
    async with serve_unix(lambda request: stream, path), relaying(path) as port, connect(port) as client:
        client.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        await client.head()
        chunks = client.chunks()
        assert await anext(chunks) == b"one"
        go_on.set()
        assert [chunk async for chunk in chunks] == [b"two"]


async def test_one_connection_to_the_runtime_serves_many_requests(path: Path) -> None:
    connections = []

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        while True:
            await request_of(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with scripted(path, count), relaying(path) as port, connect(port) as one, connect(port) as two:
        for _ in range(50):
            assert (await one.ask()).body == (await two.ask()).body == b"ok"
        assert len(connections) == 1


async def test_pipelined_requests_are_answered_in_order(path: Path) -> None:
    async def echo(request: Request) -> Answer:
        return Response(200, (), request.path.encode())

    async with serve_unix(echo, path), relaying(path) as port, connect(port) as client:
        client.send(b"".join(b"GET /%d HTTP/1.1\r\n%b\r\n" % (number, HOST) for number in range(200)))
        assert [(await client.reply()).body for _ in range(200)] == [b"/%d" % number for number in range(200)]


async def test_answers_without_a_body_end_where_they_end(path: Path) -> None:
    answers = {"/204": Response(204), "/304": Response(304), "/200": Response(200, (), b"body")}

    def answer(request: Request) -> Answer:
        return answers[request.path]

    async with serve_unix(answer, path), relaying(path) as port, connect(port) as client:
        assert (await client.ask("/204")).status == 204
        assert (await client.ask("/304")).status == 304
        assert (await client.ask("/200", method="HEAD")).headers["content-length"] == "4"
        assert (await client.ask("/200")).body == b"body"


async def test_http_1_0_is_answered_until_the_connection_closes(path: Path) -> None:
    async def body() -> AsyncGenerator[bytes, None]:
        yield b"one"
        yield b"two"

    async with serve_unix(lambda request: Response(200, (), body()), path), relaying(path) as port:
        answer = await talk(port, b"GET / HTTP/1.0\r\n\r\n")
        head, _, content = answer.partition(b"\r\n\r\n")
        assert re.fullmatch(rb"HTTP/1.1 200 OK\r\ndate: [^\r]+\r\nconnection: close", head)
        assert content == b"onetwo"


async def test_an_interim_answer_is_not_the_answer(path: Path) -> None:
    async def interim(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
        await turns()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await reader.read()

    async with scripted(path, interim), relaying(path) as port, connect(port) as client:
        client.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        assert (await client.head()).status == 103
        assert (await client.reply()).body == b"ok"


async def test_a_body_that_the_runtime_refuses_is_refused_for_the_client_that_still_sends(path: Path) -> None:
    async def refuse(request: Request) -> Answer:
        return Response(200, (), await request.read(10))

    async with serve_unix(refuse, path), relaying(path) as port, connect(port) as client:
        client.send(
            b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % (8 * MEGABYTE) + bytes(8 * MEGABYTE)
        )
        assert (await client.reply()).status == 413
        assert await client.rest() == b""


ANSWERS = (
    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
)


@given(answer=st.sampled_from(ANSWERS), cuts=st.lists(st.integers(0, 90), max_size=10))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_the_pieces_in_which_an_answer_comes_make_no_difference(
    path: Path, answer: bytes, cuts: list[int]
) -> None:
    ends = [0, *sorted(min(cut, len(answer)) for cut in cuts), len(answer)]

    async def in_pieces(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request_of(reader)
            for start, end in pairwise(ends):
                writer.write(answer[start:end])
                await writer.drain()
                await asyncio.sleep(0)

    async with scripted(path, in_pieces), relaying(path) as port, connect(port) as client:
        for _ in range(2):
            client.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
            async with asyncio.timeout(TIMEOUT_SECONDS):
                assert await client.reader.readexactly(len(answer)) == answer
    path.unlink()


# Backpressure


async def test_a_runtime_waits_for_a_client_that_does_not_read(path: Path) -> None:
    produced = 0

    async def body() -> AsyncGenerator[bytes, None]:
        nonlocal produced
        for _ in range(100):
            produced += 1
            yield bytes(MEGABYTE)

    stream = Response(200, (), body())
    async with serve_unix(lambda request: stream, path), relaying(path) as port, connect(port) as client:
        client.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        await client.head()
        await until_still(lambda: produced)
        assert produced < 30
        assert sum([len(chunk) async for chunk in client.chunks()]) == 100 * MEGABYTE


async def test_a_client_waits_for_a_runtime_that_does_not_read(path: Path) -> None:
    go_on = asyncio.Event()

    async def late(request: Request) -> Answer:
        await go_on.wait()
        return await digest(request)

    content = bytes(MEGABYTE)
    async with serve_unix(late, path), relaying(path) as port, connect(port) as client:
        client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % (200 * MEGABYTE))
        sent = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                for _ in range(200):
                    client.send(content)
                    sent += 1
                    await client.writer.drain()
        assert sent < 50
        go_on.set()
        for _ in range(200 - sent):
            client.send(content)
            await client.writer.drain()
        assert (await client.reply()).body == hashlib.sha256(bytes(200 * MEGABYTE)).hexdigest().encode()


# Ends


async def readable(sock: socket.socket) -> None:
    """Something has come, or the other end is gone; nothing of it is read."""
    loop = asyncio.get_running_loop()
    found = asyncio.Event()
    loop.add_reader(sock, found.set)
    try:
        await found.wait()
    finally:
        loop.remove_reader(sock)


@asynccontextmanager
async def careless(path: Path, *, answers: int, seen: list[bytes]) -> AsyncIterator[None]:
    """An upstream that answers so many requests per connection, and closes when the next has come, unread."""
    loop = asyncio.get_running_loop()

    async def serve_connections() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.setblocking(False)
            listener.bind(str(path))
            listener.listen()
            listening.set()
            while True:
                connection, _ = await loop.sock_accept(listener)
                with connection:
                    for _ in range(answers):
                        seen.append(await loop.sock_recv(connection, 1 << 20))
                        await loop.sock_sendall(connection, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                    await readable(connection)

    listening = asyncio.Event()
    serving = asyncio.ensure_future(serve_connections())
    await listening.wait()
    try:
        yield
    finally:
        serving.cancel()
        await asyncio.wait([serving])


async def test_a_request_that_the_runtime_has_not_read_is_sent_again(path: Path) -> None:
    seen: list[bytes] = []
    async with careless(path, answers=1, seen=seen), relaying(path) as port, connect(port) as client:
        for number in range(3):
            assert (await client.ask()).body == b"ok"
            assert (await client.ask(method="DELETE")).body == b"ok"
            body = b"body %d" % number
            assert (await client.ask(method="POST", body=body)).body == b"ok"
            assert seen[-1].endswith(b"\r\n\r\n" + body)
            client.send(b"PUT / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n")
            assert (await client.reply()).body == b"ok"
            assert seen[-1].endswith(b"\r\n\r\n4\r\nbody\r\n0\r\n\r\n")
        assert len(seen) == 12


class TcpUpstreams(Upstreams):
    """Whatever the path, connections go to a port of this machine."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port

    async def connect(self, path: str) -> Upstream:
        upstream = Upstream(self, path)
        await asyncio.get_running_loop().create_connection(lambda: upstream, "127.0.0.1", self._port)
        return upstream


async def test_a_reset_on_tcp_does_not_mean_that_nothing_was_read(path: Path) -> None:
    loop, connections = asyncio.get_running_loop(), 0
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)

        async def reset() -> None:
            nonlocal connections
            while True:
                connection, _ = await loop.sock_accept(listener)
                connections += 1
                with connection:
                    await readable(connection)

        resetting = asyncio.ensure_future(reset())
        upstreams = TcpUpstreams(listener.getsockname()[1])
        async with relaying(path, upstreams=upstreams) as port, connect(port) as client:
            reply = await client.ask(method="POST", body=b"abc")
            assert (reply.status, b"may have had its effect" in reply.body) == (502, True)
        resetting.cancel()
        await asyncio.wait([resetting])
    assert connections == 1


async def test_a_runtime_that_never_reads_is_not_tried_for_ever(path: Path) -> None:
    async with careless(path, answers=0, seen=[]), relaying(path) as port, connect(port) as client:
        assert (await client.ask(method="POST", body=b"abc")).status == 503


async def test_a_body_that_is_too_large_to_be_kept_is_not_sent_again(path: Path) -> None:
    seen: list[bytes] = []
    async with careless(path, answers=1, seen=seen), relaying(path) as port, connect(port) as client:
        assert (await client.ask()).body == b"ok"
        assert (await client.ask(method="POST", body=bytes(100_000))).status == 503
        assert len(seen) == 1


async def test_a_request_that_was_read_is_not_sent_again_even_without_a_body(path: Path) -> None:
    requests = []

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await request_of(reader))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        requests.append(await request_of(reader))

    async with scripted(path, once), relaying(path) as port, connect(port) as client:
        assert (await client.ask()).status == 200
        assert (await client.ask(method="DELETE")).status == 502
        assert len(requests) == 2


async def test_a_request_whose_body_was_read_is_not_sent_twice(path: Path) -> None:
    bodies = []

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        bodies.append(await reader.readexactly(3))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await request_of(reader)
        bodies.append(await reader.readexactly(3))

    async with scripted(path, once), relaying(path) as port, connect(port) as client:
        assert (await client.ask(method="POST", body=b"abc")).status == 200
        reply = await client.ask(method="POST", body=b"def")
        assert reply.status == 502
        assert b"CONNECTION_LOST" in reply.body
        assert bodies == [b"abc", b"def"]
        assert (await client.ask(method="POST", body=b"ghi")).status == 200


async def test_what_a_runtime_that_closes_without_an_answer_has_read_may_have_run(path: Path) -> None:
    connections = []

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await request_of(reader)

    async with scripted(path, never), relaying(path) as port, connect(port) as client:
        for _ in range(3):
            assert (await client.ask()).status == 502
        assert len(connections) == 3


@pytest.mark.parametrize(
    "start",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-",
    ],
)
async def test_an_answer_that_breaks_off_is_seen_to_break_off(path: Path, start: bytes) -> None:
    async def part(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(start[:10])
        await turns()
        writer.write(start[10:])

    async with scripted(path, part), relaying(path) as port, connect(port) as client:
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.ask()


@pytest.mark.parametrize(
    "answer",
    [
        b"rubbish\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    ],
    ids=["rubbish", "two answers", "an upgrade that nobody asked for"],
)
async def test_what_is_no_answer_is_not_passed_on(path: Path, answer: bytes) -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(answer)
        await reader.read()

    async with scripted(path, say), relaying(path) as port, connect(port) as client:
        with suppress(asyncio.IncompleteReadError):
            assert (await client.ask()).status == 502


async def test_nothing_at_the_socket_is_unavailable_unless_it_is_found_again(path: Path) -> None:
    async with relaying(path) as port, connect(port) as client:
        assert (await client.ask()).status == 503

    other = path.with_name("other.sock")

    async def find() -> str:
        return str(other)

    async def lose() -> str:
        raise SandboxNotFound("there is no such sandbox")

    async with serve_unix(digest, other):
        async with relaying(path, find_again=find) as port, connect(port) as client:
            assert (await client.ask(method="POST", body=b"abc")).body == hashlib.sha256(b"abc").hexdigest().encode()
        async with relaying(path, find_again=lose) as port, connect(port) as client:
            assert (await client.ask()).status == 404


@pytest.mark.parametrize("when", ["before the answer", "in the middle"])
async def test_the_runtime_learns_at_once_that_the_client_is_gone(path: Path, when: str) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def body() -> AsyncGenerator[bytes, None]:
        yield b"x"
        await wait()

    async def wait() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def handle(request: Request) -> Answer:
        if when == "before the answer":
            await wait()
        return Response(200, (), body())

    async with serve_unix(handle, path), relaying(path) as port, asyncio.timeout(TIMEOUT_SECONDS):
        async with connect(port) as client:
            client.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
            await started.wait()
        await ended.wait()


async def test_a_client_that_goes_while_the_runtime_is_looked_for_leaves_nothing(path: Path) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def find() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    async with relaying(path, find_again=find) as port, asyncio.timeout(TIMEOUT_SECONDS):
        async with connect(port) as client:
            client.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
            await started.wait()
        await ended.wait()


async def test_a_client_whose_body_stops_is_told_and_the_runtime_learns_it(path: Path) -> None:
    cancelled = asyncio.Event()

    async def read(request: Request) -> Answer:
        try:
            return Response(200, (), await request.read(MEGABYTE))
        except asyncio.CancelledError:
            cancelled.set()
            raise

    limits = HttpLimits(body_idle_timeout=0.2)
    async with serve_unix(read, path), relaying(path, limits=limits) as port, connect(port) as client:
        client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 10\r\n\r\nabc")
        assert (await client.reply()).status == 408
        await asyncio.wait_for(cancelled.wait(), TIMEOUT_SECONDS)


async def test_a_runtime_that_closes_a_connection_as_it_comes_is_looked_for_again(path: Path) -> None:
    """It was about to end: nothing was sent to it, so nothing was begun."""
    turns = 30

    def close_every_second(listener: socket.socket) -> None:
        for _ in range(turns):
            listener.accept()[0].close()
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

    async def find() -> str:
        return str(path)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(TIMEOUT_SECONDS)
        serving = asyncio.ensure_future(asyncio.to_thread(close_every_second, listener))
        async with relaying(path, find_again=find) as port:
            for _ in range(turns):
                async with connect(port) as client:
                    assert (await client.ask("/", method="POST", body=b"abc")).status == 200
        await serving


async def test_an_answer_behind_which_the_runtime_stops_is_passed_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops in the very step in which the answer was complete: both are read together."""

    def answer(request: Request) -> Answer:
        return Response(200, (), b"done")

    async with serve_unix(answer, path) as server, relaying(path) as port, connect(port) as client:
        monkeypatch.setattr(server, "has_answered", lambda connection: server.shut_down())
        assert (await client.ask(method="POST", body=b"abc")).body == b"done"


class _LateUpstreams(Upstreams):
    """Between the choice of a kept connection and the first byte on it, something happens."""

    meanwhile: Callable[[], None]

    def take(self, path: str) -> Upstream | None:
        upstream = super().take(path)
        if upstream is not None:
            self.meanwhile()
        return upstream


async def test_a_request_on_its_way_to_a_runtime_that_stops_is_answered_by_the_next(path: Path) -> None:
    answered: list[int] = []
    runtimes: list[HttpServer] = []
    upstreams = _LateUpstreams()

    async with AsyncExitStack() as stack:

        async def find() -> str:
            await asyncio.to_thread(path.unlink, missing_ok=True)
            number = len(runtimes)
            runtimes.append(await stack.enter_async_context(serve_unix(partial(answer, number), path)))
            return str(path)

        def answer(number: int, request: Request) -> Answer:
            answered.append(number)
            return Response(200, (), str(number).encode())

        upstreams.meanwhile = lambda: runtimes[-1].shut_down()
        async with relaying(path, find_again=find, upstreams=upstreams) as port, connect(port) as client:
            for number in range(20):
                assert (await client.ask(method="POST", body=b"abc")).body == str(number).encode()
        assert answered == list(range(20))


RUNTIME = """
import asyncio, socket, sys
from cove.http import HttpServer, Response

async def body():
    yield b"x"
    print("streaming", flush=True)
    while True:
        yield b"x" * 1000
        await asyncio.sleep(0.001)

async def handle(request):
    if request.path == "/stream":
        return Response(200, (), body())
    print("waiting", flush=True)
    await asyncio.Event().wait()

async def main():
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(sys.argv[1])
    sock.listen()
    sock.setblocking(False)
    async with HttpServer(handle, [sock]):
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_runtime_that_is_killed_is_noticed_by_all_its_clients(path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", RUNTIME, str(path)), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None
    await process.stdout.readline()

    async def follow(client: Client) -> None:
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.ask("/stream")

    async def wait(client: Client) -> None:
        assert (await client.ask("/wait", method="POST", body=b"abc")).status == 502

    async with relaying(path) as port, connect(port) as one, connect(port) as two, asyncio.timeout(TIMEOUT_SECONDS):
        following, waiting = asyncio.ensure_future(follow(one)), asyncio.ensure_future(wait(two))
        assert {await process.stdout.readline() for _ in range(2)} == {b"streaming\n", b"waiting\n"}
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await asyncio.gather(following, waiting)
        assert (await two.ask()).status == 503


# Upgrades


async def shout(stream: Stream) -> None:
    while data := await stream.read():
        stream.write(data.upper())
        await stream.drain()
    stream.write(b"bye")


UPGRADE = b"GET / HTTP/1.1\r\n" + HOST + b"Connection: upgrade\r\nUpgrade: shout\r\n\r\n"


async def test_after_an_upgrade_both_directions_are_raw_and_each_can_end_first(path: Path) -> None:
    upgrade = Upgrade(((b"upgrade", b"shout"), (b"connection", b"upgrade")), shout)
    async with serve_unix(lambda request: upgrade, path), relaying(path) as port, connect(port) as client:
        client.send(UPGRADE + b"early")
        assert (await client.reply()).status == 101
        assert await client.reader.readexactly(5) == b"EARLY"
        client.send(b"late")
        assert await client.reader.readexactly(4) == b"LATE"
        client.writer.write_eof()
        assert await client.rest() == b"bye"


async def test_a_runtime_that_ends_its_side_first_still_hears_the_client(path: Path) -> None:
    heard = asyncio.get_running_loop().create_future()

    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: shout\r\n\r\nall")
        writer.write_eof()
        heard.set_result(await reader.read())

    async with scripted(path, half), relaying(path) as port, connect(port) as client, asyncio.timeout(TIMEOUT_SECONDS):
        client.send(UPGRADE)
        assert (await client.reply()).status == 101
        assert await client.rest() == b"all"
        client.send(b"heard")
        client.writer.write_eof()
        assert await heard == b"heard"


async def test_an_upgrade_that_the_runtime_refuses_is_an_ordinary_answer(path: Path) -> None:
    async with serve_unix(lambda request: Response(404), path), relaying(path) as port, connect(port) as client:
        client.send(UPGRADE + b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        assert (await client.reply()).status == 404
        assert (await client.reply()).status == 404


async def test_a_websocket_passes_through_with_large_messages_both_ways(path: Path) -> None:
    async def echo(websocket: WebSocket) -> None:
        while (message := await websocket.receive()) is not None:
            await websocket.send(message)

    async with (
        serve_unix(lambda request: accept(request, echo), path),
        relaying(path) as port,
        open_websocket(f"ws://127.0.0.1:{port}/") as websocket,
    ):
        for message in ("text", os.urandom(MEGABYTE), "", os.urandom(100_000)):
            await websocket.send(message)
            assert await websocket.recv() == message


async def test_a_raw_connection_has_backpressure_too(path: Path) -> None:
    sent = 0

    async def flood(stream: Stream) -> None:
        nonlocal sent
        for _ in range(100):
            stream.write(bytes(MEGABYTE))
            await stream.drain()
            sent += 1

    upgrade = Upgrade(((b"upgrade", b"shout"), (b"connection", b"upgrade")), flood)
    async with serve_unix(lambda request: upgrade, path), relaying(path) as port, connect(port) as client:
        client.send(UPGRADE)
        assert (await client.reply()).status == 101
        await until_still(lambda: sent)
        assert sent < 30
        assert len(await client.rest()) == 100 * MEGABYTE


# Nobody gets what is another's


async def peculiar(request: Request) -> Answer:
    """Answers with the name that is asked for, in one of the ways in which an answer can end."""
    name = request.query.encode()
    if request.path == "/early":
        return Response(413, ((b"x-name", name),), name)
    if request.path == "/stream":
        await request.read(MEGABYTE)
        return Response(200, ((b"x-name", name),), stream(name))
    if request.path == "/nothing":
        return Response(204, ((b"x-name", name),))
    if request.path == "/raw" and request.is_upgrade:
        return Upgrade(((b"upgrade", b"x"), (b"connection", b"upgrade"), (b"x-name", name)), raw_answer(name))
    body = await request.read(MEGABYTE)
    return Response(200, ((b"x-name", name),), name + b" " + hashlib.sha256(body).hexdigest().encode())


async def stream(name: bytes) -> AsyncGenerator[bytes, None]:
    for _ in range(5):
        await asyncio.sleep(0.001)
        yield name


def raw_answer(name: bytes) -> Callable[[Stream], Awaitable[None]]:
    async def run(stream: Stream) -> None:
        stream.write(name)
        await stream.drain()

    return run


def peculiar_request(chance: random.Random, name: str) -> tuple[str, bytes]:
    method = chance.choice(["GET", "HEAD", "POST", "POST", "PUT", "DELETE"])
    path = chance.choice(["/whole", "/whole", "/early", "/stream", "/nothing", "/raw"])
    lines = [f"{method} {path}?{name} HTTP/1.1", "Host: localhost"]
    body = os.urandom(chance.choice([0, 1, 1000, 100_000]))
    if path == "/raw":
        lines += ["Connection: upgrade", "Upgrade: x"]
    elif method in ("POST", "PUT") and chance.random() < 0.5:
        lines.append("Transfer-Encoding: chunked")
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    elif method in ("POST", "PUT"):
        lines.append(f"Content-Length: {len(body)}")
    lines += chance.choice(
        [[], ["Connection: content-length, x"], ["Expect: 100-continue"]] if path != "/raw" else [[]]
    )
    has_body = method in ("POST", "PUT") and path != "/raw"
    return method, "\r\n".join([*lines, "", ""]).encode() + (body if has_body else b"")


async def behave_badly(port: int, seed: int) -> int:
    """Ask, cut off and leave at any point; how many answers came. Each must be one's own."""
    chance = random.Random(seed)
    answers = 0
    for number in range(25):
        async with connect(port) as client:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                for step in range(3):
                    name = f"{seed}.{number}.{step}"
                    method, data = peculiar_request(chance, name)
                    is_cut = chance.random() < 0.3
                    client.send(data[: chance.randrange(len(data))] if is_cut else data)
                    if is_cut:
                        await asyncio.sleep(chance.choice([0, 0.001, 0.005]))
                        break
                    if chance.random() < 0.2:
                        await client.reader.read(chance.randrange(1, 200))
                        break
                    reply = await client.reply(head_only=method == "HEAD")
                    while reply.status == 100:
                        reply = await client.reply(head_only=method == "HEAD")
                    answers += 1
                    assert reply.headers["x-name"] == name, (name, reply)
                    assert not reply.body or reply.body.startswith(name.encode())
                    if reply.status in (101, 413):
                        break
    return answers


async def test_whatever_clients_do_nobody_gets_the_answer_to_another(path: Path) -> None:
    async with serve_unix(peculiar, path), relaying(path) as port:
        answers = await asyncio.gather(*(behave_badly(port, seed) for seed in range(12)))
        assert sum(answers) > 150
        async with connect(port) as client:
            assert (await client.ask("/whole?last")).headers["x-name"] == "last"
