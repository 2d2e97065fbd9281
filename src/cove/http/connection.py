"""One client's connection: requests are answered one at a time, in the order in which they came.

Theory of operation. `RequestParser` turns bytes into requests, which wait in a queue. `_advance` takes the first when
nothing is being answered and the client takes what is written. The handler answers at once, or with a coroutine,
which becomes the connection's only task. However the answer is written, `finish` ends it: the next request is taken,
or the connection is closed. A connection whose request was not read to its end is closed behind the answer: its write
side first, and what still comes is dropped for a while, because closing at once would make the kernel reset the
connection and lose the answer.

A client that half-closes while it waits for an answer cancels its request. The handler is cancelled, and when it has
ended the connection is closed: that is how the client learns that nothing runs any more.

When the server closes, whoever has a request on its way must learn that it was not read, and that nothing was started.
An idle TCP connection is answered before it asks (408, RFC 9110). An idle unix connection is closed without a word: the
kernel resets it where bytes were not read (unix(7)), and an answer that nobody asked for could be read together with
the one before. Where a part of a request was read, both get the 408.

Requests that were pipelined wait in the queue; reading stops while more than a few do.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from enum import Enum, auto
from typing import TYPE_CHECKING, TypeVar, cast

from cove.http.deadline import Deadline
from cove.http.endpoint import Endpoint
from cove.http.errors import HandlerFailed, HttpError, RequestTimeout, ServerStopping, TooManyConnections
from cove.http.parser import HttpLimits, RequestParser
from cove.http.request import Request
from cove.http.response import (
    Answer,
    Body,
    ChunkedBody,
    Ping,
    Relay,
    Response,
    Upgrade,
    has_body,
    render_head,
    render_switch,
)
from cove.http.stream import Stream
from cove.tasks import owned

if TYPE_CHECKING:
    from cove.http.server import HttpServer

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_MOST_WAITING = 4
_FAREWELL_SECONDS = 1.0
_UNIX_BYTES = 1 << 20

T = TypeVar("T")

log = logging.getLogger("cove.http")


class _State(Enum):
    """HTTP until the connection becomes raw, or only its end is left."""

    HTTP = auto()
    RAW = auto()
    ENDING = auto()
    LOST = auto()


class HttpConnection(Endpoint):
    """Reads requests, calls the handler, writes answers. `request` is the one being answered."""

    request: Request

    def __init__(self, server: "HttpServer", limits: HttpLimits) -> None:
        self._server = server
        self._limits = limits
        self._parser = RequestParser(self, limits, self._on_request)
        self._deadline = Deadline(self._expire)
        self._state = _State.HTTP
        self._queue: deque[Request] = deque()
        self._rejection: HttpError | None = None
        self._task: asyncio.Task[Answer] | asyncio.Task[None] | None = None
        self._taker: Relay | Stream | None = None
        self._drained: asyncio.Future[None] | None = None
        self._dropped_bytes = 0
        self._tells_unread = False
        self._has_client_ended = False
        self._is_busy = False
        self._is_advancing = False
        self._is_full = False
        self._is_timing_head = False
        self._owes_continue = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock.family == socket.AF_UNIX:
            self._tells_unread = True
            _widen(sock)
        else:
            self._server.watch(self._transport)
        if self._server.add(self):
            self._deadline.set(self._limits.keep_alive_timeout)
        elif self._server.is_closing:
            self.shut_down()
        elif self._server.is_crowded:
            self.abort()
        else:
            self._reject(self._server.describe(TooManyConnections("the server has too many connections")))

    def data_received(self, data: bytes) -> None:
        """The client has sent something."""
        if self._state is _State.RAW:
            assert self._taker is not None
            self._taker.client_data(data)
        elif self._state is _State.HTTP and self._rejection is None:
            self._parse(data)
        else:
            self._drop(data)

    def eof_received(self) -> bool:
        """A client that has closed its side cancels; on a raw connection it gets what is left to say to it."""
        if self._state is _State.HTTP and self._is_busy:
            self._cancel()
            return True
        if self._state is not _State.RAW:
            return False
        assert self._taker is not None
        self._taker.client_eof()
        if isinstance(self._taker, Stream) and not self._taker.outlives_eof:
            self._deadline.set(self._limits.drain_timeout)
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone: nobody waits for an answer."""
        self._state = _State.LOST
        self._deadline.close()
        self._queue.clear()
        if self._taker is not None:
            self._taker.client_gone()
            self._taker = None
        if self._task is None:
            self._server.remove(self)
        elif not self._has_client_ended:
            self._task.cancel()

    def pause_writing(self) -> None:
        """The client does not take what is written."""
        self._is_full = True
        if self._taker is not None:
            self._taker.client_full()

    def resume_writing(self) -> None:
        """The client takes more."""
        self._is_full = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self._taker is not None:
            self._taker.client_ready()
        self._advance()

    def want_body(self) -> None:
        """Resume reading: somebody waits for the body of the current request."""
        if self._state is not _State.HTTP:
            return
        if self._owes_continue:
            self._owes_continue = False
            self._transport.write(_CONTINUE)
        self.resume_reading()
        self._deadline.set(self._limits.body_idle_timeout)

    def pause_body(self) -> None:
        """Stop reading (backpressure): nobody takes more of a body for the time being."""
        self.pause_reading()
        self._deadline.clear()

    @property
    def peer(self) -> str:
        """The client's address; nothing on a unix socket."""
        address = self._transport.get_extra_info("peername")
        return str(address[0]) if isinstance(address, tuple) else ""

    def switch(self) -> None:
        """The connection is raw from here on."""
        self._state = _State.RAW
        self._deadline.clear()
        self.resume_reading()
        assert self._taker is not None
        if held := self._parser.take_held():
            self._taker.client_data(held)

    def respond(self, response: Response) -> None:
        """Write an answer; a generator gets a task."""
        if self._state is _State.LOST:
            return
        keep_alive = self._can_keep_alive() and not self._server.is_closing
        head = render_head(response, version=self.request.version, close=not keep_alive)
        if isinstance(response.body, bytes):
            body = response.body if has_body(self.request.method, response.status) else b""
            self._transport.write(head + body)
            self.finish(keep_alive=keep_alive)
        else:
            self._transport.write(head)
            self._start(self._stream_body(response.status, response.body, response.ping), self._body_ended)

    def fail(self, error: Exception) -> None:
        """Answer with an error; what nobody can describe is logged, and the client is told nothing about it."""
        response = self._server.describe(error)
        if response is None:
            log.error("%s %s failed", self.request.method, self.request.path, exc_info=error)
            response = self._server.describe(HandlerFailed("the server failed; its log says why"))
        self.respond(response)

    def finish(self, *, keep_alive: bool) -> None:
        """The answer is complete: go on with the next request, or end."""
        self._is_busy = False
        self._taker = None
        if self._state is not _State.HTTP:
            return
        if self._has_client_ended:
            self._transport.close()
        elif not self.request.is_complete:
            self._linger()
        elif not keep_alive or not self._can_keep_alive():
            self._transport.close()
        elif self._server.is_closing:  # nobody has told the client
            self.shut_down()
        else:
            self._deadline.set(self._limits.keep_alive_timeout)
            self._server.has_answered(self)
            if self.request.is_upgrade:
                self._release()
            self._advance()

    def cut(self) -> None:
        """End the connection in the middle of an answer."""
        self._transport.close()

    @property
    def is_in_use(self) -> bool:
        """Return whether anything that was read is still to be answered."""
        return self._is_busy or bool(self._queue) or self._parser.is_in_head

    @property
    def is_waiting(self) -> bool:
        """Return whether it is idle: nothing is being answered, and only its client could miss it."""
        return not self._is_busy and not self._queue

    def shut_down(self) -> None:
        """The server closes: an answer under way is finished, anything else ends."""
        if self._state is _State.RAW:
            self._transport.close()
        elif self._state is _State.HTTP and not self._is_busy:
            if self._tells_unread and not self.is_in_use:
                self._state = _State.ENDING
                self._transport.close()
            else:
                self._reject(self._server.describe(ServerStopping("the server stops, and has started nothing")))
            self._deadline.set(_FAREWELL_SECONDS)

    def _cancel(self) -> None:
        """End what the client has asked for; it is told by the end of the connection."""
        self._has_client_ended = True
        self._queue.clear()
        self._deadline.clear()
        if isinstance(self._taker, Relay):
            self._taker.client_cancelled()
        elif self._task is not None:
            self._task.cancel()

    def _parse(self, data: bytes) -> None:
        self._feed(data)
        if self._is_busy and not self.request.is_complete and self._is_reading:
            self._deadline.set(self._limits.body_idle_timeout)
        self._advance()

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed(data)
        except HttpError as error:
            self._refuse(error)

    def _release(self) -> None:
        try:
            self._parser.release()
        except HttpError as error:
            self._refuse(error)

    def _on_request(self, request: Request) -> None:
        self._queue.append(request)
        if len(self._queue) > _MOST_WAITING:
            self.pause_reading()

    def _refuse(self, error: HttpError) -> None:
        """Nothing that follows can be understood. Requests that came before are answered."""
        self._rejection = error
        if self._parser.incoming is not None:
            self._parser.incoming.fail(error)

    def _advance(self) -> None:
        if self._is_advancing:
            return
        self._is_advancing = True
        while self._queue and not self._is_busy and not self._is_full and self._state is _State.HTTP:
            self._begin(self._queue.popleft())
        self._is_advancing = False
        if not self._is_busy and not self._queue and self._state is _State.HTTP:
            self._wait_for_request()

    def _wait_for_request(self) -> None:
        if self._rejection is not None:
            self._reject(self._server.describe(self._rejection))
        elif self._server.is_closing:
            self.shut_down()
        else:
            self.resume_reading()
            if self._parser.is_in_head and not self._is_timing_head:
                self._deadline.set(self._limits.head_timeout)
            self._is_timing_head = self._parser.is_in_head

    def _begin(self, request: Request) -> None:
        self.request = request
        self._is_busy = True
        self._is_timing_head = False
        self._deadline.clear()
        self._owes_continue = not request.is_complete and _expects_continue(request)
        try:
            answer = self._server.handler(request)
        except Exception as error:  # noqa: BLE001  # answered as 500 and logged: other connections go on
            self.fail(error)
            return
        if isinstance(answer, (Response, Relay, Upgrade)):
            self._give(answer)
        else:
            self._start(answer, self._answered)

    def _give(self, answer: Answer) -> None:
        try:
            if isinstance(answer, Response):
                self.respond(answer)
            elif isinstance(answer, Relay):
                self._taker = answer
                answer.begin(self)
            else:
                self._upgrade(answer)
        except Exception as error:
            log.error("%s %s has no valid answer", self.request.method, self.request.path, exc_info=error)
            self.abort()

    def _upgrade(self, upgrade: Upgrade) -> None:
        assert self.request.is_upgrade, "the client has asked for no upgrade"
        if self._has_client_ended:  # it has cancelled, and would never end the raw connection
            upgrade.release()
            self.finish(keep_alive=False)
            return
        self._transport.write(render_switch(upgrade.headers))
        self._taker = stream = Stream(self._transport, outlives_eof=upgrade.outlives_eof)
        self.switch()

        def over(task: asyncio.Task[None]) -> None:
            upgrade.release()  # a task that is cancelled before its first step never enters its `finally`
            self._body_ended(task)

        self._start(_run_upgrade(upgrade, stream), over)

    def _start(self, work: Coroutine[object, object, T], on_end: Callable[[asyncio.Task[T]], None]) -> None:
        """The connection's only task: it ends before the server does."""
        task = owned(work)
        self._task = cast("asyncio.Task[Answer] | asyncio.Task[None]", task)
        task.add_done_callback(on_end)

    def _answered(self, task: asyncio.Task[Answer]) -> None:
        self._task = None
        if self._state is _State.LOST:
            self._after_loss(task)
        elif task.cancelled():
            self.abort()
        elif (error := task.exception()) is None:
            self._give(task.result())
        elif isinstance(error, Exception):
            self.fail(error)

    def _body_ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if self._state is _State.LOST:
            self._after_loss(task)
        elif task.cancelled():
            self.abort()
        elif (error := task.exception()) is not None:
            if not isinstance(error, HttpError):
                log.error("%s %s broke off", self.request.method, self.request.path, exc_info=error)
            self.cut()
        elif self._state is _State.HTTP:
            self.finish(keep_alive=True)

    def _after_loss(self, task: asyncio.Task[Answer] | asyncio.Task[None]) -> None:
        self._server.remove(self)
        if not task.cancelled() and task.exception() is None and isinstance(answer := task.result(), Upgrade):
            answer.release()
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, HttpError):
            log.error("%s %s failed after its client had gone", self.request.method, self.request.path, exc_info=error)

    async def _stream_body(self, status: int, body: Body, ping: Ping | None) -> None:
        async with aclosing(body):
            if not has_body(self.request.method, status) or self._has_client_ended:
                return  # who has cancelled between the handler's end and this would be waited for without end
            chunks = ChunkedBody(self._transport, is_chunked=self.request.version == "1.1", ping=ping)
            try:
                async for data in body:
                    chunks.write(data)
                    while self._is_full:
                        self._drained = asyncio.get_running_loop().create_future()
                        await self._drained
            finally:
                chunks.close()
        chunks.finish()

    def _can_keep_alive(self) -> bool:
        request = self.request
        return (
            request.is_complete
            and request.version == "1.1"
            and b"close" not in request.headers.get(b"connection", b"").lower()
        )

    def _reject(self, response: Response) -> None:
        assert isinstance(response.body, bytes)
        self._transport.write(render_head(response, version="1.1", close=True) + response.body)
        self._linger()

    def _linger(self) -> None:
        """Closing while the client still sends would reset the connection, and the client would not see the answer."""
        self._state = _State.ENDING
        self.write_eof()
        self.resume_reading()
        self._deadline.set(self._limits.drain_timeout)

    def _drop(self, data: bytes) -> None:
        self._dropped_bytes += len(data)
        if self._dropped_bytes > self._limits.drained_bytes:
            self.abort()

    def _expire(self) -> None:
        if self._state is not _State.HTTP:
            self.abort()
        elif self._is_busy:
            self.request.fail(RequestTimeout("the body did not come"))
        elif self._parser.is_in_head:
            self._reject(self._server.describe(RequestTimeout("the head did not come")))
        elif self._is_full:
            self.abort()  # closing would wait for a client that takes nothing
        else:
            self._transport.close()


def _widen(connection: socket.socket) -> None:
    """The kernel gives a unix socket room for less than what is written in one go, and widens it only when asked."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNIX_BYTES)


async def _run_upgrade(upgrade: Upgrade, stream: Stream) -> None:
    try:
        await upgrade.run(stream)
    finally:
        stream.close()


def _expects_continue(request: Request) -> bool:
    return request.version == "1.1" and request.headers.get(b"expect", b"").lower() == b"100-continue"
