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

Requests that were pipelined wait in the queue (`RequestQueue`); reading stops while more than a few do.
"""

import asyncio
import logging
import socket
import time
from enum import Enum, auto
from typing import TYPE_CHECKING

from cove.http.answer_task import AnswerTask, run_upgrade, settle_lost
from cove.http.deadline import Deadline
from cove.http.endpoint import Endpoint, widen
from cove.http.errors import HandlerFailed, HttpError, RequestTimeout, ServerStopping, TooManyConnections
from cove.http.parser import HttpLimits
from cove.http.request import Request
from cove.http.request_queue import RequestQueue
from cove.http.response import Answer, Body, Ping, Relay, Response, Upgrade, has_body, render_head, render_switch
from cove.http.response_body import Backpressure, write_body
from cove.http.stream import Stream

if TYPE_CHECKING:
    from cove.http.server import HttpServer

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_FAREWELL_SECONDS = 1.0

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
        self._queue = RequestQueue(self, self, limits)
        self._deadline = Deadline(self._expire)
        self._state = _State.HTTP
        self._task = AnswerTask()
        self._taker: Relay | Stream | None = None
        self._backpressure = Backpressure()
        self._dropped_bytes = 0
        self._tells_unread = False
        self._has_client_ended = False
        self._is_busy = False
        self._is_advancing = False
        self._is_timing_head = False
        self._owes_continue = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock.family == socket.AF_UNIX:
            self._tells_unread = True
            widen(sock)
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
        elif self._state is _State.HTTP and self._queue.rejection is None:
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
        if self._is_busy:
            self._server.has_ended(self.request)
        if self._taker is not None:
            self._taker.client_gone()
            self._taker = None
        if not self._task.is_running:
            self._server.remove(self)
        elif not self._has_client_ended:
            self._task.cancel()

    def pause_writing(self) -> None:
        """The client does not take what is written."""
        self._backpressure.is_full = True
        if self._taker is not None:
            self._taker.client_full()

    def resume_writing(self) -> None:
        """The client takes more."""
        self._backpressure.release()
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
        self._expect_body()

    def _expect_body(self) -> None:
        if self.request.may_be_silent:
            self._deadline.clear()
        else:
            self._deadline.set(self._limits.body_idle_timeout)

    def pause_body(self) -> None:
        """Stop reading (backpressure): nobody takes more of a body for the time being."""
        self.pause_reading()
        self._deadline.clear()

    def switch(self) -> None:
        """The connection is raw from here on."""
        self._state = _State.RAW
        self._deadline.clear()
        self.resume_reading()
        assert self._taker is not None
        if held := self._queue.parser.take_held():
            self._taker.client_data(held)

    def respond(self, response: Response) -> None:
        """Write an answer; a generator gets a task."""
        if self._state is _State.LOST:
            return
        self.request.answered(response.status, response.body)
        keep_alive = self.request.is_kept_alive and not self._server.is_closing
        head = render_head(response, version=self.request.version, close=not keep_alive)
        if isinstance(response.body, bytes):
            body = response.body if has_body(self.request.method, response.status) else b""
            self._transport.write(head + body)
            self.finish(keep_alive=keep_alive)
        else:
            self._transport.write(head)
            self._task.start(self._stream_body(response.status, response.body, response.ping), self._body_ended)

    def fail(self, error: Exception) -> None:
        """Answer with an error; what nobody can describe is logged, and the client is told nothing about it."""
        response = self._server.describe(error)
        if response is None:
            log.error("%s %s failed", self.request.method, self.request.path, exc_info=error)
            response = self._server.describe(HandlerFailed("the server failed; its log says why"))
        self.respond(response)

    def finish(self, *, keep_alive: bool) -> None:
        """The answer is complete: go on with the next request, or end."""
        self._server.has_ended(self.request)
        self._is_busy = False
        self._taker = None
        if self._state is not _State.HTTP:
            return
        if self._has_client_ended:
            self._transport.close()
        elif not self.request.is_complete:
            self._linger()
        elif not keep_alive or not self.request.is_kept_alive:
            self._transport.close()
        elif self._server.is_closing:  # nobody has told the client
            self.shut_down()
        else:
            self._deadline.set(self._limits.keep_alive_timeout)
            self._server.has_answered(self)
            if self.request.is_upgrade:
                self._queue.release()
            self._advance()

    def cut(self) -> None:
        """End the connection in the middle of an answer."""
        self._transport.close()

    @property
    def is_in_use(self) -> bool:
        """Return whether anything that was read is still to be answered."""
        return self._is_busy or bool(self._queue) or self._queue.parser.is_in_head

    @property
    def is_answering(self) -> bool:
        """Return whether `request` is being answered."""
        return self._is_busy

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
        else:
            self._task.cancel()

    def _parse(self, data: bytes) -> None:
        self._queue.feed(data)
        if self._is_busy and not self.request.is_complete and self._is_reading:
            self._expect_body()
        self._advance()

    def _advance(self) -> None:
        if self._is_advancing:
            return
        self._is_advancing = True
        while self._queue and not self._is_busy and not self._backpressure.is_full and self._state is _State.HTTP:
            self._begin(self._queue.pop())
        self._is_advancing = False
        if not self._is_busy and not self._queue and self._state is _State.HTTP:
            self._wait_for_request()

    def _wait_for_request(self) -> None:
        if self._queue.rejection is not None:
            self._reject(self._server.describe(self._queue.rejection))
        elif self._server.is_closing:
            self.shut_down()
        else:
            self.resume_reading()
            if self._queue.parser.is_in_head and not self._is_timing_head:
                self._deadline.set(self._limits.head_timeout)
            self._is_timing_head = self._queue.parser.is_in_head

    def _begin(self, request: Request) -> None:
        self.request = request
        request.began = time.perf_counter()
        self._is_busy = True
        self._is_timing_head = False
        self._deadline.clear()
        self._owes_continue = request.expects_continue
        try:
            answer = self._server.handler(request)
        except Exception as error:  # noqa: BLE001  # answered as 500 and logged: other connections go on
            self.fail(error)
            return
        if isinstance(answer, (Response, Relay, Upgrade)):
            self._give(answer)
        else:
            self._task.start(answer, self._answered)

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
        self.request.status = 101
        self._transport.write(render_switch(upgrade.headers))
        self._taker = stream = Stream(self._transport, outlives_eof=upgrade.outlives_eof)
        self.switch()

        def over(task: asyncio.Task[None]) -> None:
            upgrade.release()  # a task that is cancelled before its first step never enters its `finally`
            self._body_ended(task)

        self._task.start(run_upgrade(upgrade, stream), over)

    def _answered(self, task: asyncio.Task[Answer]) -> None:
        if self._state is _State.LOST:
            self._after_loss(task)
        elif task.cancelled():
            self.abort()
        elif (error := task.exception()) is None:
            self._give(task.result())
        elif isinstance(error, Exception):
            self.fail(error)

    def _body_ended(self, task: asyncio.Task[None]) -> None:
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
        settle_lost(task, self.request)

    async def _stream_body(self, status: int, body: Body, ping: Ping | None) -> None:
        if not has_body(self.request.method, status) or self._has_client_ended:
            await body.aclose()  # who has cancelled between the handler's end and this would be waited for without end
            return
        is_chunked = self.request.version == "1.1"
        await write_body(self._transport, body, self._backpressure, is_chunked=is_chunked, ping=ping)

    def _reject(self, response: Response) -> None:
        assert isinstance(response.body, bytes)
        self._server.observer.rejected(response)
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
        elif self._queue.parser.is_in_head:
            self._reject(self._server.describe(RequestTimeout("the head did not come")))
        elif self._backpressure.is_full:
            self.abort()  # closing would wait for a client that takes nothing
        else:
            self._transport.close()
