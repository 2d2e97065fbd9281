"""Stream from a runtime: terminals and ports over upgraded connections."""

from contextlib import suppress

import msgspec

from cove.api import TcpConnection, TerminalConnection
from cove.errors import CoveError, ProcessExitedBeforeReady, ValidationFailed
from cove.http import Request, Stream, Upgrade
from cove.http.websocket import WebSocket, accept, both_ways
from cove.local.tcp_stream import splice
from cove.runtime.connection import PortConnection
from cove.wire.frames import (
    LENDING,
    PROTOCOL,
    encode_failure_frame,
    encode_frame,
)

_SWITCH = ((b"connection", b"upgrade"), (b"upgrade", PROTOCOL))
_LEND = ((b"connection", b"upgrade"), (b"upgrade", LENDING))


class _Resize(msgspec.Struct, tag="resize"):
    cols: int
    rows: int


def terminal_socket(request: Request, connection: TerminalConnection) -> Upgrade:
    """The answer that makes this client a viewer."""

    async def run(socket: WebSocket) -> None:
        try:
            async with connection:
                await both_ways(_show(socket, connection), _type(socket, connection))
        except CoveError as error:
            await socket.send(encode_failure_frame(error))

    return accept(request, run)


async def _show(socket: WebSocket, connection: TerminalConnection) -> None:
    async for event in connection:
        await socket.send(encode_frame(event))


async def _type(socket: WebSocket, connection: TerminalConnection) -> None:
    while (message := await socket.receive()) is not None:
        if isinstance(message, bytes):
            with suppress(ProcessExitedBeforeReady):  # the program has ended: its Exit is on its way
                await connection.write(message)
            continue
        try:
            resize = msgspec.json.decode(message, type=_Resize)
        except (msgspec.DecodeError, UnicodeDecodeError):
            await socket.close(1007, "a text message that is no resize")
            return
        await connection.resize(resize.cols, resize.rows)


async def port_socket(request: Request, inside: PortConnection) -> Upgrade:
    """The answer, once the port is reached."""
    protocol = request.headers.get(b"upgrade", b"").lower() if request.is_upgrade else b""
    if protocol == LENDING:
        return await _lend(inside)
    if protocol != PROTOCOL:
        raise ValidationFailed("a port is reached by `Connection: Upgrade` and `Upgrade: tcp`")

    async def run(stream: Stream) -> None:
        try:
            await splice(_Client(stream), inside)
        finally:
            await inside.close()

    await inside.open()
    return Upgrade(_SWITCH, run, release=inside.abort, outlives_eof=True)


async def _lend(inside: PortConnection) -> Upgrade:
    """Either side ends it by closing; nothing more is said. Meanwhile the sandbox is in use."""
    lent = await inside.lend()

    async def run(stream: Stream) -> None:
        if not inside.is_over:
            inside.on_end = stream.close
            stream.send_descriptor(lent.fileno())
            await stream.read()

    return Upgrade(_LEND, run, release=inside.abort)


class _Client(TcpConnection):
    """The client's raw connection; whoever runs the upgrade opens and closes it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def open(self) -> None:
        """Do nothing: it is open."""

    async def read(self, most: int = 65536) -> bytes:
        """Return all that has come: it is only passed on."""
        return await self._stream.read()

    async def write(self, data: bytes) -> None:
        self._stream.write(data)
        await self._stream.drain()

    async def write_eof(self) -> None:
        self._stream.write_eof()

    async def close(self) -> None:
        """Do nothing: the server closes it."""
