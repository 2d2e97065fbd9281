"""HTTP/1.1 over real sockets: what is answered, what is refused, and who pays for slow clients."""

import asyncio
import json
import logging
import os
import re
import socket
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.event_loops import each_event_loop, until_still
from support.raw_http import TIMEOUT_SECONDS, Client, connect, serve, serve_unix, talk

from cove.errors import SandboxNotFound
from cove.http import Answer, HttpLimits, Ping, Request, Response, Stream, Upgrade
from cove.http.errors import BadRequest, HeadTooLarge, HttpError
from cove.http.parser import RequestParser

pytestmark = [pytest.mark.anyio, pytest.mark.pure]
anyio_backend = each_event_loop

MEGABYTE = 1 << 20
HOST = b"Host: localhost\r\n"
GET = b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"


@pytest.fixture
def socket_path() -> Iterator[Path]:
    """A short one, as unix(7) wants it."""
    with tempfile.TemporaryDirectory(prefix="http-") as directory:
        yield Path(directory, "socket")


async def echo(request: Request) -> Answer:
    """What came, as JSON and in bytes."""
    body = await request.read(MEGABYTE)
    seen = {"method": request.method, "path": request.path, "query": request.query, "body": body.decode("latin-1")}
    return Response(200, ((b"content-type", b"application/json"),), json.dumps(seen).encode())


def post(body: bytes, *, path: bytes = b"/", headers: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\n%b%bContent-Length: %d\r\n\r\n%b" % (path, HOST, headers, len(body), body)


# What is answered


async def test_a_connection_serves_one_request_after_the_other() -> None:
    async with serve(echo) as port, connect(port) as client:
        for number in range(20):
            reply = await client.ask(f"/a%2Fb/{number}?x=%20&y", method="POST", body=b"abc")
            seen = json.loads(reply.body)
            assert reply.status == 200
            assert seen == {"method": "POST", "path": f"/a%2Fb/{number}", "query": "x=%20&y", "body": "abc"}


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def slow_first(request: Request) -> Answer:
        if request.path == "/0":
            await asyncio.sleep(0.05)
        return Response(200, (), request.path.encode())

    async with serve(slow_first) as port, connect(port) as client:
        client.send(b"".join(b"GET /%d HTTP/1.1\r\n%b\r\n" % (number, HOST) for number in range(500)))
        assert [(await client.reply()).body for _ in range(500)] == [b"/%d" % number for number in range(500)]


async def test_pipelined_requests_of_a_handler_that_never_waits_need_no_stack() -> None:
    def at_once(request: Request) -> Answer:
        return Response(200, (), request.path.encode())

    async with serve(at_once) as port, connect(port) as client:
        client.send(b"".join(b"GET /%d HTTP/1.1\r\n%b\r\n" % (number, HOST) for number in range(5000)))
        assert [(await client.reply()).body for _ in range(5000)] == [b"/%d" % number for number in range(5000)]


async def test_head_gets_the_length_and_no_body() -> None:
    async with serve(echo) as port, connect(port) as client:
        reply = await client.ask(method="HEAD")
        assert int(reply.headers["content-length"]) > 0
        assert (await client.ask()).status == 200


async def test_head_of_a_stream_opens_no_stream() -> None:
    started = []

    async def body() -> AsyncGenerator[bytes, None]:
        started.append(True)
        yield b"x"

    async with serve(lambda request: Response(200, (), body())) as port, connect(port) as client:
        assert (await client.ask(method="HEAD")).headers["transfer-encoding"] == "chunked"
        assert (await client.ask(method="HEAD")).status == 200
        assert not started


async def test_an_answer_without_content_says_nothing_about_a_body() -> None:
    async with serve(lambda request: Response(204)) as port, connect(port) as client:
        reply = await client.ask()
        assert (reply.status, set(reply.headers)) == (204, {"date"})
        assert (await client.ask()).status == 204


async def test_http_1_0_is_answered_until_the_connection_closes() -> None:
    async def body() -> AsyncGenerator[bytes, None]:
        yield b"one"
        yield b"two"

    async with serve(lambda request: Response(200, (), body())) as port:
        answer = await talk(port, b"GET / HTTP/1.0\r\n\r\n")
        head, _, content = answer.partition(b"\r\n\r\n")
        assert re.fullmatch(rb"HTTP/1.1 200 OK\r\ndate: [^\r]+\r\nconnection: close", head)
        assert content == b"onetwo"


async def test_a_client_that_asks_for_it_is_closed() -> None:
    async with serve(echo) as port:
        answer = await talk(port, b"GET / HTTP/1.1\r\nConnection: Close\r\n" + HOST + b"\r\n")
        assert b"connection: close" in answer


async def test_a_chunked_body_with_extensions_and_trailers_is_read() -> None:
    async with serve(echo) as port, connect(port) as client:
        client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
        client.send(b"3;a=b\r\nabc\r\n2\r\nde\r\n0\r\nX-Trailer: y\r\n\r\n")
        assert json.loads((await client.reply()).body)["body"] == "abcde"
        assert (await client.ask()).status == 200


async def test_a_client_that_waits_for_continue_gets_it_only_when_somebody_reads() -> None:
    async with serve(echo) as port, connect(port) as client:
        client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(b"abc")
        assert json.loads((await client.reply()).body)["body"] == "abc"

    async with serve(lambda request: Response(403)) as port, connect(port) as client:
        client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert (await client.reply()).status == 403
        assert await client.rest() == b""


async def test_a_body_is_given_as_it_comes_and_the_answer_too() -> None:
    async def stream(request: Request) -> Answer:
        async def body() -> AsyncGenerator[bytes, None]:
            async for data in request.chunks():
                yield data.upper()

        return Response(200, (), body())

    async with serve(stream) as port, connect(port) as client:
        client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 6\r\n\r\nabc")
        assert (await client.head()).headers["transfer-encoding"] == "chunked"
        chunks = client.chunks()
        assert await anext(chunks) == b"ABC"
        client.send(b"def")
        assert await anext(chunks) == b"DEF"
        assert [chunk async for chunk in chunks] == []


async def test_an_upgrade_to_something_unknown_is_an_ordinary_request() -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    async with serve(echo) as port, connect(port) as client:
        client.send(b"GET /1 HTTP/1.1\r\n" + HOST + upgrade + b"\r\n" + post(b"abc", path=b"/2", headers=upgrade))
        client.send(post(b"def", path=b"/3"))
        seen = [json.loads((await client.reply()).body) for _ in range(3)]
        assert [(each["path"], each["body"]) for each in seen] == [("/1", ""), ("/2", "abc"), ("/3", "def")]


async def test_an_upgraded_connection_is_raw_in_both_directions_and_each_side_can_end_first() -> None:
    async def raw(stream: Stream) -> None:
        while data := await stream.read():
            stream.write(data.upper())
            await stream.drain()
        stream.write(b"bye")

    upgrade = Upgrade(((b"upgrade", b"shout"), (b"connection", b"upgrade")), raw)
    async with serve(lambda request: upgrade) as port, connect(port) as client:
        client.send(b"GET / HTTP/1.1\r\n" + HOST + b"Connection: upgrade\r\nUpgrade: shout\r\n\r\nearly")
        assert (await client.reply()).status == 101
        assert await client.reader.readexactly(5) == b"EARLY"
        client.send(b"late")
        assert await client.reader.readexactly(4) == b"LATE"
        client.writer.write_eof()
        assert await client.rest() == b"bye"


async def test_absolute_targets_are_served_when_they_name_the_host() -> None:
    async with serve(echo) as port, connect(port) as client:
        client.send(b"GET http://localhost/x?y HTTP/1.1\r\n" + HOST + b"\r\n")
        assert json.loads((await client.reply()).body)["path"] == "/x"
        client.send(b"GET http://other/x HTTP/1.1\r\n" + HOST + b"\r\n")
        assert (await client.reply()).status == 400


# What is refused

CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
MALFORMED = {
    "no method": b" / HTTP/1.1\r\nHost: a\r\n\r\n",
    "an unknown method": b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a method in lower case": b"get / HTTP/1.1\r\nHost: a\r\n\r\n",
    "connect": b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
    "no version": b"GET /\r\nHost: a\r\n\r\n",
    "version 0.9": b"GET / HTTP/0.9\r\nHost: a\r\n\r\n",
    "version 1.2": b"GET / HTTP/1.2\r\nHost: a\r\n\r\n",
    "version 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "version 9": b"GET / HTTP/9.9\r\nHost: a\r\n\r\n",
    "not HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "a host with markup": b'GET / HTTP/1.1\r\nHost: a"<script>\r\n\r\n',
    "a host with a space": b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
    "a host with credentials": b"GET http://a@b/ HTTP/1.1\r\nHost: a@b\r\n\r\n",
    "a host with a path": b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "a relative target": b"GET x HTTP/1.1\r\nHost: a\r\n\r\n",
    "a fragment": b"GET /x#y HTTP/1.1\r\nHost: a\r\n\r\n",
    "a target that is not ASCII": "GET /ü HTTP/1.1\r\nHost: a\r\n\r\n".encode(),
    "a NUL in the target": b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n",
    "a NUL in a name": b"GET / HTTP/1.1\r\nHost: a\r\nX\0: y\r\n\r\n",
    "a NUL in a value": b"GET / HTTP/1.1\r\nHost: a\r\nX: y\0z\r\n\r\n",
    "a space before the colon": b"GET / HTTP/1.1\r\nHost: a\r\nX : y\r\n\r\n",
    "a header without a colon": b"GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n",
    "a folded header": b"GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n",
    "lines that end with LF": b"GET / HTTP/1.1\nHost: a\n\n",
    "one line that ends with LF": b"GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n",
    "CR in a value": b"GET / HTTP/1.1\r\nHost: a\r\nX: y\rz: 1\r\n\r\n",
    "a length and chunks": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": CHUNKED + b"Content-Length: 4\r\n\r\n0\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "two equal lengths": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
    "a list of lengths": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\na",
    "a negative length": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    "a length with a sign": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\na",
    "a length in hex": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x1\r\n\r\na",
    "an empty length": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n",
    "a length beyond 64 bits": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n",
    "an unknown transfer encoding": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
    "two transfer encodings": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": CHUNKED + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked with a prefix": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a control character in an encoding": CHUNKED.replace(b"chunked", b"\x0bchunked") + b"\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a chunk size that is no number": CHUNKED + b"\r\nxyz\r\n",
    "a negative chunk size": CHUNKED + b"\r\n-1\r\nab\r\n",
    "a chunk size with 0x": CHUNKED + b"\r\n0x1\r\na\r\n0\r\n\r\n",
    "a chunk size beyond 64 bits": CHUNKED + b"\r\n" + b"f" * 17 + b"\r\nab",
    "a chunk longer than its size": CHUNKED + b"\r\n1\r\nabc\r\n0\r\n\r\n",
    "a chunk size that ends with LF": CHUNKED + b"\r\n1\na\n0\n\n",
    "a chunk without its end": CHUNKED + b"\r\n1\r\na0\r\n\r\n",
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
async def test_what_is_not_valid_is_refused_and_the_connection_closed(data: bytes) -> None:
    async with serve(echo) as port:
        answer = await talk(port, data)
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "VALIDATION_FAILED"


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
async def test_a_request_before_what_is_not_valid_is_answered(data: bytes) -> None:
    async with serve(echo) as port, connect(port) as client:
        client.send(post(b"first") + data)
        assert json.loads((await client.reply()).body)["body"] == "first"
        assert (await client.reply()).status == 400
        assert await client.rest() == b""


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 2_000_000,
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(b"X-%d: y\r\n" % number for number in range(101)) + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 200 + b"\r\n",
    ],
    ids=["target", "value", "endless value", "names", "repeated"],
)
async def test_a_head_that_is_too_large_is_refused(head: bytes) -> None:
    async with serve(echo) as port:
        assert (await talk(port, head)).startswith(b"HTTP/1.1 431 ")


async def test_endless_trailers_are_refused() -> None:
    async with serve(echo) as port:
        start = b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: "
        assert (await talk(port, start + b"x" * 2_000_000)).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_a_client_sees_that_its_body_is_too_large_although_it_still_sends(is_chunked: bool) -> None:
    body = b"x" * (8 * MEGABYTE)
    async with serve(echo) as port, connect(port) as client:
        if is_chunked:
            client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body) + body)
        else:
            client.send(post(body))
        reply = await client.reply()
        assert (reply.status, json.loads(reply.body)["code"]) == (413, "FILE_TOO_LARGE")
        assert await client.rest() == b""


async def send_for_ever(client: Client) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            client.send(b"x" * 65536)
            await client.writer.drain()


async def test_a_client_that_never_ends_its_body_is_cut_off() -> None:
    limits = HttpLimits(drained_bytes=MEGABYTE)
    async with serve(lambda request: Response(404), limits=limits) as port, connect(port) as client:
        client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 999999999\r\n\r\n")
        assert (await client.reply()).status == 404
        with pytest.raises(ConnectionError):
            await send_for_ever(client)


async def test_a_slow_head_is_not_waited_for() -> None:
    async with serve(echo, limits=HttpLimits(head_timeout=0.2)) as port, connect(port) as client:
        assert (await client.ask()).status == 200
        client.send(b"GET / HTTP/1.1\r\n")
        await asyncio.sleep(0.15)
        client.send(b"Host: localhost\r\n")
        assert (await client.reply()).status == 408
        assert await client.rest() == b""


async def test_a_slow_body_is_waited_for_as_long_as_bytes_come() -> None:
    async with serve(echo, limits=HttpLimits(body_idle_timeout=0.5)) as port, connect(port) as client:
        client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 8\r\n\r\n")
        for _ in range(8):
            await asyncio.sleep(0.1)
            client.send(b"x")
        assert (await client.reply()).status == 200
        client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 8\r\n\r\nx")
        assert (await client.reply()).status == 408
        assert await client.rest() == b""


async def test_a_body_that_may_be_silent_is_waited_for() -> None:
    async def patient(request: Request) -> Answer:
        request.may_be_silent = True
        return Response(200, (), await request.read(10))

    async with serve(patient, limits=HttpLimits(body_idle_timeout=0.05)) as port, connect(port) as client:
        client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\n")
        for _ in range(2):
            await asyncio.sleep(0.2)
            client.send(b"x")
        assert (await client.reply()).body == b"xx"


async def test_a_handler_that_takes_its_time_is_no_slow_client() -> None:
    async def slow(request: Request) -> Answer:
        await asyncio.sleep(0.3)
        return Response(200, (), await request.read(10))

    limits = HttpLimits(body_idle_timeout=0.1, head_timeout=0.1, keep_alive_timeout=0.1)
    async with serve(slow, limits=limits) as port, connect(port) as client:
        assert (await client.ask(method="POST", body=b"abc")).body == b"abc"
        assert await client.rest() == b""


async def test_a_connection_that_is_not_used_is_closed() -> None:
    async with serve(echo, limits=HttpLimits(keep_alive_timeout=0.1)) as port:
        async with connect(port) as client:
            assert await client.rest() == b""
        async with connect(port) as client:
            assert (await client.ask()).status == 200
            assert await client.rest() == b""


async def test_blank_lines_do_not_keep_a_connection_alive() -> None:
    async with serve(echo, limits=HttpLimits(keep_alive_timeout=0.3)) as port, connect(port) as client:
        closed = asyncio.ensure_future(client.rest())
        while not (await asyncio.wait([closed], timeout=0.05))[0]:
            client.send(b"\r\n")
        with suppress(ConnectionError):
            assert await closed == b""


async def test_a_client_that_asks_and_never_listens_is_cut_off() -> None:
    answer = Response(200, (), bytes(MEGABYTE))
    limits = HttpLimits(keep_alive_timeout=0.3, connections=1)
    async with serve(lambda request: answer, limits=limits) as port:
        with socket.create_connection(("127.0.0.1", port)) as deaf:
            deaf.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while not await _is_served(port):
                    pass


async def _is_served(port: int) -> bool:
    """Whether there is room for another connection."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        async with connect(port) as client:
            return (await client.ask()).status == 200
    return False


async def test_one_connection_too_many_is_told_so_while_all_others_are_in_use() -> None:
    entered, released = asyncio.Semaphore(0), asyncio.Event()

    async def wait(request: Request) -> Answer:
        entered.release()
        await released.wait()
        return Response(200)

    async with serve(wait, limits=HttpLimits(connections=2)) as port, connect(port) as one, connect(port) as two:
        for client in (one, two):
            client.send(GET)
            await entered.acquire()
        async with connect(port) as three:
            assert (await three.reply()).status == 503
        released.set()
        assert (await one.reply()).status == (await two.reply()).status == 200
        assert (await one.ask()).status == 200


async def test_whoever_only_holds_connections_locks_nobody_out() -> None:
    limits = HttpLimits(connections=3)
    async with serve(echo, limits=limits) as port, AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(connect(port)) for _ in range(3)]
        silent[2].send(b"GET / HT")
        used = await stack.enter_async_context(connect(port))
        assert (await used.ask()).status == 200
        assert await silent[0].reader.read() == b""
        for _ in range(5):
            await stack.enter_async_context(connect(port))
            assert (await used.ask()).status == 200


async def test_refusals_of_a_crowded_server_do_not_add_up() -> None:
    entered, released = asyncio.Event(), asyncio.Event()

    async def wait(request: Request) -> Answer:
        entered.set()
        await released.wait()
        return Response(204)

    async with serve(wait, limits=HttpLimits(connections=1)) as port, connect(port) as busy, AsyncExitStack() as stack:
        busy.send(GET)
        await entered.wait()
        others = [await stack.enter_async_context(connect(port)) for _ in range(200)]
        told = []
        for other in others:
            with suppress(ConnectionError):
                told.append(await other.reader.read(12))
        assert told.count(b"HTTP/1.1 503") < 100
        released.set()
        assert (await busy.reply()).status == 204


# What handlers get


async def test_a_handler_that_fails_is_logged_once_and_told_nothing_about(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(request: Request) -> Answer:
        raise RuntimeError("secret")

    def broken_at_once(request: Request) -> Answer:
        raise RuntimeError("secret")

    for handler in (broken, broken_at_once):
        caplog.clear()
        with caplog.at_level(logging.ERROR, "cove.http"):
            async with serve(handler) as port, connect(port) as client:
                reply = await client.ask()
                assert (reply.status, json.loads(reply.body)["code"]) == (500, "INTERNAL")
                assert b"secret" not in reply.body
                assert len(caplog.records) == 1
                assert (await client.ask()).status == 500


async def test_an_error_of_ours_has_its_status_and_code() -> None:
    async def missing(request: Request) -> Answer:
        raise SandboxNotFound("there is no sandbox x", id="x")

    async with serve(missing) as port, connect(port) as client:
        reply = await client.ask()
        assert reply.status == 404
        assert json.loads(reply.body) == {
            "error": "there is no sandbox x",
            "code": "SANDBOX_NOT_FOUND",
            "details": {"id": "x"},
        }


async def test_a_header_that_would_break_the_answer_is_not_sent() -> None:
    async with serve(lambda request: Response(200, ((b"x", b"y\r\nset-cookie: z"),))) as port, connect(port) as client:
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.ask()


async def test_a_handler_is_cancelled_when_its_client_goes_away() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def wait(request: Request) -> Answer:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return Response(200)

    async with serve(wait) as port, asyncio.timeout(TIMEOUT_SECONDS):
        async with connect(port) as client:
            client.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
            await started.wait()
        await ended.wait()


async def test_a_handler_is_cancelled_when_its_client_goes_away_in_the_middle_of_the_body() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def read(request: Request) -> Answer:
        started.set()
        try:
            return Response(200, (), await request.read(MEGABYTE))
        finally:
            ended.set()

    async with serve(read) as port, asyncio.timeout(TIMEOUT_SECONDS):
        async with connect(port) as client:
            client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 10\r\n\r\nabc")
            await started.wait()
        await ended.wait()


@pytest.mark.parametrize("waits_for", ["the client", "something else"])
async def test_a_stream_is_closed_when_its_client_goes_away(waits_for: str) -> None:
    started, closed = asyncio.Event(), asyncio.Event()

    async def body() -> AsyncGenerator[bytes, None]:
        try:
            while waits_for == "the client":
                yield b"x" * MEGABYTE
                started.set()
            yield b"x"
            started.set()
            await asyncio.Event().wait()
        finally:
            closed.set()

    async with serve(lambda request: Response(200, (), body())) as port, asyncio.timeout(TIMEOUT_SECONDS):
        async with connect(port) as client:
            client.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
            await started.wait()
        await closed.wait()


async def test_a_stream_waits_for_a_client_that_does_not_read() -> None:
    produced = 0

    async def body() -> AsyncGenerator[bytes, None]:
        nonlocal produced
        for _ in range(100):
            produced += 1
            yield b"x" * MEGABYTE

    async with serve(lambda request: Response(200, (), body())) as port, connect(port) as client:
        client.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        await client.head()
        await until_still(lambda: produced)
        assert produced < 30
        assert sum([len(chunk) async for chunk in client.chunks()]) == 100 * MEGABYTE


async def test_something_is_said_in_the_pauses_of_a_stream_and_never_within_what_is_yielded() -> None:
    more = asyncio.Event()

    async def body() -> AsyncGenerator[bytes | tuple[bytes, ...], None]:
        for _ in range(200):
            yield b"<", b"x" * MEGABYTE, b">"
        await more.wait()
        yield b"end"

    answer = Response(200, (), body(), Ping(b"?", 0.02))
    async with serve(lambda request: answer) as port, connect(port) as client, asyncio.timeout(TIMEOUT_SECONDS):
        client.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        await client.head()
        seen = []
        async for chunk in client.chunks():
            seen.append(chunk if len(chunk) < 10 else chunk[:1] + chunk[-1:])
            if seen[-3:] == [b"?"] * 3:
                more.set()
        assert seen.count(b"<>") == 200
        assert seen[-1] == b"end"
        assert set(seen) == {b"<>", b"?", b"end"}


async def test_a_stream_whose_client_cancels_when_its_handler_has_just_ended_is_not_begun() -> None:
    async def body() -> AsyncGenerator[bytes, None]:
        yield b"first"
        await asyncio.Event().wait()

    async def answer(request: Request) -> Answer:
        # The client's end is read after the handler has returned and before anybody has looked at what.
        asyncio.get_running_loop().call_soon(request._source.eof_received)  # type: ignore[attr-defined]  # a connection
        return Response(200, (), body())

    async with serve(answer) as address, connect(address) as client:
        client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"first" not in await client.rest()


async def test_nobody_speaks_after_a_stream_has_ended() -> None:
    async def body() -> AsyncGenerator[bytes, None]:
        yield b"x"

    async with serve(lambda request: Response(200, (), body(), Ping(b"?", 0.01))) as port, connect(port) as client:
        for _ in range(3):
            assert (await client.ask()).body == b"x"
            await asyncio.sleep(0.05)


async def test_a_client_waits_for_a_handler_that_does_not_read() -> None:
    go_on = asyncio.Event()

    async def late(request: Request) -> Answer:
        await go_on.wait()
        return Response(200, (), b"%d" % sum([len(data) async for data in request.chunks()]))

    async with serve(late) as port, connect(port) as client:
        client.send(post(b"x" * (50 * MEGABYTE)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.writer.drain(), 0.3)
        go_on.set()
        assert (await client.reply()).body == b"%d" % (50 * MEGABYTE)


async def test_a_stream_that_breaks_is_seen_as_broken(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> AsyncGenerator[bytes, None]:
        yield b"x"
        raise RuntimeError("broken")

    async with serve(lambda request: Response(200, (), body())) as port, connect(port) as client:
        with pytest.raises(asyncio.IncompleteReadError):
            await client.ask()
    assert len(caplog.records) == 1


async def test_a_server_that_closes_lets_answers_end() -> None:
    started, released = asyncio.Event(), asyncio.Event()

    async def wait(request: Request) -> Answer:
        started.set()
        await released.wait()
        return Response(200, (), b"done")

    async with AsyncExitStack() as serving:
        port = await serving.enter_async_context(serve(wait))
        async with connect(port) as client, connect(port) as idle:
            client.send(b"GET /short HTTP/1.1\r\n" + HOST + b"\r\n")
            await started.wait()
            asyncio.get_running_loop().call_later(0.1, released.set)
            await serving.aclose()
            assert (await client.reply()).body == b"done"
            assert await client.rest() == b""
            assert (await idle.reply()).status == 408
            assert await idle.rest() == b""


async def test_a_server_that_closes_tells_a_request_on_its_way_that_it_was_not_read() -> None:
    async with AsyncExitStack() as serving:
        port = await serving.enter_async_context(serve(echo))
        async with connect(port) as client:
            assert (await client.ask()).status == 200
            closing = asyncio.ensure_future(serving.aclose())
            await asyncio.sleep(0)
            client.send(GET)
            reply = await client.reply()
            assert (reply.status, json.loads(reply.body)["code"]) == (408, "SANDBOX_UNAVAILABLE")
            await closing


async def test_a_server_that_closes_says_nothing_behind_an_answer_on_a_unix_socket(socket_path: Path) -> None:
    async with serve_unix(echo, socket_path) as server, connect(socket_path) as client:
        assert (await client.ask()).status == 200
        server.shut_down()
        assert await client.rest() == b""


async def test_a_server_that_closes_resets_a_unix_connection_with_a_request_that_it_did_not_read(
    socket_path: Path,
) -> None:
    async with serve_unix(echo, socket_path) as server, connect(socket_path) as client:
        assert (await client.ask()).status == 200
        os.write(client.writer.get_extra_info("socket").fileno(), GET)
        server.shut_down()
        with pytest.raises(ConnectionResetError):
            await client.rest()


async def test_a_server_that_closes_resets_a_unix_connection_that_it_has_not_seen(socket_path: Path) -> None:
    async with serve_unix(echo, socket_path) as server:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(socket_path))
            client.send(GET)
            server.shut_down()
            await server.until_all_gone()
            with pytest.raises(ConnectionResetError):
                await asyncio.to_thread(client.recv, 1)


async def test_a_server_that_closes_answers_on_a_unix_connection_of_which_it_has_read_a_part(
    socket_path: Path,
) -> None:
    async with serve_unix(echo, socket_path) as server, connect(socket_path) as client:
        client.send(GET[:20])
        while not server.is_in_use:
            await asyncio.sleep(0)
        server.shut_down()
        assert (await client.reply()).status == 408


@pytest.mark.parametrize("path", ["/value", "/stream"])
async def test_a_client_that_half_closes_cancels_its_request_and_learns_when_it_has_ended(path: str) -> None:
    started, ending, released = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> AsyncGenerator[bytes, None]:
        started.set()
        try:
            yield b"begun"
            await asyncio.Event().wait()
        finally:
            ending.set()
            await released.wait()

    async def answer(request: Request) -> Answer:
        return Response(200, (), work() if path == "/stream" else b"".join([part async for part in work()]))

    async with serve(answer) as port, connect(port) as client:
        client.send(b"POST %b HTTP/1.1\r\n%b\r\n" % (path.encode(), HOST))
        await started.wait()
        client.writer.write_eof()
        rest = asyncio.ensure_future(client.rest())
        await ending.wait()
        assert not rest.done()
        released.set()
        assert b"0\r\n\r\n" not in await rest


async def test_a_request_that_is_done_when_it_is_cancelled_is_answered() -> None:
    started = asyncio.Event()

    async def stubborn(request: Request) -> Answer:
        started.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return Response(200, (), b"made")

    async with serve(stubborn) as port, connect(port) as client:
        client.send(GET)
        await started.wait()
        client.writer.write_eof()
        assert (await client.reply()).body == b"made"
        assert await client.rest() == b""


async def test_an_upgrade_that_is_cancelled_while_it_is_made_is_released() -> None:
    started, released = asyncio.Event(), asyncio.Event()

    async def nobody(stream: Stream) -> None:
        raise AssertionError

    async def stubborn(request: Request) -> Answer:
        started.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return Upgrade((), nobody, release=released.set, outlives_eof=True)

    async with serve(stubborn) as port, connect(port) as client:
        client.send(b"GET / HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
        await started.wait()
        client.writer.write_eof()
        assert await client.rest() == b""
        assert released.is_set()


async def test_a_server_that_closes_cancels_handlers_after_its_grace() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def wait(request: Request) -> Answer:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return Response(200)

    async with AsyncExitStack() as serving:
        port = await serving.enter_async_context(serve(wait, grace=0.1))
        async with connect(port) as client:
            client.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
            await started.wait()
            await serving.aclose()
            assert ended.is_set()


# Any bytes, in any pieces


CONVERSATION = (
    post(b"abc", path=b"/1")
    + b"GET /2?x=y HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    + post(b"", path=b"/3", headers=b"Connection: Upgrade\r\nUpgrade: h2c\r\n")
    + post(b"body of an upgrade", path=b"/4", headers=b"Connection: Upgrade\r\nUpgrade: h2c\r\n")
    + b"POST /5 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
    + b"POST /6 HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nxy"
    + b"GET /7 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
)


async def converse(port: int, pieces: list[bytes]) -> bytes:
    async with connect(port) as client:
        for piece in pieces:
            client.send(piece)
            await client.writer.drain()
            await asyncio.sleep(0)
        said = (await client.rest()).replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
        return re.sub(rb"date: [^\r]*\r\n", b"", said)


@given(cuts=st.lists(st.integers(0, len(CONVERSATION)), max_size=30))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_the_pieces_in_which_requests_come_make_no_difference(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(CONVERSATION)]
    pieces = [CONVERSATION[start:end] for start, end in pairwise(ends)]
    async with serve(echo) as port:
        whole = await converse(port, [CONVERSATION])
        assert whole.count(b"HTTP/1.1 200 OK") == 7
        assert await converse(port, pieces) == whole


FRAGMENTS = st.sampled_from(
    [
        *(b"GET ", b"POST ", b"/", b" HTTP/1.1", b" HTTP/1.0", b"\r\n", b"\n", b"\r", b"\r\n\r\n", b": ", b",", b"\0"),
        *(b"Host: a\r\n", b"Content-Length: 5\r\n", b"Content-Length: ", b"Transfer-Encoding: chunked\r\n"),
        *(b"Connection: upgrade\r\nUpgrade: websocket\r\n", b"Expect: 100-continue\r\n", b"Connection: close\r\n"),
        *(b"5\r\nabcde\r\n", b"0\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", post(b"abc")),
    ]
)


@given(data=st.lists(st.one_of(FRAGMENTS, FRAGMENTS, st.binary(max_size=20)), max_size=20).map(b"".join))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_no_bytes_make_the_server_fail_or_hang(data: bytes) -> None:
    limits = HttpLimits(head_timeout=0.02, body_idle_timeout=0.02, keep_alive_timeout=0.02, drain_timeout=0.02)
    async with serve(echo, limits=limits) as port:
        try:
            answer = await talk(port, data)
        except ConnectionError:
            return
        assert b"HTTP/1.1 500" not in answer


# Parsing without a connection


class Heard:
    """What a parser tells of the requests that it is fed: the connection, and the sink of their bodies."""

    def __init__(self, limits: HttpLimits | None = None) -> None:
        self.requests: list[Request] = []
        self.bodies: list[bytes] = []
        self.ends = 0
        self.pauses = 0
        self.parser = RequestParser(self, limits or HttpLimits(), self._begin)

    def _begin(self, request: Request) -> None:
        self.requests.append(request)
        self.bodies.append(b"")
        request.pass_body_to(self)

    def want_body(self) -> None: ...

    def pause_body(self) -> None:
        self.pauses += 1

    def body_data(self, data: bytes) -> None:
        self.bodies[-1] += data

    def body_end(self) -> None:
        self.ends += 1

    def body_failed(self, error: HttpError) -> None:
        raise error


def hear(*pieces: bytes, limits: HttpLimits | None = None) -> Heard:
    heard = Heard(limits)
    for piece in pieces:
        heard.parser.feed(piece)
    return heard


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_parser_refuses_what_is_not_valid(data: bytes) -> None:
    with pytest.raises(HttpError):
        hear(data)


@pytest.mark.parametrize(
    ("line", "path", "query"),
    [
        (b"GET /a?b=c?d HTTP/1.1", "/a", "b=c?d"),
        (b"GET / HTTP/1.0", "/", ""),
        (b"GET http://localhost/x?y HTTP/1.1", "/x", "y"),
        (b"GET HTTP://localhost/ HTTP/1.1", "/", ""),
        (b"OPTIONS * HTTP/1.1", "*", ""),
    ],
)
def test_a_target_is_a_path_and_a_query(line: bytes, path: str, query: str) -> None:
    (request,) = hear(line + b"\r\n" + HOST + b"A: 1\r\na: 2\r\n\r\n").requests
    assert (request.path, request.query, request.headers[b"a"]) == (path, query, b"1, 2")
    assert request.raw_headers == [(b"host", b"localhost"), (b"a", b"1"), (b"a", b"2")]
    assert (request.is_complete, request.is_upgrade) == (True, False)


@pytest.mark.parametrize(
    "line", [b"GET * HTTP/1.1", b"OPTIONS x HTTP/1.1", b"GET http://other/ HTTP/1.1", b"GET http://localhost HTTP/1.1"]
)
def test_a_target_that_is_no_path_of_this_host_is_refused(line: bytes) -> None:
    with pytest.raises(BadRequest):
        hear(line + b"\r\n" + HOST + b"\r\n")


def test_only_http_1_0_needs_no_host() -> None:
    assert hear(b"GET / HTTP/1.0\r\n\r\n").requests[0].version == "1.0"
    with pytest.raises(BadRequest, match="Host"):
        hear(b"GET / HTTP/1.0\r\nHost: a b\r\n\r\n")


SMALL = HttpLimits(head_bytes=100, headers=3)


def test_a_head_has_as_many_bytes_and_headers_as_the_limits_say() -> None:
    def head(target: int, value: int) -> bytes:
        return b"GET /%b HTTP/1.0\r\nA: %b\r\n\r\n" % (b"x" * (target - 1), b"y" * value)

    for data in (head(100, 0)[:110], head(1, 98), head(60, 39)):
        hear(data, limits=SMALL)
    for data in (head(101, 0)[:110], head(1, 99), head(60, 40)):
        with pytest.raises(HeadTooLarge, match="larger than 100"):
            hear(data, limits=SMALL)
    hear(b"GET / HTTP/1.0\r\n" + b"A: b\r\n" * 3 + b"\r\n", limits=SMALL)
    with pytest.raises(HeadTooLarge, match="more than 3"):
        hear(b"GET / HTTP/1.0\r\n" + b"A: b\r\n" * 4 + b"\r\n", limits=SMALL)


def test_a_head_that_does_not_end_is_refused() -> None:
    assert not hear().parser.is_in_head
    heard = hear(b"GET / HTTP/1.0\r\n", b"A: " + b"x" * 97, limits=SMALL)
    assert heard.parser.is_in_head
    with pytest.raises(HeadTooLarge):
        heard.parser.feed(b"x")


def test_every_head_is_measured_for_itself() -> None:
    heard = hear(*[b"GET / HTTP/1.1\r\nHost: a\r\n", b"B: %b\r\n\r\n" % (b"x" * 80)] * 3, limits=SMALL)
    assert (len(heard.requests), heard.ends, heard.parser.is_in_head) == (3, 3, False)


def test_framing_between_pieces_of_a_body_is_bounded() -> None:
    heard = hear(CHUNKED + b"\r\n", b"1\r\na\r\n", b"1;" + b"x" * 98, limits=SMALL)
    with pytest.raises(BadRequest, match="more framing than body"):
        heard.parser.feed(b"x")
    heard = hear(CHUNKED + b"\r\n", *[b"1;" + b"x" * 80 + b"\r\na\r\n"] * 9, b"0\r\n\r\n", limits=SMALL)
    assert (heard.bodies, heard.ends) == ([b"a" * 9], 1)


def test_trailers_are_dropped_and_bounded() -> None:
    heard = hear(CHUNKED + b"\r\n1\r\na\r\n0\r\nHost: b\r\n\r\n")
    assert (heard.requests[0].headers[b"host"], heard.bodies, heard.ends) == (b"a", [b"a"], 1)
    with pytest.raises(HeadTooLarge):
        hear(CHUNKED + b"\r\n0\r\nA: " + b"x" * 100 + b"\r\n\r\n", limits=SMALL)


UPGRADE = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n"


def test_what_follows_an_upgrade_is_held_until_it_is_decided() -> None:
    heard = hear(UPGRADE + b"Content-Length: 00\r\n\r\nab", b"cd", limits=HttpLimits(buffered_body_bytes=4))
    assert (heard.requests[0].is_upgrade, heard.ends, heard.pauses) == (True, 1, 0)
    heard.parser.feed(b"e")
    assert heard.pauses == 1
    assert [heard.parser.take_held(), heard.parser.take_held()] == [b"abcde", b""]
    heard.parser.feed(b"f")
    assert heard.parser.take_held() == b"f"


def test_what_was_held_is_parsed_when_the_connection_stays_http() -> None:
    heard = hear(UPGRADE + b"\r\n" + GET[:5], GET[5:])
    assert len(heard.requests) == 1
    heard.parser.release()
    heard.parser.release()
    heard.parser.feed(GET)
    assert [request.is_upgrade for request in heard.requests] == [True, False, False]
    assert heard.ends == 3


@pytest.mark.parametrize(
    "body", [b"Content-Length: 10\r\n\r\nabcdefghij", b"Transfer-Encoding: chunked\r\n\r\na\r\nabcdefghij\r\n0\r\n\r\n"]
)
@pytest.mark.parametrize("size", [1, 50, 1000])
def test_an_upgrade_with_a_body_is_an_ordinary_request(body: bytes, size: int) -> None:
    data = UPGRADE + body + GET
    heard = hear(*(data[at : at + size] for at in range(0, len(data), size)))
    assert [request.is_upgrade for request in heard.requests] == [False, False]
    assert (heard.bodies, heard.ends) == ([b"abcdefghij", b""], 2)
    assert heard.requests[0].headers[b"upgrade"] == b"x"
