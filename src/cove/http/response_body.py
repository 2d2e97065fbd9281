"""Write the body of a response as it is generated, chunked, no faster than the client takes it."""

import asyncio
from contextlib import aclosing

from cove.http.deadline import Deadline
from cove.http.response import Body, Ping

_LAST = b"0\r\n\r\n"


class ChunkedBody:
    """Writer of a streamed body. It awaits nothing: backpressure is up to the caller."""

    def __init__(self, transport: asyncio.Transport, *, is_chunked: bool, ping: Ping | None) -> None:
        self._transport = transport
        self._is_chunked = is_chunked
        self._ping = ping
        self._pause = Deadline(self._say)
        self._wait()

    def write(self, data: bytes | tuple[bytes, ...]) -> None:
        """Write a chunk in one go: a heartbeat cannot come between its parts."""
        parts = data if isinstance(data, tuple) else (data,)
        size = sum(map(len, parts))
        if size:
            self._transport.writelines((b"%x\r\n" % size, *parts, b"\r\n") if self._is_chunked else parts)
        self._wait()

    def finish(self) -> None:
        """Write the last chunk."""
        if self._is_chunked:
            self._transport.write(_LAST)

    def close(self) -> None:
        """Say nothing more. Idempotent."""
        self._pause.close()

    def _wait(self) -> None:
        if self._ping is not None:
            self._pause.set(self._ping.seconds)

    def _say(self) -> None:
        assert self._ping is not None
        if not self._transport.get_write_buffer_size():  # else the client has enough to read
            self.write(self._ping.data)
        self._wait()


class Backpressure:
    """Backpressure of a client that does not take what is written (`is_full`), and the wait until it does."""

    __slots__ = ("_drained", "is_full")

    def __init__(self) -> None:
        self.is_full = False
        self._drained: asyncio.Future[None] | None = None

    def release(self) -> None:
        """Write on: the client takes more."""
        self.is_full = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def drained(self) -> None:
        """Wait until the client takes more, if it has enough."""
        while self.is_full:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained


async def write_body(
    transport: asyncio.Transport, body: Body, backpressure: Backpressure, *, is_chunked: bool, ping: Ping | None
) -> None:
    """Write all that is generated, which is closed then, and the end of the body."""
    async with aclosing(body):
        chunks = ChunkedBody(transport, is_chunked=is_chunked, ping=ping)
        try:
            async for data in body:
                chunks.write(data)
                await backpressure.drained()
        finally:
            chunks.close()
    chunks.finish()
