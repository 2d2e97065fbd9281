"""A real HTTP server on a socket of this machine, and a client that sends any bytes and parses the least."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import uvloop

from cove.http import Handler, HttpLimits, HttpServer
from cove.server.error_response import describe_error

TIMEOUT_SECONDS = 20.0

uvloop.new_event_loop().close()  # libuv opens a pipe with the first loop and keeps it as long as the process lives


class Reply:
    """One parsed response."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def __repr__(self) -> str:
        return f"{self.status} {self.headers} {self.body[:200]!r}"


class Client:
    """A connection; every wait is bounded."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def reply(self, *, head_only: bool = False) -> Reply:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            head = await self.reader.readuntil(b"\r\n\r\n")
            status, headers = _parse_head(head)
            if head_only or status < 200 or status in (204, 304):
                body = b""
            elif headers.get("transfer-encoding") == "chunked":
                body = b"".join([chunk async for chunk in self.chunks()])
            elif "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            else:
                body = await self.reader.read()
            return Reply(status, headers, body)

    async def head(self) -> Reply:
        return await self.reply(head_only=True)

    async def chunks(self) -> AsyncIterator[bytes]:
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            yield await self.reader.readexactly(size)
            assert await self.reader.readexactly(2) == b"\r\n"
        assert await self.reader.readexactly(2) == b"\r\n"

    async def rest(self) -> bytes:
        """All that comes until the server closes."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self.reader.read()

    async def ask(self, path: str = "/", *, method: str = "GET", body: bytes | None = None, **headers: str) -> Reply:
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        self.send("\r\n".join([*lines, "", ""]).encode() + (body or b""))
        return await self.reply(head_only=method == "HEAD")


@asynccontextmanager
async def connect(address: "int | Path") -> AsyncIterator[Client]:
    if isinstance(address, int):
        reader, writer = await asyncio.open_connection("127.0.0.1", address, limit=1 << 20)
    else:
        reader, writer = await asyncio.open_unix_connection(str(address), limit=1 << 20)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def serve(handler: Handler, *, limits: HttpLimits | None = None, grace: float = 5.0) -> AsyncIterator[int]:
    """Serve on a free port."""
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    async with HttpServer(handler, [sock], describe=describe_error, limits=limits, grace=grace):
        yield sock.getsockname()[1]


@asynccontextmanager
async def serve_unix(handler: Handler, path: Path, *, limits: HttpLimits | None = None) -> AsyncIterator[HttpServer]:
    """Serve on a unix socket."""
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen(128)
    sock.setblocking(False)
    try:
        async with HttpServer(handler, [sock], describe=describe_error, limits=limits, grace=1.0) as server:
            yield server
    finally:
        path.unlink(missing_ok=True)


async def talk(address: "int | Path", data: bytes) -> bytes:
    """Send this and give all that comes back until the server closes."""
    async with connect(address) as client:
        client.send(data)
        return await client.rest()


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    version, status, _ = first.split(" ", 2)
    assert version == "HTTP/1.1"
    return int(status), {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
