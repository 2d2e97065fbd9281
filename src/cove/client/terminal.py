"""Client of a terminal and of its viewers, over WebSockets; a viewer reconnects."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, suppress

from cove import api
from cove.client.calls import Calls
from cove.client.handle import Handle
from cove.client.raw_connection import WebSocketClient
from cove.client.retry import Backoff
from cove.core.command import check_input
from cove.errors import ConnectionLost, TerminalNotFound, Unreachable, ValidationFailed
from cove.local.pipe import refuse_ended
from cove.model import Exit, ProcessExit, Ready, TerminalEvent
from cove.wire import operations, requests
from cove.wire.frames import EVENT, FAILURE, FrameReader, decode_failure, decode_output
from cove.wire.target import Target

_MOST_MESSAGE_BYTES = 64 << 10


class Terminal(Handle, api.Terminal, target=Target.TERMINAL):
    """Holds nothing but its id; the size is as of when it was fetched or resized."""

    def connect(self, *, since: str | None = None, lossless: bool = False) -> "TerminalConnection":
        return TerminalConnection(self._calls, self.id, since, lossless=lossless)

    async def resize(self, cols: int, rows: int) -> None:
        await _resize(self._calls, self.id, cols, rows)
        self.cols, self.rows = cols, rows

    async def destroy(self) -> None:
        with suppress(TerminalNotFound):  # destroyed before
            await self._calls.call(operations.DESTROY_TERMINAL, self.id)

    async def discard(self) -> None:
        await self.destroy()


async def _resize(calls: Calls, id: str, cols: int, rows: int) -> None:
    await calls.call(operations.RESIZE_TERMINAL, id, request=requests.Resize.of(cols=cols, rows=rows))


class TerminalConnection(api.TerminalConnection):
    """One viewer. A connection that breaks is made anew where it broke; what is typed is sent at most once."""

    def __init__(self, calls: Calls, id: str, since: str | None, *, lossless: bool) -> None:
        self._calls = calls
        self._id = id
        self._since = since
        self._lossless = lossless
        self._is_ready = False
        self._socket: WebSocketClient | None = None
        self._stack = AsyncExitStack()
        self._connecting = asyncio.Lock()
        self._is_closed = False
        self._end: ProcessExit | None = None

    async def open(self) -> None:
        await self._connected()

    async def close(self) -> None:
        self._is_closed = True
        self._socket = None
        await self._stack.aclose()

    async def events(self) -> AsyncGenerator[TerminalEvent, None]:
        backoff = Backoff()
        while not self._is_closed:
            try:
                socket = await self._connected()
                async with aclosing(self._read(socket)) as events:
                    async for event in events:
                        backoff.renew()
                        yield event
                        if isinstance(event, Exit):
                            return
                self._socket = None
            except (ConnectionLost, Unreachable) as error:
                self._socket = None
                await backoff.pause(error)

    async def write(self, data: bytes | str) -> None:
        typed = check_input(data)
        if self._end is not None and not self._is_closed:
            raise refuse_ended(f"the program on terminal {self._id}", self._end)
        rest = memoryview(typed)
        while rest:
            await self._send(bytes(rest[:_MOST_MESSAGE_BYTES]))
            rest = rest[_MOST_MESSAGE_BYTES:]

    async def resize(self, cols: int, rows: int) -> None:
        await _resize(self._calls, self._id, cols, rows)

    async def _send(self, data: bytes) -> None:
        backoff = Backoff()
        while True:
            try:
                socket = await self._connected()
                await socket.send(data)
                return
            except OSError:
                self._socket = None
                raise ConnectionLost("the terminal's connection broke: what was typed may be lost") from None
            except (ConnectionLost, Unreachable) as error:
                await backoff.pause(error)

    async def _connected(self) -> WebSocketClient:
        async with self._connecting:
            if self._is_closed:
                raise ValidationFailed("this viewer of the terminal is closed")
            if self._socket is None or self._socket.is_closed:
                await self._stack.aclose()
                request = requests.Connect.of(since=self._since, lossless=self._lossless)
                path = self._calls.path(operations.CONNECT_TERMINAL, self._id)
                self._socket = await self._stack.enter_async_context(self._calls.transport.socket(path, request))
            return self._socket

    async def _read(self, socket: WebSocketClient) -> AsyncGenerator[TerminalEvent, None]:
        reader = FrameReader()
        while (message := await socket.receive()) is not None:
            if isinstance(message, str):
                continue
            for kind, head, data in reader.feed(message):
                if kind == FAILURE:
                    raise decode_failure(head)
                if kind == EVENT:
                    event = decode_output(head, data)
                    self._since = event.cursor
                    if isinstance(event, Exit):
                        self._end = ProcessExit(outcome=event.outcome, exit_code=event.exit_code, signal=event.signal)
                    if isinstance(event, Ready) and self._is_ready:
                        continue  # where a broken connection was made anew
                    self._is_ready = self._is_ready or isinstance(event, Ready)
                    yield event
