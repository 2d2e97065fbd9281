"""Serve a viewer of a terminal over a WebSocket.

The client types with binary messages and resizes with `{"type": "resize", "cols": 120, "rows": 30}`. Every binary
message from here is one frame with an event; after the last one the WebSocket is closed.
"""

from contextlib import suppress

import msgspec

from cove.api import TerminalConnection
from cove.errors import CoveError, ProcessExitedBeforeReady
from cove.http import Request, Upgrade
from cove.http.websocket import WebSocket, accept, both_ways
from cove.wire.frames import encode_failure_frame, encode_frame


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
