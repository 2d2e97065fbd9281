"""A connected socket as a `TcpConnection`, however it was connected."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from cove.api import TcpConnection
from cove.errors import ConnectionLost, ValidationFailed

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_PASSED_BYTES = 1 << 20


class TcpStream(TcpConnection):
    """An unbuffered TCP stream: nothing that was written stays in this program, so closing loses nothing."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Streams]],
        *,
        on_open: Callable[["TcpStream"], None] = lambda _: None,
        on_close: Callable[["TcpStream"], None] = lambda _: None,
    ) -> None:
        self._connect = connect
        self._on_open = on_open
        self._on_close = on_close
        self._streams: Streams | None = None

    async def open(self) -> None:
        if self._streams is not None:
            raise ValidationFailed("the connection is open already")
        self._streams = await self._connect()
        self._streams[1].transport.set_write_buffer_limits(high=0)
        self._on_open(self)

    async def read(self, most: int = 65536) -> bytes:
        if most < 1:
            raise ValidationFailed(f"at least one byte must be read, not {most}")
        reader, _ = self._opened()
        try:
            return await reader.read(most)
        except OSError as error:
            raise _lost(error) from None

    async def write(self, data: bytes) -> None:
        _, writer = self._opened()
        try:
            writer.write(data)
            await writer.drain()
        except OSError as error:
            raise _lost(error) from None

    async def write_eof(self) -> None:
        _, writer = self._opened()
        if not writer.can_write_eof():
            raise ValidationFailed("an encrypted connection cannot be ended in one direction only: close it")
        if writer.is_closing():
            return
        try:
            writer.write_eof()
        except OSError as error:
            raise _lost(error) from None

    async def close(self) -> None:
        if self._streams is None:
            return
        writer = self._streams[1]
        self.abort()
        with suppress(OSError):  # that the other side broke it matters to readers and writers only
            await writer.wait_closed()

    def abort(self) -> None:
        """End at once, without waiting. What a cancelled write has left is dropped."""
        if self._streams is None:
            return
        _, writer = self._streams
        if writer.transport.get_write_buffer_size():
            writer.transport.abort()
        else:
            writer.close()
        self._on_close(self)

    def _opened(self) -> Streams:
        if self._streams is None:
            raise ValidationFailed("the connection is not open: use `async with`")
        return self._streams


def _lost(error: OSError) -> ConnectionLost:
    return ConnectionLost(f"the connection broke: {error.strerror or error}")


async def splice(one: TcpConnection, other: TcpConnection) -> None:
    """Pass bytes both ways until both sides have ended, or the connection to either breaks."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_pass(one, other))
            group.create_task(_pass(other, one))
    except* ConnectionLost:
        pass  # the caller closes the other one: there is nobody else to tell


async def _pass(source: TcpConnection, target: TcpConnection) -> None:
    while data := await source.read(_PASSED_BYTES):
        await target.write(data)
    await target.write_eof()
