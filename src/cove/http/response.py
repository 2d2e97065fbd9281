"""Responses: in one piece, as they come, by another protocol or by a relay; and how they look on the wire."""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, Protocol

from cove.http.request import Request
from cove.http.stream import Stream

Headers = Sequence[tuple[bytes, bytes]]
# Each item of a generator is written in one go; parts are not copied together for that.
Body = AsyncGenerator[bytes | tuple[bytes, ...], None]

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_date_second, _date_rendered = 0, b""
_WITHOUT_BODY = frozenset((*range(100, 200), 204, 304))
_BYTES: Final = ((b"content-type", b"application/octet-stream"),)


@dataclass(frozen=True, slots=True)
class Ping:
    """The heartbeat of a streamed body: `data` is sent when nothing was yielded for so many seconds."""

    data: bytes
    seconds: float


class Response:
    """A response: bytes are sent with their length, a generator as it yields. It is closed when the client leaves."""

    __slots__ = ("body", "headers", "ping", "status")

    def __init__(self, status: int, headers: Headers = (), body: bytes | Body = b"", ping: Ping | None = None) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.ping = ping


class Upgrade:
    """The response 101; from then on the raw connection is `run`'s, until it returns.

    It is cancelled when the connection is lost, or, unless it `outlives_eof`, some seconds after the client has
    closed its side. `release` is called when it is over, also where it never began because the client was gone.
    """

    __slots__ = ("headers", "outlives_eof", "release", "run")

    def __init__(
        self,
        headers: Headers,
        run: Callable[[Stream], Awaitable[None]],
        *,
        release: Callable[[], None] = lambda: None,
        outlives_eof: bool = False,
    ) -> None:
        self.headers = headers
        self.run = run
        self.release = release
        self.outlives_eof = outlives_eof


class Exchange(Protocol):
    """One request being answered, as a relay sees it."""

    request: Request

    @property
    def peer(self) -> str:
        """The client's address; nothing on a unix socket."""

    def write(self, data: bytes) -> None:
        """Raw bytes of the response."""

    def respond(self, response: Response) -> None:
        """Give an ordinary response after all; nothing has been written."""

    def fail(self, error: Exception) -> None:
        """Answer with this error; nothing has been written."""

    def finish(self, *, keep_alive: bool) -> None:
        """End the response: it is complete."""

    def cut(self) -> None:
        """Break off: the response will never be complete; what was written is flushed, then the connection ends."""

    def switch(self) -> None:
        """Switch protocols: the connection is raw from here on; what the client sends goes to the relay."""

    def pause_reading(self) -> None:
        """Take nothing from the client; only of a raw connection."""

    def resume_reading(self) -> None:
        """Take from the client again; only of a raw connection."""

    def write_eof(self) -> None:
        """Half-close: nothing more will be written; the client may still send."""


class Relay(ABC):
    """A response that somebody else writes, byte by byte, without waiting."""

    __slots__ = ()

    @abstractmethod
    def begin(self, exchange: Exchange) -> None:
        """Begin to answer this exchange."""

    @abstractmethod
    def client_gone(self) -> None:
        """Abort: the client has disconnected, and nobody waits for the response any more."""

    @abstractmethod
    def client_cancelled(self) -> None:
        """Cancel: the client wants what it asked for ended, and waits for that: end it, then `cut`."""

    @abstractmethod
    def client_full(self) -> None:
        """Write less (backpressure): the client does not take what is written."""

    @abstractmethod
    def client_ready(self) -> None:
        """Write again: the client takes more."""

    @abstractmethod
    def client_data(self, data: bytes) -> None:
        """Receive what the client sent after an upgrade."""

    @abstractmethod
    def client_eof(self) -> None:
        """Half-close after an upgrade: the client sends nothing more."""


# Handlers answer requests: functions, at once or as coroutines.
Answer = Response | Upgrade | Relay
Handler = Callable[[Request], Answer | Coroutine[object, object, Answer]]


def render_head(response: Response, *, version: str, close: bool) -> bytes:
    """Return the head of a response, with how its body ends."""
    parts = [_STATUS_LINES.get(response.status) or b"HTTP/1.1 %d \r\n" % response.status, _date_line()]
    _render_headers(response.headers, parts)
    if response.status in _WITHOUT_BODY:
        pass
    elif isinstance(response.body, bytes):
        parts.append(b"content-length: %d\r\n" % len(response.body))
    elif version == "1.1":
        parts.append(b"transfer-encoding: chunked\r\n")
    parts.append(b"connection: close\r\n\r\n" if close else b"\r\n")
    return b"".join(parts)


def render_switch(headers: Headers) -> bytes:
    """Return the head that gives the connection to another protocol."""
    parts = [_STATUS_LINES[101]]
    _render_headers(headers, parts)
    parts.append(b"\r\n")
    return b"".join(parts)


def _date_line() -> bytes:
    """RFC 9110 6.6.1: an origin server with a clock sends Date. Rendered once a second."""
    global _date_second, _date_rendered
    second = int(time.time())
    if second != _date_second:
        _date_second, _date_rendered = second, b"date: %b\r\n" % formatdate(second, usegmt=True).encode()
    return _date_rendered


def has_body(method: str, status: int) -> bool:
    """Return whether bytes follow the head of this response."""
    return method != "HEAD" and status not in _WITHOUT_BODY


def _render_headers(headers: Headers, parts: list[bytes]) -> None:
    for name, value in headers:
        if b"\n" in value or b"\r" in value or b"\0" in value:
            raise ValueError(f"the header {name.decode()} would break the response")
        parts.append(b"%b: %b\r\n" % (name, value))


async def content_response(chunks: AsyncGenerator[bytes, None], hold: int) -> Response:
    """Answer when more than `hold` bytes, or all, are there; whatever is raised until then is raised here."""
    held: list[bytes] = []
    size = 0
    try:
        while size <= hold and (chunk := await anext(chunks, b"")):
            held.append(chunk)
            size += len(chunk)
    except BaseException:
        await chunks.aclose()
        raise
    first = b"".join(held)
    return Response(200, _BYTES, first if size <= hold else _continued(first, chunks))


async def _continued(first: bytes, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(chunks):
        yield first
        async for chunk in chunks:
            yield chunk
