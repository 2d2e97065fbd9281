"""Readiness (health) checks: wait for a line in a process's log, or for an answer on a port."""

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from functools import partial

from cove.api import Process
from cove.core import line_search
from cove.core.capture import Capture
from cove.core.line_search import FOUND, HEAD, LONGEST_LINE, SLOW, decode_match, encode_expression
from cove.core.readiness import HttpTarget, LineMatcher, TcpTarget
from cove.errors import (
    ProcessExitedBeforeReady,
    ProcessReadyTimeout,
    ServiceNotResponding,
    SpawnFailed,
    ValidationFailed,
)
from cove.local.threads import finished, start_in_thread
from cove.model import Exit, LogEvent, LogMatch, Output, ProcessExit, ProcessStatus
from cove.runtime.connection import connect_inside, open_streams
from cove.runtime.link import Link
from cove.tasks import settled

_TAIL_BYTES = 4096
# Nothing in Linux tells when another program starts to listen: we try again, at first quickly.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.1
_ANSWER_SECONDS = 5.0
_GLANCE_SECONDS = 2.0
_KINDS = dict(zip(("stdout", "stderr"), line_search.STREAMS, strict=True))
_MOST_TEXT = 1 << 16
_READ_BYTES = 1 << 16


async def wait_for_log(process: Process, pattern: str | re.Pattern[str], timeout: float | None) -> LogMatch:
    """Wait until a line of the log matches: `api.Process.wait_for_log`."""
    if not isinstance(pattern, str | re.Pattern):
        raise ValidationFailed(f"pattern must be a string or a compiled expression, not {type(pattern).__name__}")
    if len(pattern if isinstance(pattern, str) else pattern.pattern) > _MOST_TEXT:
        raise ValidationFailed(f"pattern is longer than {_MOST_TEXT} characters: lines are looked at in such parts")
    find = partial(_find_text, LineMatcher(pattern)) if isinstance(pattern, str) else partial(_find_match, pattern)
    # Without any time, what is there is looked at all the same.
    seconds = _GLANCE_SECONDS if timeout == 0 else timeout
    try:
        async with asyncio.timeout(seconds), aclosing(process.logs(follow=timeout != 0)) as events:
            if (found := await find(events)) is not None:
                return found
        is_late = timeout == 0 and process.status in (ProcessStatus.STARTING, ProcessStatus.RUNNING)
    except TimeoutError:
        is_late = True
    if is_late:
        raise ProcessReadyTimeout(f"process {process.id} did not print {pattern!r} within {timeout} s")
    raise await _exited(process, f"it printed {pattern!r}")


async def _find_text(matcher: LineMatcher, events: AsyncIterator[LogEvent]) -> LogMatch | None:
    async for event in events:
        if isinstance(event, Output):
            for piece in _pieces(event.data):
                if (found := matcher.feed(event.stream, piece)) is not None:
                    return found
                await asyncio.sleep(0)
    return None


async def _find_match(pattern: re.Pattern[str], events: AsyncIterator[LogEvent]) -> LogMatch | None:
    async with searching(pattern) as search:
        async for event in events:
            if isinstance(event, Exit):
                return await search.finish()
            if isinstance(event, Output):
                for piece in _pieces(event.data):
                    if (found := await search.feed(event.stream, piece)) is not None:
                        return found
    return None


def _pieces(data: bytes) -> Iterator[bytes]:
    return (data[at : at + LONGEST_LINE] for at in range(0, len(data), LONGEST_LINE))


async def wait_for_port(
    process: Process,
    ended: "asyncio.Future[ProcessExit]",
    link: Link,
    target: HttpTarget | TcpTarget,
    timeout: float | None,
) -> None:
    """Poll a port until it answers, the process ends or time is up: `api.Process.wait_for_port`."""
    pause = _FIRST_PAUSE
    try:
        async with asyncio.timeout(timeout):
            while not ended.done():
                if await _answers(link, target) and not ended.done():
                    return
                await asyncio.wait([ended], timeout=pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
    except TimeoutError:
        raise ProcessReadyTimeout(
            f"process {process.id}: port {target.port} was not ready within {timeout} s", id=process.id
        ) from None
    raise await _exited(process, f"port {target.port} answered")


async def _answers(link: Link, target: HttpTarget | TcpTarget) -> bool:
    try:
        reader, writer = open_streams(await connect_inside(link, target.port))
    except ServiceNotResponding:
        return False
    try:
        if isinstance(target, TcpTarget):
            return True
        async with asyncio.timeout(_ANSWER_SECONDS):
            writer.write(target.request)
            line = await reader.readline()
        return target.accepts(line)
    except (TimeoutError, ConnectionError, ValueError):
        return False  # it listens but does not answer yet
    finally:
        writer.close()


async def _exited(process: Process, what: str) -> ProcessExitedBeforeReady:
    tail = Capture(2 * _TAIL_BYTES)
    async with aclosing(process.logs(follow=False)) as events:
        async for event in events:
            if isinstance(event, Output):
                tail.append(event.data)
    output = tail.getvalue()[-_TAIL_BYTES:].decode("utf-8", "replace")
    return ProcessExitedBeforeReady(
        f"process {process.id} ended with exit code {process.exit_code} before {what}. Its last output:\n{output}",
        exit_code=process.exit_code,
        output=output,
    )


@asynccontextmanager
async def searching(expression: re.Pattern[str]) -> AsyncIterator["LineSearch"]:
    """A process that searches the output it is fed with. Leaving ends it, whatever it does."""
    if not isinstance(expression.pattern, str):
        raise ValidationFailed("pattern must be an expression for text, not for bytes")
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
