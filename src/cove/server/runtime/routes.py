"""Route a sandbox's requests: find the operation in the table, call the method, encode the reply."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from cove import api
from cove.errors import CoveError, MethodNotAllowed, NotFound, SandboxNotFound, ValidationFailed
from cove.http import Answer, Handler, Request, Response
from cove.http.response import content_response
from cove.runtime.connection import PortConnection
from cove.server.error_response import allowed_methods, describe_cove_error
from cove.server.runtime.streams import event_stream, port_socket, terminal_socket
from cove.wire.coding import decode_json, decode_query, encode_json, unquote_text
from cove.wire.operations import OPERATIONS, ROOT, SANDBOXES, AnyOperation, Form, Target
from cove.wire.replies import PROCESS

MOST_BODY_BYTES: Final = 64 << 20
_ROOT_SEGMENTS: Final = SANDBOXES.count("/") + 1
_JSON: Final = ((b"content-type", b"application/json"),)
_HELD_BYTES: Final = 1 << 20
_ANY: Final = "*"
_MOST_DIGITS: Final = 5


class _Node:
    """One segment of all paths: what may follow it, and the operations that end here."""

    __slots__ = ("below", "operations")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        self.operations: dict[str, AnyOperation] = {}

    def add(self, segments: list[str], operation: AnyOperation) -> None:
        node = self
        for segment in segments:
            node = node.below.setdefault(_ANY if segment.startswith("{") else segment, _Node())
        node.operations[operation.verb] = operation


def _make_tree() -> _Node:
    top = _Node()
    for operation in OPERATIONS:
        if operation.target is Target.GATEWAY and not operation.reaches_runtime:
            continue
        segments = operation.path.removeprefix(ROOT).split("/")[1:]
        top.add(segments, operation)
        if operation.target is Target.FILES:
            top.add(["sessions", "{session}", *segments], operation)
    return top


_TREE: Final = _make_tree()


def find_operation(verb: str, segments: list[str]) -> tuple[AnyOperation, list[str]]:
    """The operation at that path below a sandbox, and the ids in the path."""
    node, ids = _TREE, []
    for segment in segments:
        following = node.below.get(segment)
        if following is None or segment == _ANY:
            following = node.below.get(_ANY)
            ids.append(unquote_text(segment))
        if following is None:
            raise NotFound(f"the API has no /{'/'.join(segments)}")
        node = following
    operation = node.operations.get("GET" if verb == "HEAD" else verb)
    if operation is not None:
        return operation, ids
    if not node.operations:
        raise NotFound(f"the API has no /{'/'.join(segments)}")
    allowed = allowed_methods(node.operations)
    raise MethodNotAllowed(f"/{'/'.join(segments)} takes {', '.join(allowed)}, not {verb}", allowed=allowed)


def make_handler(sandbox: api.AsyncSandbox) -> Handler:
    """The handler that serves this sandbox, and no other."""

    async def handle(request: Request) -> Answer:
        try:
            return await _answer(sandbox, request)
        except CoveError as error:
            return describe_cove_error(error)

    return handle


async def _answer(sandbox: api.AsyncSandbox, request: Request) -> Answer:
    segments = request.path.split("/")
    if unquote_text(segments[_ROOT_SEGMENTS] if len(segments) > _ROOT_SEGMENTS else "") != sandbox.id:
        raise SandboxNotFound("the sandbox with this id is not here any more")
    operation, ids = find_operation(request.method, segments[_ROOT_SEGMENTS + 1 :])
    arguments = await _arguments(operation, request)
    target = await _resolve(sandbox, operation, ids)
    return await _FORMS[operation.form](operation, target, arguments, request)


async def _arguments(operation: AnyOperation, request: Request) -> dict[str, object]:
    if not operation.has_request:
        return {}
    if operation.has_query:
        return decode_query(request.query, operation.request).arguments()
    body = await request.read(MOST_BODY_BYTES)
    return decode_json(body or b"{}", operation.request).arguments()


async def _resolve(sandbox: api.AsyncSandbox, operation: AnyOperation, ids: list[str]) -> Callable[..., object]:
    """The method to call, with the ids that it takes itself."""
    owner = await _OWNERS[operation.target](sandbox, ids)
    method: Callable[..., object] = getattr(owner, operation.method)
    if operation.target is Target.SANDBOX and ids:
        return lambda **arguments: method(*ids, **arguments)
    if operation.target is Target.PORTS and ids:
        return partial(method, _port(ids[0]))
    if operation.target is Target.PROCESS and operation.answer is PROCESS:
        return partial(_then_itself, owner, method)
    return method


async def _then_itself(owner: object, method: Callable[..., object], **arguments: object) -> object:
    """Reply with the process as the call has left it: nobody has to ask again."""
    value = method(**arguments)
    assert isinstance(value, Awaitable)
    await value
    return owner


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS:
        raise ValidationFailed(f"a port is a number, not {text!r}")
    return int(text)


async def _itself(sandbox: api.AsyncSandbox, _: list[str]) -> object:
    return sandbox


async def _files(sandbox: api.AsyncSandbox, ids: list[str]) -> object:
    return (await sandbox.get_session(ids[0])).files if ids else sandbox.files


async def _git(sandbox: api.AsyncSandbox, _: list[str]) -> object:
    return sandbox.git


async def _ports(sandbox: api.AsyncSandbox, _: list[str]) -> object:
    return sandbox.ports


async def _process(sandbox: api.AsyncSandbox, ids: list[str]) -> object:
    return await sandbox.get_process(ids[0])


async def _session(sandbox: api.AsyncSandbox, ids: list[str]) -> object:
    return await sandbox.get_session(ids[0])


async def _terminal(sandbox: api.AsyncSandbox, ids: list[str]) -> object:
    return await sandbox.get_terminal(ids[0])


async def _context(sandbox: api.AsyncSandbox, ids: list[str]) -> object:
    return await sandbox.get_code_context(ids[0])


_OWNERS: Final[Mapping[Target, Callable[[api.AsyncSandbox, list[str]], Awaitable[object]]]] = {
    Target.GATEWAY: _itself,
    Target.SANDBOX: _itself,
    Target.FILES: _files,
    Target.GIT: _git,
    Target.PORTS: _ports,
    Target.PROCESS: _process,
    Target.SESSION: _session,
    Target.TERMINAL: _terminal,
    Target.CONTEXT: _context,
}


async def _answer_value(
    operation: AnyOperation, method: Callable[..., object], arguments: dict[str, object], _: Request
) -> Answer:
    value = method(**arguments)
    if isinstance(value, Awaitable):
        value = await value
    if operation.reply is None:
        return Response(204)
    return Response(200, _JSON, encode_json(operation.answer.make(value)))


async def _answer_upload(
    operation: AnyOperation, method: Callable[..., object], arguments: dict[str, object], request: Request
) -> Answer:
    return await _answer_value(operation, method, {**arguments, "data": await request.read(MOST_BODY_BYTES)}, request)


async def _answer_stream(
    operation: AnyOperation, method: Callable[..., object], arguments: dict[str, object], request: Request
) -> Answer:
    return await _answer_value(operation, method, {**arguments, "chunks": request.chunks()}, request)


async def _answer_content(
    _: AnyOperation, method: Callable[..., object], arguments: dict[str, object], __: Request
) -> Answer:
    chunks = method(**arguments)
    assert isinstance(chunks, AsyncGenerator)
    return await content_response(chunks, _HELD_BYTES)


async def _answer_events(
    _: AnyOperation, method: Callable[..., object], arguments: dict[str, object], request: Request
) -> Answer:
    if "since" in arguments and (last := request.headers.get(b"last-event-id")):
        arguments["since"] = last.decode("latin-1")
    events = method(**arguments)
    assert isinstance(events, AsyncGenerator)
    return event_stream(events, request.headers.get(b"accept", b""))


async def _answer_socket(
    _: AnyOperation, method: Callable[..., object], arguments: dict[str, object], request: Request
) -> Answer:
    connection = method(**arguments)
    if isinstance(connection, PortConnection):
        return await port_socket(request, connection)
    assert isinstance(connection, api.TerminalConnection)
    async with connection:  # what is wrong is said before the upgrade, when it still can be
        return terminal_socket(request, connection)


_FORMS: Final[
    Mapping[Form, Callable[[AnyOperation, Callable[..., object], dict[str, object], Request], Awaitable[Answer]]]
] = {
    Form.VALUE: _answer_value,
    Form.UPLOAD: _answer_upload,
    Form.STREAM: _answer_stream,
    Form.CONTENT: _answer_content,
    Form.EVENTS: _answer_events,
    Form.SOCKET: _answer_socket,
}
