"""Upgraded connections to a server: bytes to a port, or a WebSocket."""

import asyncio
import base64
import errno
import hashlib
import os
from collections import deque
from contextlib import suppress
from typing import Final

from cove.client.connection_pool import Address
from cove.errors import ConnectionLost, Internal
from cove.http.websocket_frames import Closed, Event, FrameReader, Opcode, Ping, WebSocketError, make_masked_frame
from cove.local.tcp_stream import Streams
from cove.wire.errors import decode_error
from cove.wire.frames import END_OF_HEAD, parse_upgrade, render_upgrade

_MOST_ERROR_BYTES: Final = 64 << 10
_READ_BYTES: Final = 256 << 10
_MAGIC: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_NORMAL: Final = (1000).to_bytes(2, "big")


async def upgrade(streams: Streams, address: Address, target: str, authorization: str | None, more: str = "") -> None:
    """Make it a connection to the port that the target names. Raises the error that the server sent."""
    await _ask(streams, address, render_upgrade(target, address.authority, authorization, more=more))


async def open_websocket(
    streams: Streams, address: Address, target: str, authorization: str | None, most: int, more: str = ""
) -> "WebSocketClient":
    """Make it a WebSocket whose messages have at most so many bytes. Raises the error that the server sent."""
    key = base64.b64encode(os.urandom(16))
    wanted = f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key.decode()}\r\n"
    head = await _ask(streams, address, render_upgrade(target, address.authority, authorization, wanted, more=more))
    if base64.b64encode(hashlib.sha1(key + _MAGIC, usedforsecurity=False).digest()) not in head:
        streams[1].transport.abort()
        raise Internal("the server did not answer the handshake of a WebSocket")
    return WebSocketClient(streams, most)


async def _ask(streams: Streams, address: Address, request: bytes) -> bytes:
    reader, writer = streams
    try:
        writer.write(request)
        head = await reader.readuntil(END_OF_HEAD)
        status, body_bytes = parse_upgrade(head)
        if status != 101:
            raise decode_error(await reader.readexactly(min(body_bytes, _MOST_ERROR_BYTES)), status)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError) as error:
        writer.transport.abort()
        raise ConnectionLost(f"the connection to {address.url} broke: {error}") from None
    except BaseException:
        writer.transport.abort()
        raise
    return head


class WebSocketClient:
    """Messages both ways. One task receives; any may send."""

    def __init__(self, streams: Streams, most: int) -> None:
        self._stream, self._writer = streams
        self._frames = FrameReader(most, is_masked=False)
        self._events: deque[Event] = deque()
        self.is_closed = False
        self.is_only = True  # there is no other address of the server

    async def receive(self) -> str | bytes | None:
        """Receive the next message; None when the server has ended the conversation. Raises ConnectionLost."""
        while not self.is_closed:
            if not self._events:
                self._events.extend(self._frames.feed(await self._read()))
                continue
            event = self._events.popleft()
            if isinstance(event, Ping):
                self._write(Opcode.PONG, event.data)
            elif isinstance(event, (Closed, WebSocketError)):
                self.is_closed = True
                if isinstance(event, WebSocketError):
                    raise ConnectionLost(f"what the server sent is no WebSocket: {event.reason}")
            else:
                return event
        return None

    async def send(self, data: bytes) -> None:
        """Send one message, and wait while the server does not take what was sent. Raises OSError."""
        if self.is_closed or self._writer.is_closing():
            raise ConnectionResetError("the conversation has ended")
        self._write(Opcode.BINARY, data)
        await self._writer.drain()

    async def close(self) -> None:
        """End the conversation without waiting for what the server still says."""
        if not self.is_closed and not self._writer.is_closing():
            self._write(Opcode.CLOSE, _NORMAL)
        self.is_closed = True
        self._writer.close()
        with suppress(OSError):  # that the server broke it matters to readers and writers only
            await self._writer.wait_closed()

    async def _read(self) -> bytes:
        try:
            data = await self._stream.read(_READ_BYTES)
        except OSError as error:
            self.is_closed = True
            message = f"the connection broke: {error}"
            is_silent = self.is_only and error.errno == errno.ETIMEDOUT
            raise (ConnectionLost(message, is_silent=True) if is_silent else ConnectionLost(message)) from None
        if not data:
            self.is_closed = True
            raise ConnectionLost("the server closed the connection")
        return data

    def _write(self, opcode: Opcode, data: bytes) -> None:
        self._writer.write(make_masked_frame(opcode, data, os.urandom(4)))
