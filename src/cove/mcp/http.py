"""Serve the protocol over streamable HTTP: a bridge from Cove's own HTTP server to the ASGI app of the package `mcp`.

The app of one request runs in a task of its own. What it sends waits in a queue of bounded length, so that a client
which does not read holds it back. When a client leaves, the app is told, as ASGI has it, and ends by itself: cancelled
in the middle it would take a session that has just begun for one that has not. Session ids have the sandbox's id before
them, so that a gateway without state finds the sandbox.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import aclosing
from typing import Final

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from cove.errors import Internal
from cove.http import Headers, Request, Response
from cove.mcp.server import make_server
from cove.tasks import Tasks, end, owned
from cove.tools import Toolset

SESSION_HEADER: Final = b"mcp-session-id"
_MOST_BODY_BYTES: Final = 32 << 20
_MOST_SESSIONS: Final = 64
_MOST_WAITING: Final = 16
_EVENTS: Final = b"text/event-stream"
_OURS: Final = frozenset((b"content-length", b"transfer-encoding", b"connection", b"date"))

Message = MutableMapping[str, object]
App = Callable[..., Awaitable[None]]


class HttpEndpoint:
    """The endpoint of one toolset, between `open` and `close`. A session that is unused too long is forgotten."""

    def __init__(self, toolset: Toolset, idle_seconds: float | None) -> None:
        self._toolset = toolset
        self._prefix = toolset.sandbox.id.encode() + b"."
        self._manager = StreamableHTTPSessionManager(
            make_server(toolset),
            session_idle_timeout=idle_seconds,
            max_request_body_size=_MOST_BODY_BYTES,
            max_sessions=_MOST_SESSIONS,
        )
        self._tasks = Tasks(lambda _: None)
        self._is_open = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin to serve."""
        self._running = owned(self._run())
        try:
            await self._is_open.wait()
        except asyncio.CancelledError:
            await self.close()
            raise
        if self._running.done():
            self._running.result()

    async def close(self) -> None:
        """End every session and what is under way, and close the toolset. Idempotent."""
        await self._tasks.aclose()
        if self._running is not None:
            await end(self._running)
        await self._toolset.close()

    async def _run(self) -> None:
        """Hold the manager open in one task: its scopes must be left where they were entered."""
        try:
            async with self._manager.run():
                self._is_open.set()
                await asyncio.get_running_loop().create_future()
        finally:
            self._is_open.set()

    async def answer(self, request: Request) -> Response:
        """Answer one request."""
        exchange = _Exchange(request, await request.read(_MOST_BODY_BYTES), self._prefix)
        self._tasks.start(exchange.run(self._manager.handle_request), on_end=exchange.finish)
        try:
            return await exchange.response()
        except BaseException:
            exchange.leave()
            raise


class _Exchange:
    """One request as an ASGI app sees it."""

    def __init__(self, request: Request, body: bytes, prefix: bytes) -> None:
        self._request = request
        self._body: bytes | None = body
        self._prefix = prefix
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(_MOST_WAITING)
        self._is_gone = asyncio.Event()

    async def run(self, app: App) -> None:
        """Run the app to its end."""
        request = self._request
        scope: dict[str, object] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": request.version,
            "method": request.method,
            "scheme": "http",
            "path": request.path,
            "raw_path": request.path.encode(),
            "root_path": "",
            "query_string": request.query.encode(),
            "headers": [(name, self._incoming(name, value)) for name, value in request.raw_headers],
            "client": None,
            "server": None,
        }
        await app(scope, self._receive, self._send)

    def _incoming(self, name: bytes, value: bytes) -> bytes:
        return value.removeprefix(self._prefix) if name == SESSION_HEADER else value

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._is_gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if not self._is_gone.is_set():
            await self._room.acquire()
            self._messages.put_nowait(message)

    def leave(self) -> None:
        """Tell the app that nobody reads any more."""
        self._is_gone.set()
        for _ in range(_MOST_WAITING):
            self._room.release()

    def finish(self) -> None:
        """End the messages: the app has returned."""
        self._messages.put_nowait(None)

    async def _next(self) -> Message | None:
        message = await self._messages.get()
        self._room.release()
        return message

    async def response(self) -> Response:
        """Return a stream of events as soon as its head is there, anything else when it is whole."""
        start = await self._next()
        if start is None:
            raise Internal("the MCP server gave no response")
        status, headers = start["status"], self._headers(start)
        assert isinstance(status, int)
        if dict(headers).get(b"content-type", b"").startswith(_EVENTS):
            return Response(status, headers, self._stream())
        async with aclosing(self._stream()) as chunks:
            return Response(status, headers, b"".join([chunk async for chunk in chunks]))

    def _headers(self, start: Message) -> Headers:
        headers = start["headers"]
        assert isinstance(headers, list | tuple)
        return [
            (name, self._prefix + value if name == SESSION_HEADER else value)
            for name, value in headers
            if name not in _OURS
        ]

    async def _stream(self) -> AsyncGenerator[bytes, None]:
        try:
            while (message := await self._next()) is not None:
                yield _body_of(message)
        finally:
            self.leave()


def _body_of(message: Message) -> bytes:
    body = message.get("body", b"")
    assert isinstance(body, bytes)
    return body
