"""A sandbox's API over HTTP: the operations of the table that a runtime answers, and its upgraded connections."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from cove import api
from cove.api import TcpConnection, TerminalConnection
from cove.errors import CoveError, NotFound, ProcessExitedBeforeReady, SandboxNotFound, ValidationFailed
from cove.http import Answer, Handler, Request, Stream, Upgrade
from cove.http.websocket import WebSocket, accept, both_ways
from cove.local.tcp_stream import splice
from cove.runtime.connection import PortConnection
from cove.server.dispatch import RESPONDERS, Call, Responder, Routes, read_arguments
from cove.server.error_response import describe_cove_error
from cove.wire.coding import unquote_text
from cove.wire.frames import (
    LENDING,
    PROTOCOL,
    encode_failure_frame,
    encode_frame,
)
from cove.wire.operation import By, Form
from cove.wire.operations import OPERATIONS
from cove.wire.target import Target

_ROUTES: Final = Routes(row for row in OPERATIONS if row.by is not By.GATEWAY)
_SWITCH = ((b"connection", b"upgrade"), (b"upgrade", PROTOCOL))
_LEND = ((b"connection", b"upgrade"), (b"upgrade", LENDING))


def make_handler(sandbox: api.AsyncSandbox) -> Handler:
    """The handler that serves this sandbox, and no other."""

    async def handle(request: Request) -> Answer:
        try:
            return await _answer(sandbox, request)
        except CoveError as error:
            return describe_cove_error(error)

    return handle


async def _answer(sandbox: api.AsyncSandbox, request: Request) -> Answer:
    node, ids = _ROUTES.match(request.path)
    if not ids or unquote_text(ids[0]) != sandbox.id:
        raise SandboxNotFound("the sandbox with this id is not here any more")
    if node is None:
        raise NotFound(f"the API has no {request.path}")
    route = node.choose(request)
    arguments = await read_arguments(route, ids, request)
    owner_ids = [unquote_text(id) for id in route.owner_ids(ids)[1:]]
    owner = await _OWNERS[route.operation.target](sandbox, *owner_ids)
    return await _RESPONDERS[route.operation.form](Call(route, owner, arguments, request))


async def _sandbox(sandbox: api.AsyncSandbox) -> object:
    return sandbox


async def _files(sandbox: api.AsyncSandbox, session: str | None = None) -> object:
    return sandbox.files if session is None else (await sandbox.get_session(session)).files


async def _git(sandbox: api.AsyncSandbox) -> object:
    return sandbox.git


async def _backups(sandbox: api.AsyncSandbox) -> object:
    return sandbox.backups


async def _ports(sandbox: api.AsyncSandbox) -> object:
    return sandbox.ports


async def _mounts(sandbox: api.AsyncSandbox) -> object:
    return sandbox.mounts


_OWNERS: Final[Mapping[Target, Callable[..., Awaitable[object]]]] = {
    Target.SANDBOX: _sandbox,
    Target.FILES: _files,
    Target.GIT: _git,
    Target.PORTS: _ports,
    Target.BACKUPS: _backups,
    Target.MOUNTS: _mounts,
    Target.PROCESS: lambda sandbox, key: sandbox.get_process(key),
    Target.SESSION: lambda sandbox, key: sandbox.get_session(key),
    Target.TERMINAL: lambda sandbox, key: sandbox.get_terminal(key),
    Target.CONTEXT: lambda sandbox, key: sandbox.get_code_context(key),
}


async def _answer_websocket(call: Call) -> Answer:
    connection: api.TerminalConnection = call.begin()
    async with connection:  # what is wrong is said before the upgrade, when it still can be
        return terminal_socket(call.request, connection)


async def _answer_tcp(call: Call) -> Answer:
    connection: PortConnection = call.begin()
    return await port_socket(call.request, connection)


_RESPONDERS: Final[Mapping[Form, Responder]] = {
    **RESPONDERS,
    Form.WEBSOCKET: _answer_websocket,
    Form.TCP: _answer_tcp,
}


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
