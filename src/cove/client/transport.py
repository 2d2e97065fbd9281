"""Send calls to a server: one connection pool per event loop; error responses become the exceptions they were there.

A call that was not read, because nobody listens or the server is just stopping, has started nothing: it is repeated
until the server is back or retrying ends. A connection that breaks before the answer is there raises ConnectionLost:
the call may have run, and only what can be repeated without harm (reading, waiting) is. A call that is cancelled
waits, for a while, until the server has ended it.
"""

import asyncio
import atexit
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from functools import lru_cache
from typing import Final, TypeVar
from weakref import WeakSet

from cove.client.connection_pool import Pool
from cove.client.http_connection import Broken, HttpConnection
from cove.client.raw_connection import WebSocketClient, open_websocket, upgrade
from cove.client.retry import retry
from cove.client.servers import FindKey, Server, Servers
from cove.errors import CoveError, SandboxUnavailable, Unreachable
from cove.local.tcp_stream import Streams
from cove.local.tracing import ClientSpan, is_loaded
from cove.tasks import end, owned, race, settled
from cove.wire.coding import encode_json, encode_query, quote_segment
from cove.wire.errors import decode_error
from cove.wire.frames import EVENT, FAILURE, FRAMES, MOST_FRAME_BYTES, FrameReader, decode_failure
from cove.wire.operation import AnyOperation, Operation
from cove.wire.operations import CONNECT_PORT, CONNECT_TERMINAL
from cove.wire.requests import Request

V = TypeVar("V")
Content = bytes | AsyncIterable[bytes]
Undo = Callable[[bytes], Awaitable[None]]

# How long a cancelled call waits: for its answer, for its end, and for the removal of what it has made.
_ANSWER_SECONDS: Final = 0.5
_CANCEL_SECONDS: Final = 5.0
_UNDO_SECONDS: Final = 2.0
_CLOSE_SECONDS: Final = 2.0
_LARGE_BYTES: Final = 256 << 10
_MOST_REPLY_BYTES: Final = 1 << 30
_MOST_ERROR_BYTES: Final = 16 << 20
_JSON: Final = b"content-type: application/json\r\n"
_CONTENT: Final = b"content-type: application/octet-stream\r\n"
_ACCEPT_FRAMES: Final = f"accept: {FRAMES}\r\n".encode()
_NOT_READ: Final = 408  # RFC 9110: what was in transit may be repeated


class Transport:
    """A server, by one address or several, as seen from one event loop.

    Holders `acquire` and `release` it; the last one closes the connections.
    """

    def __init__(self, url: str, api_key: str | None, find_key: FindKey = lambda: None) -> None:
        self.url = url.partition(",")[0].strip().rstrip("/")
        self._servers = Servers(url, api_key, find_key)
        self._keeping: asyncio.Task[None] | None = None
        self._holders = 0
        self._calls = 0

    def acquire(self) -> None:
        """Count one more holder."""
        self._holders += 1

    async def release(self) -> None:
        """Count one holder less."""
        self._holders -= 1
        await self._close_unused()

    async def call(
        self,
        operation: AnyOperation,
        path: str,
        request: Request | None = None,
        content: Content | None = None,
        *,
        undo: Undo | None = None,
    ) -> bytes:
        """The body of the answer; `undo` is given that of a call that was cancelled and is done all the same.

        What the source of a content raises is raised here.
        """
        if not is_loaded():
            return await self._call_until_read(operation, path, request, content, undo, b"")
        with self._span(operation) as span:
            data = await self._call_until_read(operation, path, request, content, undo, span.headers)
            span.answered(operation.status)
            return data

    async def _call_until_read(
        self,
        operation: AnyOperation,
        path: str,
        request: Request | None,
        content: Content | None,
        undo: Undo | None,
        headers: bytes,
    ) -> bytes:
        return await retry(
            lambda request: self._call(operation, path, request, content, undo, headers),
            request,
            is_repeatable=operation.repeatable,
        )

    def _span(self, operation: AnyOperation) -> ClientSpan:
        """Begin the span of a call: the route and not the path, which may have a secret of the caller's in it."""
        route, address = operation.paths[0], self._servers.all[0].address
        return ClientSpan(
            f"{operation.verb} {route}",
            {
                "http.request.method": operation.verb,
                "url.template": route,
                "cove.operation": operation.name,
                "server.address": address.socket_path or address.host,
                **({"server.port": address.port} if address.socket_path is None else {}),
            },
        )

    async def _call(
        self,
        operation: AnyOperation,
        path: str,
        request: Request | None,
        content: Content | None,
        undo: Undo | None,
        headers: bytes,
    ) -> bytes:
        data: bytes | None = None
        server, connection = await self._connect()
        try:
            await self._ask(server, connection, operation, path, request, content, headers)
            data = await connection.read(_MOST_REPLY_BYTES)
        except asyncio.CancelledError:
            if not operation.repeatable:
                await settled(_cancel(connection, undo))
            raise
        except Broken as error:
            raise self._lost(server, error) from None
        finally:
            await self._let_go(server, connection, data, undo)
        return data

    async def _let_go(self, server: Server, connection: HttpConnection, data: bytes | None, undo: Undo | None) -> None:
        """Release the connection of a call. A caller who is cancelled meanwhile never hears what was made."""
        if self._holders > 0:
            await self._release(server, connection)  # waits for nothing
            return
        try:
            await settled(self._release(server, connection))
        except asyncio.CancelledError:
            if data is not None and undo is not None:
                await settled(_take_back(undo, data))
            raise

    async def content(self, operation: AnyOperation, path: str, request: Request | None) -> AsyncGenerator[bytes, None]:
        """Bytes as they come."""
        async with aclosing(self._traced_stream(operation, path, request, b"")) as chunks:
            async for chunk in chunks:
                yield chunk

    async def events(
        self, operation: Operation[Request, V], path: str, request: Request | None, content: Content | None = None
    ) -> AsyncGenerator[V, None]:
        """Events as they come. One that says the stream cannot go on is raised."""
        codec, reader = operation.answer.events, FrameReader()
        assert codec is not None
        async with aclosing(self._traced_stream(operation, path, request, _ACCEPT_FRAMES, content)) as chunks:
            async for chunk in chunks:
                for kind, head, data in reader.feed(chunk):
                    if kind == EVENT:
                        yield codec.decode(head, data)
                    elif kind == FAILURE:
                        raise decode_failure(head)

    def _traced_stream(
        self,
        operation: AnyOperation,
        path: str,
        request: Request | None,
        headers: bytes,
        content: Content | None = None,
    ) -> AsyncGenerator[bytes, None]:
        if not is_loaded():
            return self._stream(operation, path, request, headers, content)
        span = self._span(operation)
        return _until_over(span, operation, self._stream(operation, path, request, headers + span.headers, content))

    async def _stream(
        self,
        operation: AnyOperation,
        path: str,
        request: Request | None,
        headers: bytes,
        content: Content | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """The body of an answer. Whoever leaves a call that does something waits until the server has ended it."""
        server, connection = await self._connect()
        try:
            await self._ask(server, connection, operation, path, request, content, headers)
            async for chunk in connection.chunks():
                yield chunk
        except Broken as error:
            raise self._lost(server, error) from None
        finally:
            try:
                if not operation.repeatable and not connection.is_complete and not connection.is_lost:
                    await settled(_cancel(connection, None))
            finally:
                await self._release(server, connection)

    @asynccontextmanager
    async def socket(self, path: str, request: Request) -> AsyncIterator[WebSocketClient]:
        """Open a WebSocket."""
        target = _target(path, request)
        with self._span(CONNECT_TERMINAL) if is_loaded() else nullcontext() as span:
            server, streams = await self._dial()
            target = server.address.prefix + target
            more = server.tenant + ("" if span is None else span.headers.decode())
            websocket = await open_websocket(
                streams, server.address, target, server.authorization, MOST_FRAME_BYTES, more
            )
        websocket.is_only = len(self._servers.all) == 1
        try:
            yield websocket
        finally:
            await websocket.close()

    async def raw(self, path: str) -> Streams:
        """A connection that is raw after an upgrade; whoever asked closes it."""
        with self._span(CONNECT_PORT) if is_loaded() else nullcontext() as span:
            server, streams = await self._dial()
            more = server.tenant + ("" if span is None else span.headers.decode())
            await upgrade(streams, server.address, server.address.prefix + path, server.authorization, more)
            return streams

    async def _dial(self) -> tuple[Server, Streams]:
        self._begin()
        try:
            return await self._servers.open_streams()
        finally:
            await self._end()

    async def _connect(self) -> tuple[Server, HttpConnection]:
        """A connection for one call, to whoever answers; `_release` gives it back."""
        self._begin()
        try:
            return await self._servers.connect()
        except BaseException:
            await self._end()
            raise

    async def _release(self, server: Server, connection: HttpConnection) -> None:
        server.calls -= 1
        if server.pool is not None:
            server.pool.give_back(connection)
        await self._end()

    async def _ask(
        self,
        server: Server,
        connection: HttpConnection,
        operation: AnyOperation,
        path: str,
        request: Request | None,
        content: Content | None,
        headers: bytes = b"",
    ) -> None:
        """Send the request and wait for an answer that is no error."""
        has_query = operation.has_query
        body, kind = (content, _CONTENT) if operation.takes_content else (None, b"")
        if request is not None and not has_query:
            body, kind = encode_json(request), _JSON
        target = server.address.prefix + _target(path, request if has_query else None)
        head = b"%b %b%b%b%b" % (operation.verb.encode(), target.encode(), server.headers, kind, headers)
        await _send(connection, head, body)
        status = await connection.begun()
        server.has_answered()
        if status >= 300:
            error = decode_error(await connection.read(_MOST_ERROR_BYTES), status)
            if status == _NOT_READ and not _is_stream(body) and isinstance(error, SandboxUnavailable):
                server.has_failed()  # one that stops says so to whoever is just asking
                raise Unreachable(error.message)
            raise error

    def _lost(self, server: Server, error: Broken) -> CoveError:
        server.has_failed()
        return server.lost(error, has_other=self._servers.has_other(server))

    def _begin(self) -> None:
        """One more call; the pools are there until its `_end`."""
        if self._keeping is None:
            self._keeping = owned(_keep(self._servers.make_pools()))
        self._calls += 1

    async def _end(self) -> None:
        """One call less."""
        self._calls -= 1
        if self._holders <= 0:
            await self._close_unused()

    async def _close_unused(self) -> None:
        if self._holders <= 0 and not self._calls and self._keeping is not None:
            keeping, self._keeping = self._keeping, None
            pools = self._servers.take_pools()
            await end(keeping)
            await _close(pools)  # a task that is cancelled before it began has closed nothing


async def _until_over(
    span: ClientSpan, operation: AnyOperation, chunks: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    with span:
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk
        span.answered(operation.status)


def _target(path: str, request: Request | None) -> str:
    query = "" if request is None else encode_query(request)
    return f"{path}?{query}" if query else path


def _is_stream(body: Content | None) -> bool:
    return body is not None and not isinstance(body, bytes)


async def _send(connection: HttpConnection, head: bytes, body: Content | None) -> None:
    """A small request is one write."""
    if body is None:
        connection.send(head + b"\r\n")
    elif not isinstance(body, bytes):
        connection.send(head + b"transfer-encoding: chunked\r\n\r\n", is_whole=False)
        await _send_until_answered(connection, body)
    elif len(body) <= _LARGE_BYTES:
        connection.send(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))
    else:
        connection.send(b"%bcontent-length: %d\r\n\r\n" % (head, len(body)), is_whole=False)
        await connection.send_body(body)


async def _send_until_answered(connection: HttpConnection, chunks: AsyncIterable[bytes]) -> None:
    """A server need not wait for the end of a body, and the source of one need not come to an end."""
    await race(connection.send_stream(chunks), connection.begun())


async def _cancel(connection: HttpConnection, undo: Undo | None) -> None:
    """End a call on the server, and what it has made if it was done already.

    The answer of a call that makes something may be on its way, and not every proxy passes it to a half-closed
    connection.
    """
    if undo is not None:
        await connection.wait_for_answer(_ANSWER_SECONDS)
    await connection.end(_CANCEL_SECONDS)
    if undo is None or not connection.is_complete or connection.status >= 300:
        return
    await _take_back(undo, await connection.read(_MOST_REPLY_BYTES))


async def _take_back(undo: Undo, data: bytes) -> None:
    """Remove what a call has made, unless it is gone or its server is away."""
    with suppress(CoveError, TimeoutError):
        async with asyncio.timeout(_UNDO_SECONDS):
            await undo(data)


_kept: "WeakSet[asyncio.Task[None]]" = WeakSet()


async def _keep(pools: Sequence[Pool]) -> None:
    """Until the last holder lets go, or the event loop ends: a program need not let go of what it connects to."""
    task = asyncio.current_task()
    assert task is not None
    _kept.add(task)
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await _close(pools)


async def _close(pools: Sequence[Pool]) -> None:
    for pool in pools:
        await pool.aclose()


def _let_go() -> None:
    """The program ends while loops run on in other threads: a blocking program's does."""
    for task in list(_kept):
        loop = task.get_loop()
        if loop.is_running() and not task.done():
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(end(task), loop).result(timeout=_CLOSE_SECONDS)


atexit.register(_let_go)


def fill(operation: AnyOperation, *values: str) -> str:
    """The operation's path with these ids."""
    parts = _parts(operation.path)
    filled = [parts[0]]
    for value, part in zip(values, parts[1:], strict=True):
        filled += (quote_segment(value), part)
    return "".join(filled)


@lru_cache(maxsize=256)
def _parts(path: str) -> tuple[str, ...]:
    parts = [""]
    for segment in path.split("/")[1:]:
        if segment.startswith("{"):
            parts[-1] += "/"
            parts.append("")
        else:
            parts[-1] += f"/{segment}"
    return tuple(parts)
