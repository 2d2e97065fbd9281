"""A server's WebSocket (RFC 6455), on an upgraded connection."""

import asyncio
import base64
import binascii
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress

from cove.http.errors import BadRequest
from cove.http.request import Request
from cove.http.response import Upgrade
from cove.http.stream import Stream
from cove.http.websocket_frames import (
    Closed,
    Event,
    FrameReader,
    Opcode,
    Ping,
    WebSocketError,
    make_close,
    make_frame,
)
from cove.tasks import race

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
MOST_MESSAGE_BYTES = 1 << 20
_CLOSE_SECONDS = 2.0


class WebSocket:
    """Messages both ways. One task receives; any may send."""

    def __init__(self, stream: Stream, limit: int) -> None:
        self._stream = stream
        self._reader = FrameReader(limit)
        self._events: deque[Event] = deque()
        self.close_code: int | None = None
        self._has_sent_close = False
        self._is_broken = False

    async def receive(self) -> str | bytes | None:
        """The next message; None when the client has closed, is gone or broke the protocol (see `close_code`)."""
        while self.close_code is None:
            if not self._events:
                await self._read()
                continue
            event = self._events.popleft()
            if isinstance(event, Ping):
                await self._send(make_frame(Opcode.PONG, event.data))
            elif isinstance(event, Closed):
                self._end(event.code, event.code)
            elif isinstance(event, WebSocketError):
                self._is_broken = True
                self._end(event.code, event.code, event.reason)
            else:
                return event
        return None

    async def send(self, message: str | bytes) -> None:
        """Send one message, and wait while the client does not take what was sent. Dropped once it is closed."""
        if isinstance(message, str):
            await self._send(make_frame(Opcode.TEXT, message.encode()))
        else:
            await self._send(make_frame(Opcode.BINARY, message))

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """End the conversation, and wait a little for the client's answer or its end."""
        self._send_close(code, reason)
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                while await self.receive() is not None:
                    pass
                if self._is_broken:
                    await self._linger()

    async def _linger(self) -> None:
        """Read what a client that broke the protocol still sends: a close with unread bytes resets the connection,
        and the client would not see why."""
        self._stream.write_eof()
        while await self._stream.read():
            pass

    async def _send(self, frame: bytes) -> None:
        if not self._has_sent_close:
            self._stream.write(frame)
            await self._stream.drain()

    def _send_close(self, code: int, reason: str) -> None:
        if not self._has_sent_close:
            self._has_sent_close = True
            self._stream.write(make_close(code, reason))

    def _end(self, close_code: int, sent_code: int, reason: str = "") -> None:
        self.close_code = close_code
        self._send_close(sent_code, reason)

    async def _read(self) -> None:
        if data := await self._stream.read():
            self._events.extend(self._reader.feed(data))
        else:
            self._end(1006, 1001)


def accept(
    request: Request,
    run: Callable[[WebSocket], Awaitable[None]],
    *,
    subprotocols: Sequence[bytes] = (),
    limit: int = MOST_MESSAGE_BYTES,
) -> Upgrade:
    """The answer that makes the connection a WebSocket; raises BadRequest when the client asks for none.

    When `run` returns, the WebSocket is closed with 1000 unless it is closed already.
    """
    key = _check_handshake(request)
    headers = [
        (b"upgrade", b"websocket"),
        (b"connection", b"Upgrade"),
        (b"sec-websocket-accept", base64.b64encode(hashlib.sha1(key + _MAGIC, usedforsecurity=False).digest())),
    ]
    offered = [name.strip() for name in request.headers.get(b"sec-websocket-protocol", b"").split(b",")]
    if chosen := next((name for name in subprotocols if name in offered), None):
        headers.append((b"sec-websocket-protocol", chosen))

    async def converse(stream: Stream) -> None:
        websocket = WebSocket(stream, limit)
        try:
            await run(websocket)
        except Exception:
            await websocket.close(1011, "the server failed")
            raise
        await websocket.close()

    return Upgrade(headers, converse)


async def both_ways(outward: Coroutine[object, object, None], inward: Coroutine[object, object, None]) -> None:
    """Talk and listen until either ends; what it raised is raised."""
    await race(outward, inward)


def _check_handshake(request: Request) -> bytes:
    headers = request.headers
    key = headers.get(b"sec-websocket-key", b"").strip()
    if (
        request.method != "GET"
        or not request.is_upgrade
        or headers.get(b"upgrade", b"").lower() != b"websocket"
        or headers.get(b"sec-websocket-version") != b"13"
        or not _is_nonce(key)
    ):
        raise BadRequest("this is not the handshake of a WebSocket of version 13")
    return key


def _is_nonce(key: bytes) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except binascii.Error:
        return False
