"""Run commands of the bridge protocol: a line for bash, its output as server-sent events, byte for byte."""

import base64
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import msgspec

from cove import api
from cove.errors import ConnectionLost, CoveError, SandboxDestroyed, SandboxUnavailable, SessionTerminated
from cove.http import Request, Response
from cove.model import Exit, Outcome, Output
from cove.server.bridge.protocol import MOST_BODY_BYTES, WORKSPACE, decode_object, invalid, working_directory
from cove.server.bridge.session import BridgeSessions, chosen_session
from cove.server.session_output import CHUNK_BYTES, SessionOutput

EVENT_STREAM: Final = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"))
_PLAIN = re.compile(r"[A-Za-z0-9@%+=:,./-]+")
# Thirty thousand years. JSON has numbers that no float holds, and no clock needs.
_MOST_MILLISECONDS = 10**15


@dataclass(frozen=True, slots=True)
class _Command:
    """The command to run; `milliseconds` is how a client wrote the timeout."""

    line: str
    cwd: str | None
    milliseconds: float | None
    session: str | None

    @property
    def timeout(self) -> float | None:
        return None if self.milliseconds is None else self.milliseconds / 1000


async def answer_exec(sandbox: api.AsyncSandbox, sessions: BridgeSessions, request: Request) -> Response:
    """`POST exec`: checked first, then everything is an event."""
    command = _read_command(decode_object(await request.read(MOST_BODY_BYTES)), request)
    events = _run(sandbox, command) if command.session is None else _run_in_session(sessions, command, command.session)
    return Response(200, EVENT_STREAM, _report_failure(events))


def _read_command(fields: dict[str, object], request: Request) -> _Command:
    argv = fields.get("argv")
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv):
        raise invalid("argv must be a non-empty array of strings")
    session = chosen_session(request)
    return _Command(
        line=" ".join(map(_quote, argv)),
        cwd=working_directory(fields.get("cwd")),
        milliseconds=_read_timeout(fields.get("timeout_ms")),
        session=session,
    )


def _quote(word: str) -> str:
    return word if _PLAIN.fullmatch(word) else "'" + word.replace("'", "'\\''") + "'"


def _read_timeout(value: object) -> float | None:
    """Parse a timeout; whatever is no number of milliseconds means none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 < value < _MOST_MILLISECONDS else None


async def _run(sandbox: api.AsyncSandbox, command: _Command) -> AsyncGenerator[bytes, None]:
    """The process is started here, and ends when nobody reads any more."""
    process = await sandbox.start_process(
        command.line, cwd=command.cwd or WORKSPACE, timeout=command.timeout, keep=False, lossless=True
    )
    has_ended = False
    try:
        async with aclosing(process.logs(lossless=True)) as events:
            async for event in events:
                if isinstance(event, Output):
                    for chunk in _output(event.stream, event.data):
                        yield chunk
                elif isinstance(event, Exit):
                    has_ended = True
                    yield _end(command, event.outcome, event.exit_code)
    finally:
        if not has_ended:
            await process.kill("KILL")


async def _run_in_session(sessions: BridgeSessions, command: _Command, id: str) -> AsyncGenerator[bytes, None]:
    """The command ends when nobody reads any more, and its session stays."""
    session, output = await sessions.obtain(id), SessionOutput()
    async with aclosing(output.chunks(session, command.line, cwd=command.cwd, timeout=command.timeout)) as chunks:
        async for stream, data in chunks:
            for chunk in _output(stream, data):
                yield chunk
    try:
        result = output.result()
    except SessionTerminated as ended:
        yield _end(command, Outcome.EXITED, ended.exit_code)
    else:
        yield _end(command, result.outcome, result.exit_code)


async def _report_failure(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """A command that could not be run is the last event, too."""
    async with aclosing(events):
        try:
            async for event in events:
                yield event
        except (ConnectionLost, SandboxDestroyed, SandboxUnavailable) as error:
            yield _failure(error.message, "exec_transport_error")
        except CoveError as error:
            yield _failure(error.message, "exec_error")


def _output(stream: str, data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), CHUNK_BYTES):
        yield b"event: %b\ndata: %b\n\n" % (stream.encode(), base64.b64encode(data[at : at + CHUNK_BYTES]))


def _end(command: _Command, outcome: Outcome, exit_code: int | None) -> bytes:
    if outcome is Outcome.LOST or exit_code is None:
        return _failure("the sandbox was lost while the command ran", "exec_transport_error")
    end = b'event: exit\ndata: {"exit_code":%d}\n\n' % exit_code
    if outcome is not Outcome.TIMED_OUT:
        return end
    return b"".join(_output("stderr", f"Command timed out after {command.milliseconds:.15g}ms\n".encode())) + end


def _failure(text: str, code: str) -> bytes:
    return b"event: error\ndata: %b\n\n" % msgspec.json.encode({"error": text, "code": code})
