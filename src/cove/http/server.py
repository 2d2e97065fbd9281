"""An HTTP/1.1 server on given listening sockets, with all its connections; graceful shutdown."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import overload

from cove.http.connection import HttpConnection
from cove.http.dead_peer import DeadPeerDetector, keep_alive
from cove.http.errors import HttpError
from cove.http.parser import HttpLimits
from cove.http.request import Request
from cove.http.response import Handler, Response

_PLAIN = ((b"content-type", b"text/plain; charset=utf-8"),)
_BACKLOG = 1024
_MOST_REFUSED = 64


class Observer:
    """Is told how requests end; this one takes no note of it. It must not raise, nor take its time."""

    def answered(self, request: Request) -> None:
        """Note that an answer is over: complete, or nobody waits for it any more."""

    def rejected(self, response: Response) -> None:
        """Note that a connection was refused, or what came on it is no request."""


class HttpServer:
    """Serves while it is open; owns the sockets and every connection.

    When there are as many as there may be, a new one takes the place of the one that has waited longest for a request:
    whoever only holds connections open locks nobody out.
    `describe` says how an error looks to a client; what it answers None to is plain text, and where the handler raised
    it, logged and a 500.
    Closing stops accepting, lets answers under way end within the grace, then cancels their handlers.
    """

    def __init__(
        self,
        handler: Handler,
        sockets: Sequence[socket.socket],
        *,
        describe: Callable[[Exception], Response | None] = lambda _: None,
        limits: HttpLimits | None = None,
        grace: float = 5.0,
        observer: Observer | None = None,
    ) -> None:
        self.handler = handler
        self.observer = observer or Observer()
        self._describe = describe
        self.is_closing = False
        self._sockets = sockets
        self._limits = limits or HttpLimits()
        self._grace = grace
        self._listeners: list[asyncio.Server] = []
        self._connections: set[HttpConnection] = set()
        self._admitted: dict[HttpConnection, None] = {}  # first who has been there longest since its last answer
        self._all_gone = asyncio.Event()
        self._watch = DeadPeerDetector()

    @overload
    def describe(self, error: HttpError) -> Response: ...

    @overload
    def describe(self, error: Exception) -> Response | None: ...

    def describe(self, error: Exception) -> Response | None:
        """Map an exception to a response; None for what is the handler's bug."""
        described = self._describe(error)
        if described is None and isinstance(error, HttpError):
            return Response(error.status, _PLAIN, f"{error}\n".encode())
        return described

    async def __aenter__(self) -> "HttpServer":
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            if sock.family == socket.AF_UNIX:
                listener = await loop.create_unix_server(self._connect, sock=sock, backlog=_BACKLOG)
            else:
                keep_alive(sock)
                listener = await loop.create_server(self._connect, sock=sock, backlog=_BACKLOG)
            self._listeners.append(listener)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def stop_accepting(self) -> None:
        """Close the listening sockets: whoever connects from here on is refused. Idempotent."""
        self.is_closing = True
        for listener in self._listeners:
            listener.close()

    def shut_down(self) -> None:
        """Begin no answer any more, from this very step on; those under way go on. Idempotent."""
        self.stop_accepting()
        for connection in list(self._connections):
            connection.shut_down()

    async def aclose(self) -> None:
        """Shut down, wait for a while, then end what is left."""
        self.shut_down()
        try:
            async with asyncio.timeout(self._grace):
                await self.until_all_gone()
        except TimeoutError:
            self.abort()
            await self.until_all_gone()
        finally:
            self._watch.close()

    def abort(self) -> None:
        """End all connections at once."""
        for connection in list(self._connections):
            connection.abort()

    def abort_unless(self, is_allowed: Callable[[Request], bool]) -> None:
        """End the connections whose request, which is being answered, is not allowed any more."""
        for connection in list(self._connections):
            if connection.is_answering and not is_allowed(connection.request):
                connection.abort()

    @property
    def is_in_use(self) -> bool:
        """Return whether anything that was read on any connection is still to be answered."""
        return any(connection.is_in_use for connection in self._connections)

    def add(self, connection: HttpConnection) -> bool:
        """Register a connection; returns whether there is room for one more. It is owned in either case."""
        self._connections.add(connection)
        if self.is_closing or (len(self._admitted) >= self._limits.connections and not self._make_room()):
            return False
        self._admitted[connection] = None
        return True

    @property
    def is_crowded(self) -> bool:
        """Return whether there is no room even to refuse a connection politely."""
        return len(self._connections) - len(self._admitted) > _MOST_REFUSED

    def has_answered(self, connection: HttpConnection) -> None:
        """Register a connection as idle: it waits for its next request."""
        if connection in self._admitted:
            del self._admitted[connection]
            self._admitted[connection] = None

    def has_ended(self, request: Request) -> None:
        """Tell the end of an answer, once."""
        if not request.is_over:
            request.is_over = True
            self.observer.answered(request)

    def _make_room(self) -> bool:
        waiting = next((connection for connection in self._admitted if connection.is_waiting), None)
        if waiting is None:
            return False
        del self._admitted[waiting]
        waiting.abort()
        return True

    def remove(self, connection: HttpConnection) -> None:
        """Forget a connection that is lost, and whose handler has ended."""
        self._admitted.pop(connection, None)
        self._connections.discard(connection)
        if not self._connections:
            self._all_gone.set()

    def watch(self, transport: asyncio.Transport) -> None:
        """Watch a connection for a dead peer, and end it then."""
        self._watch.add(transport, transport.abort)

    def _connect(self) -> HttpConnection:
        return HttpConnection(self, self._limits)

    async def until_all_gone(self) -> None:
        """Wait until there is no connection left."""
        while self._connections:
            self._all_gone.clear()
            await self._all_gone.wait()
