"""Somebody who watches a terminal and waits for what must appear."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cove.api import Terminal, TerminalConnection
from cove.model import Exit, Gap, Output, Ready, TerminalEvent

_TIMEOUT_SECONDS = 60.0


class Viewer:
    """Reads events one at a time and keeps what has not been looked at yet."""

    def __init__(self, connection: TerminalConnection) -> None:
        self.connection = connection
        self.write = connection.write
        self.resize = connection.resize
        self._events = connection.events()
        self._screen = b""
        self.seen: list[TerminalEvent] = []

    async def next(self) -> TerminalEvent:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            event = await anext(self._events)
        self.seen.append(event)
        return event

    async def wait_for(self, text: bytes | str) -> bytes:
        """Everything up to and with that text."""
        text = text.encode() if isinstance(text, str) else text
        while text not in self._screen:
            event = await self.next()
            assert not isinstance(event, Exit | Gap), f"{event} before {text!r}: {self._screen[-2000:]!r}"
            self._screen += event.data if isinstance(event, Output) else b""
        before, _, self._screen = self._screen.partition(text)
        return before + text

    async def until_exit(self) -> tuple[bytes, Exit]:
        """What is left, and the end."""
        chunks = [self._screen]
        while not isinstance(event := await self.next(), Exit):
            chunks.append(event.data if isinstance(event, Output) else b"")
        self._screen = b""
        return b"".join(chunks), event

    async def until_ready(self) -> bytes:
        """What was kept from before."""
        chunks = []
        while not isinstance(event := await self.next(), Ready):
            assert isinstance(event, Output), event
            chunks.append(event.data)
        return b"".join(chunks)

    def reconnect(self) -> None:
        """Read on after a read was cancelled."""
        self._events = self.connection.events()

    async def close(self) -> None:
        await self._events.aclose()
        await self.connection.close()


@asynccontextmanager
async def watch(terminal: Terminal, *, since: str | None = None, lossless: bool = False) -> AsyncIterator[Viewer]:
    """A connected viewer."""
    async with terminal.connect(since=since, lossless=lossless) as connection:
        viewer = Viewer(connection)
        yield viewer
        await viewer.close()


def python(text: str) -> list[str]:
    """A small program for a terminal."""
    return ["python3", "-I", "-c", text]


def plain_shell() -> list[str]:
    """A bash without start-up files and line editor; its prompt is `in> ` with `PS1` set so."""
    return ["bash", "--norc", "--noediting"]


PS1 = {"PS1": "in> "}
PROMPT = b"in> "
