"""What a hostile server can do to a client: learn nothing that is not its business, and cost bounded memory."""

import asyncio
import base64
import hashlib
import re
import socket
import tempfile
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from support.scripted_server import Script, scripted
from support.upstream import running_upstream

from cove.client import transport as transport_module
from cove.client.retry import Backoff
from cove.client.transport import Transport
from cove.errors import ConnectionLost, CoveError, Internal, SandboxUnavailable, Unreachable
from cove.wire import operations, requests

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def hostile(script: Script) -> AsyncIterator[str]:
    """A server that does what the script says to every connection, whose head it has read."""
    async with scripted(script, lambda begin: asyncio.start_server(begin, "127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def client(url: str) -> AsyncIterator[Transport]:
    transport = Transport(url, "the-key-of-this-user")
    transport.acquire()
    try:
        yield transport
    finally:
        await transport.release()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_leads_a_client_to_another_server(status: int) -> None:
    visits: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        visits.append(await reader.readuntil(b"\r\n\r\n"))

    async with hostile(listen) as elsewhere:

        async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(f"HTTP/1.1 {status} Go\r\nLocation: {elsewhere}/x\r\nContent-Length: 0\r\n\r\n".encode())

        async with hostile(redirect) as url, client(url) as transport:
            with pytest.raises(CoveError):
                await transport.call(operations.LIST, operations.LIST.path)
            with pytest.raises(CoveError):
                await transport.call(operations.CREATE, operations.CREATE.path, requests.CreateSandbox())
            with pytest.raises(CoveError):
                async with transport.socket("/v1/sandboxes/x/terminals/t/connect", requests.Connect()):
                    pass
            with pytest.raises(CoveError):
                await transport.raw("/v1/sandboxes/x/ports/1/connect")
    assert visits == []


async def test_a_server_that_ends_a_connection_with_tls_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    with running_upstream(tmp_path) as upstream:
        monkeypatch.setenv("SSL_CERT_FILE", str(upstream.ca))
        port = upstream.serve(hang_up, "localhost", tls=True)
        async with client(f"https://localhost:{port}") as transport:
            with pytest.raises(ConnectionLost):
                await transport.call(operations.CREATE, operations.CREATE.path, requests.CreateSandbox())


@pytest.mark.parametrize("status", ["200 OK", "500 Failed"])
async def test_an_answer_without_end_is_not_waited_for(status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "_MOST_REPLY_BYTES", 1 << 20)
    monkeypatch.setattr(transport_module, "_MOST_ERROR_BYTES", 1 << 20)

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        while True:
            writer.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")
            await writer.drain()

    async with hostile(flood) as url, client(url) as transport:
        with pytest.raises(Internal, match="larger than"):
            await transport.call(operations.CREATE, operations.CREATE.path, requests.CreateSandbox())


async def test_a_head_without_end_is_not_waited_for() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X-More: %b\r\n" % (b"x" * 1000) * 100)
            await writer.drain()

    async with hostile(flood) as url, client(url) as transport:
        with pytest.raises(ConnectionLost):
            await transport.call(operations.CREATE, operations.CREATE.path, requests.CreateSandbox())
        with pytest.raises(ConnectionLost):
            await transport.raw("/v1/sandboxes/x/ports/1/connect")


async def test_what_comes_behind_an_answer_is_no_part_of_it_and_no_other_answer() -> None:
    said = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"
    farewell = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 4\r\nConnection: close\r\n\r\nnull"
    connections: list[int] = []

    async def answer_and_stop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said + farewell)
        await reader.read()

    async with hostile(answer_and_stop) as url, client(url) as transport:
        for _ in range(3):
            assert await transport.call(operations.LIST, operations.LIST.path) == b"[]"
    assert len(connections) == 3


async def test_a_call_that_a_local_server_has_not_read_is_repeated() -> None:
    """It stops on idle connections, one of which just carries a call: the kernel says that nobody read it."""
    calls: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")
        await reader.read()

    def close_unread(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        assert connection.recv(1, socket.MSG_PEEK)
        connection.close()

    with tempfile.TemporaryDirectory(prefix="local-") as directory, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{directory}/socket")
        listener.listen()
        listener.settimeout(20)
        async with client(f"unix://{directory}/socket") as transport:
            closing = asyncio.ensure_future(asyncio.to_thread(close_unread, listener))
            calling = asyncio.ensure_future(
                transport.call(operations.EXEC, "/v1/sandboxes/x/exec", requests.Exec("ls"))
            )
            await closing
            async with scripted(answer, lambda begin: asyncio.start_unix_server(begin, sock=listener)):
                assert await calling == b"[]"
    assert len(calls) == 1


async def test_a_message_of_a_terabyte_is_not_waited_for() -> None:
    async def promise(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        key = re.search(rb"sec-websocket-key: (\S+)", head, re.IGNORECASE)
        assert key is not None
        accepted = base64.b64encode(hashlib.sha1(key[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n")
        writer.write(b"Sec-WebSocket-Accept: %b\r\n\r\n\x82\x7f" % accepted + (1 << 40).to_bytes(8, "big"))
        await reader.read()

    path = "/v1/sandboxes/x/terminals/t/connect"
    async with hostile(promise) as url, client(url) as transport, transport.socket(path, requests.Connect()) as socket:
        async with asyncio.timeout(20):
            with pytest.raises(ConnectionLost, match="at most"):
                await socket.receive()


async def test_a_call_that_is_cancelled_at_any_point_leaves_no_connection() -> None:
    connections: set[asyncio.StreamWriter] = set()
    all_gone = asyncio.Event()

    async def dawdle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(writer)
        try:
            await reader.readuntil(b"\r\n\r\n")
            for piece in (b"HTTP/1.1 200", b" OK\r\nContent-", b"Length: 4\r\n\r\n", b"nu", b"ll"):
                writer.write(piece)
                await asyncio.sleep(0.002)  # calls are cancelled at moments between these
            await reader.read()
        finally:
            connections.discard(writer)
            all_gone.set()

    path = "/v1/sandboxes/x/ports/1/connect"
    for steps in range(0, 40, 3):
        async with hostile(dawdle) as url:
            async with client(url) as transport:
                create = transport.call(operations.CREATE, operations.CREATE.path, requests.CreateSandbox())
                for call in (create, transport.raw(path), _open_and_leave(transport, path)):
                    await _cancelled_after(steps, call)
            async with asyncio.timeout(20):
                while connections:
                    all_gone.clear()
                    await all_gone.wait()


async def _open_and_leave(transport: Transport, path: str) -> None:
    async with transport.socket(path, requests.Connect()):
        pass


async def _cancelled_after(steps: int, call: Coroutine[object, object, object]) -> None:
    task = asyncio.ensure_future(call)
    for _ in range(steps):
        await asyncio.sleep(0.001)
    task.cancel()
    with suppress(asyncio.CancelledError, CoveError):
        await task


async def test_a_connection_that_breaks_in_the_middle_of_a_request_is_told_in_plain_words() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield bytes(1 << 20)

    async with hostile(hang_up) as url, client(url) as transport:
        for content in (bytes(64 << 20), pieces()):
            with pytest.raises(ConnectionLost) as caught:
                await transport.call(operations.WRITE_FILE, "/x", requests.WriteFile(path="f"), content)
            assert re.fullmatch(r"the connection to \S+ broke: [A-Z][a-z ]+", caught.value.message), (
                caught.value.message
            )


async def test_a_url_of_what_is_no_server_of_ours_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse_to_pause(_: Backoff, __: CoveError) -> None:
        pytest.fail("it is tried again")

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await reader.read()

    monkeypatch.setattr(Backoff, "pause", refuse_to_pause)
    async with hostile(greet) as url:
        async with client(url) as transport:
            with pytest.raises(Internal, match=r"no Cove server.*not valid HTTP.*Check the URL"):
                await transport.call(operations.LIST, operations.LIST.path)
        async with client(url.replace("http", "https")) as transport:
            with pytest.raises(SandboxUnavailable, match=r"not the address of a Cove server.*Check the URL") as raised:
                await transport.call(operations.LIST, operations.LIST.path)
            assert not isinstance(raised.value, Unreachable)


async def test_a_name_that_no_host_has_fails_at_once_and_one_that_had_a_server_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n[]")

    async def find_nothing(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def stop(_: Backoff, __: CoveError) -> None:
        raise TimeoutError

    loop = asyncio.get_running_loop()
    async with client("http://nowhere.example:1") as transport:
        with monkeypatch.context() as patch:
            patch.setattr(loop, "getaddrinfo", find_nothing)
            with pytest.raises(SandboxUnavailable, match=r"Name or service not known\. Check the URL") as raised:
                await transport.call(operations.LIST, operations.LIST.path)
            assert not isinstance(raised.value, Unreachable)
    async with hostile(answer) as url, client(url.replace("127.0.0.1", "localhost")) as transport:
        assert await transport.call(operations.LIST, operations.LIST.path) == b"[]"
        with monkeypatch.context() as patch:
            patch.setattr(loop, "getaddrinfo", find_nothing)
            patch.setattr(Backoff, "pause", stop)
            with pytest.raises(TimeoutError):
                await transport.call(operations.LIST, operations.LIST.path)
