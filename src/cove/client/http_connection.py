"""An HTTP/1.1 client connection: one request at a time, its response streamed as it comes.

Theory of operation. A request is one write, unless the body is a stream. `httptools` (llhttp) reads responses; a task
that waits for one is woken when something has come, and takes all that is there. Nobody follows redirects, keeps
cookies or decodes content. A call is cancelled by a half-closed connection: the server ends the call, then closes its
side, so `end` returns when nothing of the call runs any more.
"""

import asyncio
import errno
import logging
import select
import socket
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import suppress
from typing import Final, Protocol

import httptools

from cove.errors import Internal
from cove.http.endpoint import Endpoint

_MOST_HEAD_BYTES: Final = 64 << 10
_MOST_BUFFERED_BYTES: Final = 256 << 10
_PIECE_BYTES: Final = 256 << 10
_FRESH_SECONDS: Final = 0.005
_NO_ANSWER: Final = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
_LAST_CHUNK: Final = b"0\r\n\r\n"
_UNREACHABLE: Final = b"cove-unreachable"
_MOST_SHOWN_BYTES: Final = 200

log = logging.getLogger("cove.client")


class Broken(Exception):
    """The connection ended before the response was complete."""


class NotHttp(Broken):
    """The bytes that came are no HTTP."""


class NotRead(Broken):
    """The server ended before it had read the request: a unix socket is reset then, and only then (unix(7))."""


class Vanished(Broken):
    """Nothing was heard of the server's machine for as long as a living one may be silent."""


class Owner(Protocol):
    """The owner of a connection."""

    def forget(self, connection: "HttpConnection") -> None:
        """Forget the connection: it is lost."""


class HttpConnection(Endpoint):
    """Reads of the current response: its `status` (0 until it has come) and its body."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._parser = httptools.HttpResponseParser(self)
        self._is_asked = False
        self._is_sent = False
        self._is_whole = False
        self._can_be_kept = False
        self._head_bytes = 0
        self._unreachable = b""
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._is_full = False
        self._is_ended = False
        self._is_dropping = False
        self._failure: Broken | None = None
        self.is_lost = False
        self.status = 0
        self.is_complete = False
        self.idle_since = 0.0

    # Requests

    @property
    def transport(self) -> asyncio.Transport:
        """The transport that carries it."""
        return self._transport

    @property
    def is_reusable(self) -> bool:
        """Return whether another request can be sent on it."""
        is_done = self._is_sent and self.is_complete and not self._chunks
        return is_done and self._can_be_kept and not self._is_ended and not self._transport.is_closing()

    def is_open(self) -> bool:
        """Return whether the server has neither closed it nor said anything, also before the event loop sees it."""
        if self._transport.is_closing():
            return False
        if asyncio.get_running_loop().time() - self.idle_since < _FRESH_SECONDS:
            return True
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not poll.poll(0)

    def send(self, request: bytes, *, is_whole: bool = True) -> None:
        """Send a request, or its head if it is not whole."""
        self.status = self._head_bytes = 0
        self._unreachable = b""
        self.is_complete = self._can_be_kept = self._is_dropping = False
        self._is_asked = True
        self._is_sent = self._is_whole = is_whole
        self._transport.write(request)

    async def send_body(self, body: bytes) -> None:
        """Send a body whose length the head has told: in pieces, between which other calls have their turn."""
        for at in range(0, len(body), _PIECE_BYTES):
            if not await self._has_room():
                return
            self._transport.write(body[at : at + _PIECE_BYTES])
        self._is_sent = True

    async def send_stream(self, chunks: AsyncIterable[bytes]) -> None:
        """Send a chunked body until it ends, or the server answers without waiting for the rest."""
        async for chunk in chunks:
            if not await self._has_room():
                return
            if chunk:
                self._transport.writelines((b"%x\r\n" % len(chunk), chunk, b"\r\n"))
        self._transport.write(_LAST_CHUNK)
        self._is_sent = True

    async def _has_room(self) -> bool:
        """Wait until the server takes more; False when it has answered already, or is gone."""
        while self._is_full and not self.status and self._failure is None:
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer
        return not self.status and self._failure is None

    # Answers

    async def begun(self) -> int:
        """Wait for the status. This and all that read raise Broken."""
        while not self.status:
            if self._failure is not None:
                raise self._failure
            await self._wait()
        return self.status

    async def read(self, most: int) -> bytes:
        """Wait for the whole body; one that is larger than anything a server of ours says is not waited for."""
        parts: list[bytes] = []
        size = 0
        while data := await self._take():
            parts.append(data)
            size += len(data)
            if size > most:
                self.abort()
                raise Internal(f"the server's answer is larger than {most} bytes")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it comes; the server is held back while nobody asks."""
        while data := await self._take():
            yield data

    async def _take(self) -> bytes:
        while not self._chunks:
            if self.is_complete:
                return b""
            if self._failure is not None:
                raise self._failure
            await self._wait()
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._buffered = 0
        self.resume_reading()
        return data

    async def end(self, seconds: float) -> None:
        """Cancel the call: half-close, and wait until the server has ended it or answered after all."""
        if self.is_complete:
            return
        if not self._transport.can_write_eof():  # TLS has no half-closed connections
            self.abort()
            return
        self._is_ended = True
        self.write_eof()
        await self.wait_for_answer(seconds)

    async def wait_for_answer(self, seconds: float) -> None:
        """Wait until the response is complete or never will be, but not longer. A large one is dropped as it comes."""
        self._is_dropping = True
        self.resume_reading()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.is_complete and not self.is_lost:
                    await self._wait()

    async def _wait(self) -> None:
        self._reader = asyncio.get_running_loop().create_future()
        await self._reader

    def _wake(self) -> None:
        for waiter in (self._reader, self._writer):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    # Called by the transport

    def connection_lost(self, error: Exception | None) -> None:
        """Handle the loss of the connection: the server closed, or is gone."""
        self.is_lost = True
        if self._failure is None:
            self._failure = NotRead("it was not read") if self._is_unread(error) else _broken(error)
        self._owner.forget(self)
        self._wake()

    def _is_unread(self, error: Exception | None) -> bool:
        """Return whether a request that can be sent again as it was has reached nobody."""
        was_reset = isinstance(error, ConnectionResetError | BrokenPipeError)
        carrier = self._transport.get_extra_info("socket")  # None over TLS, whose connection is gone already
        is_local = carrier is not None and carrier.family == socket.AF_UNIX
        return was_reset and is_local and self._is_whole and not self.status

    def pause_writing(self) -> None:
        """Stop writing (backpressure)."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Write again."""
        self._is_full = False
        self._wake()

    def data_received(self, data: bytes) -> None:
        """Parse response bytes. What nobody has asked for ends the connection."""
        if not self._is_asked:
            self.abort()
            return
        if not self.status:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"the server's answer is not valid HTTP: {error}", NotHttp)
        if not self.status and self._head_bytes > _MOST_HEAD_BYTES:
            self._fail("the head of the server's answer does not end")
        self._wake()

    def give_up(self) -> None:
        """Abort: the server's machine is gone."""
        self._fail("its machine does not answer any more", Vanished)

    def _fail(self, reason: str, kind: type[Broken] = Broken) -> None:
        self._failure = kind(reason)
        self.abort()

    # Called by the parser

    def on_message_begin(self) -> None:
        """Reject a second response: a server that stops says so behind the first one."""
        self._is_ended = self._is_ended or self.is_complete

    def on_header(self, name: bytes, value: bytes) -> None:
        """Remember which nodes of a cluster did not answer."""
        if name == _UNREACHABLE:
            self._unreachable = value[:_MOST_SHOWN_BYTES]

    def on_headers_complete(self) -> None:
        """Take the head; interim responses are not passed on."""
        if not self.is_complete and (status := self._parser.get_status_code()) >= 200:
            self.status = status
            if self._unreachable:
                nodes = ascii(self._unreachable.decode("latin-1"))
                log.warning("without what these nodes have, which do not answer: %s", nodes)

    def on_body(self, data: bytes) -> None:
        """Receive some of the body."""
        if self.is_complete:
            return
        self._chunks.append(data)
        self._buffered += len(data)
        if self._buffered > _MOST_BUFFERED_BYTES:
            if self._is_dropping:
                self._chunks.clear()
            else:
                self.pause_reading()

    def on_message_complete(self) -> None:
        """Complete the response."""
        if self.status and not self.is_complete:
            self.is_complete = True
            self._is_asked = False
            self._can_be_kept = self._parser.should_keep_alive()


def _broken(error: Exception | None) -> Broken:
    is_silent = isinstance(error, OSError) and error.errno in _NO_ANSWER
    return (Vanished if is_silent else Broken)(_describe(error))


def _describe(error: Exception | None) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "the server closed it before it had answered" if error is None else str(error)
