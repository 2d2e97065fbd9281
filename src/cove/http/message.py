"""What a request and its answers are, and how answers look on the wire."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

import msgspec

from cove.http.stream import Stream

Headers = Sequence[tuple[bytes, bytes]]

_JSON = (b"content-type", b"application/json")
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_WITHOUT_BODY = frozenset((*range(100, 200), 204, 304))


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one client may cost. Bytes and seconds."""

    head_bytes: int = 64 << 10
    headers: int = 100
    head_timeout: float = 10.0
    body_idle_timeout: float = 30.0
    keep_alive_timeout: float = 75.0
    buffered_body_bytes: int = 256 << 10
    drained_bytes: int = 16 << 20
    drain_timeout: float = 5.0
    connections: int = 4096


class HttpError(Exception):
    """The client's doing: answered with this status, and the connection is closed."""

    status = 400
    code = "VALIDATION_FAILED"


class BadRequest(HttpError):
    """Not HTTP, or not the HTTP that is safe to understand."""


class BodyTooLarge(HttpError):
    """The body is larger than this request may have."""

    status = 413
    code = "FILE_TOO_LARGE"


class HeadTooLarge(HttpError):
    """The head is larger than any request needs."""

    status = 431


class RequestTimeout(HttpError):
    """The client stopped sending in the middle of a request."""

    status = 408


class BodySource(Protocol):
    """The connection, as a request sees it."""

    def want_body(self) -> None:
        """Somebody waits for the body: let it come."""

    def pause_body(self) -> None:
        """Let no more come for the time being."""


class BodySink(Protocol):
    """Takes a body as it comes, without waiting."""

    def body_data(self, data: bytes) -> None:
        """Some of the body."""

    def body_end(self) -> None:
        """All of it has come."""

    def body_failed(self, error: HttpError) -> None:
        """It will never be complete."""


class Request:
    """One request; its body may still be on the way. Names of headers are in lower case."""

    __slots__ = (
        "_buffered",
        "_chunks",
        "_failure",
        "_limit",
        "_sink",
        "_source",
        "_waiter",
        "headers",
        "is_complete",
        "is_upgrade",
        "method",
        "path",
        "query",
        "raw_headers",
        "version",
    )

    def __init__(self, source: BodySource, limit: int) -> None:
        self.method = ""
        self.path = ""
        self.query = ""
        self.version = ""
        self.headers: dict[bytes, bytes] = {}
        self.raw_headers: list[tuple[bytes, bytes]] = []
        self.is_complete = False
        self.is_upgrade = False
        self._source = source
        self._limit = limit
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._waiter: asyncio.Future[None] | None = None
        self._sink: BodySink | None = None
        self._failure: HttpError | None = None

    async def read(self, limit: int) -> bytes:
        """The whole body; BodyTooLarge beyond the limit."""
        if int(self.headers.get(b"content-length", b"0")) > limit:
            raise BodyTooLarge(f"the body is larger than {limit} bytes")
        parts: list[bytes] = []
        size = 0
        while data := await self._take():
            parts.append(data)
            size += len(data)
            if size > limit:
                raise BodyTooLarge(f"the body is larger than {limit} bytes")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes; the client is held back while nobody asks."""
        while data := await self._take():
            yield data

    async def _take(self) -> bytes:
        while not self._chunks:
            if self._failure is not None:
                raise self._failure
            if self.is_complete:
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            self._source.want_body()
            try:
                await self._waiter
            finally:
                self._waiter = None
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._buffered = 0
        return data

    def pass_body_to(self, sink: BodySink) -> None:
        """From here on the body goes to the sink; first what has come already, of which it may have enough."""
        self._sink = sink
        if not self.is_complete and self._failure is None:
            self._source.want_body()
        chunks, self._chunks = self._chunks, []
        self._buffered = 0
        for data in chunks:
            sink.body_data(data)
        if self._failure is not None:
            sink.body_failed(self._failure)
        elif self.is_complete:
            sink.body_end()

    def keep_body(self) -> None:
        """From here on the body waits in the request again, for another sink."""
        self._sink = None

    def pause(self) -> None:
        """The sink has enough for the time being."""
        if not self.is_complete:
            self._source.pause_body()

    def resume(self) -> None:
        """The sink takes more."""
        if not self.is_complete:
            self._source.want_body()

    def receive(self, data: bytes) -> None:
        """For the connection: some of the body has come."""
        if self._sink is not None:
            self._sink.body_data(data)
            return
        self._chunks.append(data)
        self._buffered += len(data)
        if self._buffered > self._limit:
            self._source.pause_body()
        self._wake()

    def complete(self) -> None:
        """For the connection: all of the body has come."""
        self.is_complete = True
        if self._sink is not None:
            self._sink.body_end()
        self._wake()

    def fail(self, error: HttpError) -> None:
        """For the connection: the rest of the body will not come."""
        if self._failure is None and not self.is_complete:
            self._failure = error
            if self._sink is not None:
                self._sink.body_failed(error)
            self._wake()

    @property
    def is_awaited(self) -> bool:
        """Whether anybody waits for more of the body."""
        return self._waiter is not None or self._sink is not None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Response:
    """An answer: bytes are sent with their length, a generator as it yields. It is closed when the client goes away."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: Headers = (), body: bytes | AsyncGenerator[bytes, None] = b"") -> None:
        self.status = status
        self.headers = headers
        self.body = body


class Upgrade:
    """The answer 101; from then on the raw connection is `run`'s, until it returns.

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
        """Raw bytes of the answer."""

    def respond(self, response: Response) -> None:
        """Give an ordinary answer after all; nothing has been written."""

    def fail(self, error: Exception) -> None:
        """Answer with this error; nothing has been written."""

    def finish(self, *, keep_alive: bool) -> None:
        """The answer is complete."""

    def cut(self) -> None:
        """The answer will never be complete: what was written is flushed, then the connection ends."""

    def switch(self) -> None:
        """The connection is raw from here on: what the client sends goes to the relay."""

    def pause_reading(self) -> None:
        """Take nothing from the client; only of a raw connection."""

    def resume_reading(self) -> None:
        """Take from the client again; only of a raw connection."""

    def write_eof(self) -> None:
        """Nothing more will be written; the client may still send."""


class Relay(ABC):
    """An answer that somebody else writes, byte by byte, without waiting."""

    __slots__ = ()

    @abstractmethod
    def begin(self, exchange: Exchange) -> None:
        """Answer this."""

    @abstractmethod
    def client_gone(self) -> None:
        """Nobody waits for the answer any more."""

    @abstractmethod
    def client_full(self) -> None:
        """The client does not take what is written: write less."""

    @abstractmethod
    def client_ready(self) -> None:
        """The client takes more."""

    @abstractmethod
    def client_data(self, data: bytes) -> None:
        """After a switch: what the client sent."""

    @abstractmethod
    def client_eof(self) -> None:
        """After a switch: the client sends nothing more."""


Answer = Response | Upgrade | Relay
Handler = Callable[[Request], Answer | Coroutine[object, object, Answer]]


def error_response(status: int, code: str, message: str, headers: Headers = ()) -> Response:
    """A failure as every failure looks on the wire."""
    return Response(status, (_JSON, *headers), msgspec.json.encode({"error": message, "code": code, "details": {}}))


def render_head(response: Response, *, version: str, close: bool) -> bytes:
    """The head of an answer, with how its body ends."""
    parts = [_STATUS_LINES.get(response.status) or b"HTTP/1.1 %d \r\n" % response.status]
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
    """The head that gives the connection to another protocol."""
    parts = [_STATUS_LINES[101]]
    _render_headers(headers, parts)
    parts.append(b"\r\n")
    return b"".join(parts)


def has_body(method: str, status: int) -> bool:
    """Whether bytes follow the head of this answer."""
    return method != "HEAD" and status not in _WITHOUT_BODY


def _render_headers(headers: Headers, parts: list[bytes]) -> None:
    for name, value in headers:
        if b"\n" in value or b"\r" in value or b"\0" in value:
            raise ValueError(f"the header {name.decode()} would break the response")
        parts.append(b"%b: %b\r\n" % (name, value))
