"""Search a log for a regular expression beside the event loop: see `core.line_search`."""

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cove.core import line_search
from cove.core.line_search import FOUND, HEAD, SLOW, decode_match, encode_expression
from cove.errors import SpawnFailed, ValidationFailed
from cove.local.threads import finished, settled, start_in_thread
from cove.model import LogMatch

_KINDS = dict(zip(("stdout", "stderr"), line_search.STREAMS, strict=True))
_MOST_TEXT = 1 << 16
_READ_BYTES = 1 << 16


@asynccontextmanager
async def searching(expression: re.Pattern[str]) -> AsyncIterator["LineSearch"]:
    """A process that searches the output it is fed with. Leaving ends it, whatever it does."""
    if not isinstance(expression.pattern, str):
        raise ValidationFailed("pattern must be an expression for text, not for bytes")
    if len(expression.pattern) > _MOST_TEXT:
        raise ValidationFailed(f"pattern is longer than {_MOST_TEXT} characters")
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        starting = start_in_thread(_start, theirs)
        try:
            await settled(starting)
            search = LineSearch(ours)
            await search.send(encode_expression(expression.pattern, expression.flags & ~re.DEBUG))
            yield search
        finally:
            if not starting.cancelled() and starting.exception() is None:
                await finished(_end, starting.result())


class LineSearch:
    """Our end of the process: one question at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    async def feed(self, stream: str, data: bytes) -> LogMatch | None:
        """The match that this chunk of at most LONGEST_LINE bytes completes, if any."""
        return await self._ask(_KINDS[stream], data)

    async def finish(self) -> LogMatch | None:
        """The match in a last line without an end, if any."""
        return await self._ask(_KINDS["stdout"], b"")

    async def _ask(self, stream: bytes, data: bytes) -> LogMatch | None:
        await self.send(HEAD.pack(stream, len(data)) + data)
        kind, length = HEAD.unpack(await self._receive(HEAD.size))
        if kind == FOUND:
            return LogMatch(*decode_match(await self._receive(length)))
        if kind == SLOW:
            raise ValidationFailed("the expression takes too long for this output: use fewer repetitions that overlap")
        return None

    async def send(self, data: bytes) -> None:
        """Write a frame."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._sock, data)
        except ConnectionError:
            raise _lost() from None

    async def _receive(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            try:
                data = await asyncio.get_running_loop().sock_recv(self._sock, min(size, _READ_BYTES))
            except ConnectionError:
                data = b""
            if not data:
                raise _lost()
            parts.append(data)
            size -= len(data)
        return b"".join(parts)


def _lost() -> SpawnFailed:
    return SpawnFailed("the process that searches the log for the expression ended: try again")


def _start(sock: socket.socket) -> "subprocess.Popen[bytes]":
    """Its end of the socket is all that it has of ours."""
    with sock:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", line_search.__file__],
            stdin=sock.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
