"""Terminals of the bridge protocol, over a WebSocket.

Theory of operation. Without a session every connection has a terminal of its own, which ends with the connection;
with one, the terminal is the session's, and stays. A program that uses a terminal to run one command types its line
as soon as the terminal is ready. That is recognised (the fast path): the line is then what runs in the terminal, so
that its output is not mixed with a prompt, and its exit code and end are the terminal's. What a person types
looks different: a key at a time, and a line ends with a carriage return.
"""

import asyncio
import math
import re
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final, Literal, TypeGuard

import msgspec

from cove import api
from cove.errors import CoveError, ProcessExitedBeforeReady, ValidationFailed
from cove.http import Request, Upgrade
from cove.http.websocket import WebSocket, accept, both_ways
from cove.model import Exit, Output, Ready
from cove.server.bridge.protocol import WORKSPACE, failed, invalid, plain_text, read_query
from cove.server.bridge.session import BridgeSessions, chosen_session

FAST_PATH_HEADER: Final = b"cove-fast-path"
_TYPED_QUERY: Final = "cols=80&rows=24"
_TYPED_SECONDS = 0.3
_MOST_LINE_BYTES = 100_000
_LARGEST_SIZE = 1000
_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*", re.ASCII)
# The end of the program hangs up the terminal, which must not end what it has left in the background.
_RUN_LINE: Final = ("/bin/sh", "-c", "trap '' HUP; exec /bin/bash -c \"$1\"", "sh")
_READY: Final = '{"type":"ready"}'


class _Resize(msgspec.Struct):
    type: Literal["resize"]
    cols: float
    rows: float


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The terminal that a client asks for; `can_be_typed`: one line may be all that it wants to run."""

    cols: int
    rows: int
    shell: str | None
    session: str | None
    can_be_typed: bool


async def open_terminal(sandbox: api.AsyncSandbox, sessions: BridgeSessions, request: Request) -> Upgrade:
    """`GET pty`: what is wrong with a request is an ordinary response, what fails later is an `error` frame."""
    if request.headers.get(b"upgrade", b"").lower() != b"websocket":
        raise invalid("WebSocket upgrade required")
    wanted = _read_query(request)
    if wanted.shell is not None:
        await _check_shell(sandbox, wanted.shell)
    session = None
    if wanted.session is not None:
        try:
            session = await sessions.obtain(wanted.session)
        except CoveError as error:
            raise failed("exec_transport_error", error.message) from None

    async def run(socket: WebSocket) -> None:
        try:
            if session is not None:
                await _serve_session(sandbox, session, wanted, socket)
            else:
                await _serve_fresh(sandbox, wanted, socket)
        except CoveError as error:
            await socket.send(_describe_error(error.message))
            await socket.close(1011)

    return accept(request, run)


def _read_query(request: Request) -> _Wanted:
    query = read_query(request.query)
    cols, rows = _read_size(query.get("cols"), 80), _read_size(query.get("rows"), 24)
    session = chosen_session(request, query.get("session", ""))
    is_plain = request.query == _TYPED_QUERY and session is None
    return _Wanted(cols, rows, query.get("shell"), session, is_plain and not _is_fast_path_off(request))


def _is_fast_path_off(request: Request) -> bool:
    """Return whether the client or the gateway says so: neither can overrule the other."""
    switches = request.headers.get(FAST_PATH_HEADER, b"").lower().split(b",")
    return b"off" in (switch.strip() for switch in switches)


def _read_size(text: str | None, default: int) -> int:
    if not text:
        return default
    size = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not 1 <= size < math.inf:
        raise invalid("cols and rows must be valid numbers")
    return _as_far_as_it_goes(size)


def _as_far_as_it_goes(size: float) -> int:
    return int(min(size, _LARGEST_SIZE))


async def _check_shell(sandbox: api.AsyncSandbox, shell: str) -> None:
    """A program that is not there is told of before the upgrade."""
    try:
        found = await sandbox.exec(["/bin/sh", "-c", 'command -v -- "$1"', "sh", shell])
    except CoveError as error:
        raise failed("exec_transport_error", error.message) from None
    if not found.ok:
        raise failed("exec_transport_error", f"there is no program {shell}")


async def _serve_session(sandbox: api.AsyncSandbox, session: api.Session, wanted: _Wanted, socket: WebSocket) -> None:
    """The session's terminal, which begins where the session is and lives on without viewers."""
    terminal = await sandbox.terminal(
        id=session.id,
        shell=wanted.shell,
        cwd=await session.cwd(),
        env={**await session.env(), "TERM": "xterm-256color"},
        cols=wanted.cols,
        rows=wanted.rows,
    )
    async with terminal.connect() as connection:
        await _Conversation(socket, connection).run()


async def _serve_fresh(sandbox: api.AsyncSandbox, wanted: _Wanted, socket: WebSocket) -> None:
    first: str | bytes = b""
    command: list[str] | None = None if wanted.shell is None else [wanted.shell]
    if wanted.can_be_typed:
        await socket.send(_READY)
        received = await _first_message(socket)
        if received is None:
            return
        if _is_line(received):
            command = [*_RUN_LINE, received.decode("utf-8", "surrogateescape")]
        else:
            first = received
    terminal = await sandbox.terminal(shell=command, cwd=WORKSPACE, cols=wanted.cols, rows=wanted.rows)
    has_ended = False
    try:
        async with terminal.connect(lossless=True) as connection:
            conversation = _Conversation(socket, connection, is_announced=wanted.can_be_typed)
            has_ended = await conversation.run(first)
    finally:
        if not has_ended:  # what a program that ended by itself left running lives on
            await terminal.destroy()


async def _first_message(socket: WebSocket) -> str | bytes | None:
    """Return what the client sends at once; nothing if it waits."""
    try:
        async with asyncio.timeout(_TYPED_SECONDS):
            return await socket.receive()
    except TimeoutError:
        return b""


def _is_line(message: str | bytes) -> TypeGuard[bytes]:
    return (
        isinstance(message, bytes)
        and message.endswith(b"\n")
        and len(message) < _MOST_LINE_BYTES
        and b"\0" not in message
    )


class _Conversation:
    """A client and a viewer of a terminal; `is_announced` if the client was told already that it is ready."""

    def __init__(self, socket: WebSocket, connection: api.TerminalConnection, *, is_announced: bool = False) -> None:
        self._socket = socket
        self._connection = connection
        self._is_announced = is_announced
        self._has_ended = False

    async def run(self, first: str | bytes = b"") -> bool:
        """Until the terminal or the client ends; whether it was the terminal. `first` was received already."""
        await both_ways(self._show(), self._type(first))
        return self._has_ended

    async def _show(self) -> None:
        async with aclosing(self._connection.events()) as events:
            async for event in events:
                if isinstance(event, Output):
                    await self._socket.send(event.data)
                elif isinstance(event, Ready) and not self._is_announced:
                    await self._socket.send(_READY)
                elif isinstance(event, Exit):
                    self._has_ended = True
                    await self._socket.send(_describe_exit(event))

    async def _type(self, first: str | bytes) -> None:
        message: str | bytes | None = first
        while message is not None:
            if isinstance(message, str):
                await self._control(message)
            elif message:
                with suppress(ProcessExitedBeforeReady):  # the program has ended: its exit is on its way
                    await self._connection.write(message)
            message = await self._socket.receive()

    async def _control(self, message: str) -> None:
        try:
            resize = msgspec.json.decode(message, type=_Resize)
            await self._connection.resize(_as_far_as_it_goes(resize.cols), _as_far_as_it_goes(resize.rows))
        except (msgspec.DecodeError, UnicodeDecodeError):
            await self._socket.send(_describe_error("Invalid control message"))
        except ValidationFailed as error:
            await self._socket.send(_describe_error(error.message))


def _describe_exit(event: Exit) -> str:
    if event.exit_code is None:
        return _describe_error("the sandbox was lost")
    frame: dict[str, object] = {"type": "exit", "code": event.exit_code}
    if event.signal is not None:
        frame["signal"] = event.signal
    return msgspec.json.encode(frame).decode()


def _describe_error(text: str) -> str:
    return msgspec.json.encode({"type": "error", "message": plain_text(text)}).decode()
