"""A sandbox's API over HTTP: the operations of the table that a runtime answers."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from cove import api
from cove.errors import CoveError, NotFound, SandboxNotFound
from cove.http import Answer, Handler, Request
from cove.runtime.connection import PortConnection
from cove.server.dispatch import RESPONDERS, Call, Responder, Routes, read_arguments
from cove.server.error_response import describe_cove_error
from cove.server.runtime.streams import port_socket, terminal_socket
from cove.wire.coding import unquote_text
from cove.wire.operation import By, Form
from cove.wire.operations import OPERATIONS
from cove.wire.target import Target

_ROUTES: Final = Routes(row for row in OPERATIONS if row.by is not By.GATEWAY)


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


async def _ports(sandbox: api.AsyncSandbox) -> object:
    return sandbox.ports


_OWNERS: Final[Mapping[Target, Callable[..., Awaitable[object]]]] = {
    Target.SANDBOX: _sandbox,
    Target.FILES: _files,
    Target.GIT: _git,
    Target.PORTS: _ports,
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
