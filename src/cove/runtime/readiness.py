"""Waiting until a process is ready: a line in its log, or an answer on a port."""

import asyncio
import re
from contextlib import aclosing

from cove.api import Process
from cove.core.capture import Capture
from cove.core.line_match import LineMatcher
from cove.core.port_target import HttpTarget, TcpTarget
from cove.errors import ProcessExitedBeforeReady, ProcessReadyTimeout, ServiceNotResponding, ValidationFailed
from cove.model import Exit, LogMatch, Output, ProcessExit
from cove.runtime.connection import connect_inside
from cove.runtime.link import Link

_TAIL_BYTES = 4096
# Nothing in Linux tells when another program starts to listen: we try again, at first quickly.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.1
_ANSWER_SECONDS = 5.0


async def wait_for_log(process: Process, pattern: str | re.Pattern[str], timeout: float | None) -> LogMatch:
    """See `api.Process.wait_for_log`."""
    if not isinstance(pattern, str | re.Pattern):
        raise ValidationFailed(f"pattern must be a string or a compiled expression, not {type(pattern).__name__}")
    matcher = LineMatcher(pattern)
    try:
        async with asyncio.timeout(timeout), aclosing(process.logs()) as events:
            async for event in events:
                if isinstance(event, Output) and (found := matcher.feed(event.stream, event.data)) is not None:
                    return found
                if isinstance(event, Exit) and (found := matcher.finish()) is not None:
                    return found
    except TimeoutError:
        raise ProcessReadyTimeout(f"process {process.id} did not print {pattern!r} within {timeout} s") from None
    raise await _exited(process, f"it printed {pattern!r}")


async def wait_for_port(
    process: Process,
    ended: "asyncio.Future[ProcessExit]",
    link: Link,
    target: HttpTarget | TcpTarget,
    timeout: float | None,
) -> None:
    """See `api.Process.wait_for_port`."""
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
        reader, writer = await connect_inside(link, target.port)
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
