"""A request, and three ways to take its body: whole, in pieces, or by a sink."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Protocol

from cove.http.errors import BodyTooLarge, HttpError


class BodySource(Protocol):
    """The connection, as a request sees it."""

    def want_body(self) -> None:
        """Let the body come: somebody waits for it."""

    def pause_body(self) -> None:
        """Let no more come for the time being."""


class BodySink(Protocol):
    """Takes a body as it comes, without waiting."""

    def body_data(self, data: bytes) -> None:
        """Receive some of the body."""

    def body_end(self) -> None:
        """End: the body is complete."""

    def body_failed(self, error: HttpError) -> None:
        """Fail: the body will never be complete."""


class Request:
    """One request; its body may still be on the way. Names of headers are in lower case.

    A body that `may_be_silent` has no limit on the time between its pieces. For who observes, it knows when it `began`,
    the `status` of its answer, 0 before there is one, and of an error what its body begins with; handlers may leave
    whose it is, and what they `trace` it by.
    """

    __slots__ = (
        "_buffered",
        "_chunks",
        "_failure",
        "_limit",
        "_sink",
        "_source",
        "_waiter",
        "began",
        "error",
        "headers",
        "is_complete",
        "is_over",
        "is_upgrade",
        "may_be_silent",
        "method",
        "owner",
        "path",
        "query",
        "raw_headers",
        "status",
        "trace",
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
        self.may_be_silent = False
        self.is_over = False
        self.began = 0.0
        self.status = 0
        self.error = b""
        self.owner = ""
        self.trace: object = None
        self._source = source
        self._limit = limit
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._waiter: asyncio.Future[None] | None = None
        self._sink: BodySink | None = None
        self._failure: HttpError | None = None

    @property
    def expects_continue(self) -> bool:
        """Return whether the client sends the body when it was told to: RFC 9110 10.1.1."""
        if self.is_complete:
            return False
        return self.version == "1.1" and self.headers.get(b"expect", b"").lower() == b"100-continue"

    @property
    def is_kept_alive(self) -> bool:
        """Return whether another request may follow on its connection: it was read whole, and does not close."""
        return (
            self.is_complete and self.version == "1.1" and b"close" not in self.headers.get(b"connection", b"").lower()
        )

    def answered(self, status: int, body: object) -> None:
        """Note the status of its answer, and the beginning of an error's body."""
        self.status = status
        if status >= 400 and isinstance(body, bytes):
            self.error = body

    async def read(self, limit: int) -> bytes:
        """Return the whole body; BodyTooLarge beyond the limit."""
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
        """Yield the body as it comes; the client is held back while nobody asks."""
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

    async def discard(self, limit: int = 1 << 30) -> None:
        """Hear a client out that is refused, up to a limit: while it sends, it may not see that."""
        size = 0
        with suppress(HttpError):  # the rest does not come
            while size <= limit and (data := await self._take()):
                size += len(data)

    def unread(self, body: bytes) -> None:
        """Put back a whole body that was read: whoever asks next gets it again."""
        self._chunks[:] = [body] if body else []

    def pass_body_to(self, sink: BodySink) -> None:
        """Pass the body to the sink from here on; first what has come already, of which it may have enough."""
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
        """Buffer the body again from here on, for another sink."""
        self._sink = None

    def pause(self) -> None:
        """Pause: the sink has enough for the time being (backpressure)."""
        if not self.is_complete:
            self._source.pause_body()

    def resume(self) -> None:
        """Resume: the sink takes more."""
        if not self.is_complete:
            self._source.want_body()

    def receive(self, data: bytes) -> None:
        """Receive some of the body, from the connection."""
        if self._sink is not None:
            self._sink.body_data(data)
            return
        self._chunks.append(data)
        self._buffered += len(data)
        if self._buffered > self._limit:
            self._source.pause_body()
        self._wake()

    def complete(self) -> None:
        """End the body, from the connection."""
        self.is_complete = True
        if self._sink is not None:
            self._sink.body_end()
        self._wake()

    def fail(self, error: HttpError) -> None:
        """Break off the body, from the connection: the rest will not come."""
        if self._failure is None and not self.is_complete:
            self._failure = error
            if self._sink is not None:
                self._sink.body_failed(error)
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
