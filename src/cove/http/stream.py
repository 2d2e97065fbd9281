"""An upgraded connection as a stream: bytes both ways, with backpressure both ways."""

import asyncio
import os
import socket

_MOST_BUFFERED = 256 << 10


class Stream:
    """A byte stream to the client. One reader, one writer."""

    __slots__ = (
        "_buffered",
        "_chunks",
        "_has_ended",
        "_is_full",
        "_transport",
        "_waiting_to_read",
        "_waiting_to_write",
        "outlives_eof",
    )

    def __init__(self, transport: asyncio.Transport, *, outlives_eof: bool = False) -> None:
        self.outlives_eof = outlives_eof
        self._transport = transport
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._has_ended = False
        self._is_full = False
        self._waiting_to_read: asyncio.Future[None] | None = None
        self._waiting_to_write: asyncio.Future[None] | None = None

    async def read(self) -> bytes:
        """Return what has come; b"" when the client sends nothing more."""
        while not self._chunks and not self._has_ended:
            self._waiting_to_read = asyncio.get_running_loop().create_future()
            await self._waiting_to_read
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        if self._buffered > _MOST_BUFFERED:
            self._transport.resume_reading()
        self._buffered = 0
        return data

    def write(self, data: bytes) -> None:
        """Send, sooner or later."""
        self._transport.write(data)

    def send_descriptor(self, descriptor: int) -> None:
        """Send one byte and with it a copy of the descriptor: unix(7). Only while nothing waits to be written."""
        assert not self._transport.get_write_buffer_size()
        own = os.dup(self._transport.get_extra_info("socket").fileno())
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=own) as sock:
            socket.send_fds(sock, [b"\0"], [descriptor])

    async def drain(self) -> None:
        """Wait until the client has taken most of what was written (backpressure)."""
        while self._is_full and not self._transport.is_closing():
            self._waiting_to_write = asyncio.get_running_loop().create_future()
            await self._waiting_to_write

    def write_eof(self) -> None:
        """Half-close: nothing more will be written; the client may still send."""
        if not self._transport.is_closing():
            self._transport.write_eof()

    def close(self) -> None:
        """Flush and end."""
        self._transport.close()

    def client_data(self, data: bytes) -> None:
        """Receive what the client sent. Called by the connection, as are those below."""
        self._chunks.append(data)
        before = self._buffered
        self._buffered += len(data)
        if before <= _MOST_BUFFERED < self._buffered:
            self._transport.pause_reading()
        _wake(self._waiting_to_read)

    def client_eof(self) -> None:
        """Note a half-close: the client sends nothing more."""
        self._has_ended = True
        _wake(self._waiting_to_read)

    def client_gone(self) -> None:
        """Note the loss of the connection."""
        self.client_eof()
        self.client_ready()

    def client_full(self) -> None:
        """Make writers wait (backpressure): the client does not take more."""
        self._is_full = True

    def client_ready(self) -> None:
        """Wake writers: the client takes more."""
        self._is_full = False
        _wake(self._waiting_to_write)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
