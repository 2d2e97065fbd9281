"""Dispatch: find the operation of a request in the table, call its method, and answer with what that gives.

The gateway and the runtimes each do so with the operations that are theirs.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from cove.errors import CoveError, MethodNotAllowed
from cove.http import Answer, Ping, Request, Response
from cove.http.response import content_response
from cove.server.error_response import allowed_methods
from cove.wire.coding import decode_json, decode_query, encode_json, unquote_text
from cove.wire.frames import (
    FRAMES,
    PING_COMMENT,
    PING_FRAME,
    SERVER_SENT_EVENTS,
    EventCodec,
    encode_failure_frame,
    encode_failure_server_sent,
)
from cove.wire.operation import AnyOperation, Caller, Form
from cove.wire.signature import Signature, signature_of

_MOST_BODY_BYTES: Final = 64 << 20
_HELD_BYTES: Final = 1 << 20
PING_SECONDS: Final = 15.0
_JSON: Final = ((b"content-type", b"application/json"),)
_NO_SCRIPTS: Final = (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'")


@dataclass(frozen=True, slots=True)
class Route:
    """An operation, and how its arguments travel."""

    operation: AnyOperation
    signature: Signature

    def owner_ids(self, ids: list[str]) -> list[str]:
        """Return those ids in a path that name the object whose method is called."""
        return ids[: len(ids) - len(self.signature.in_path)]


class Node:
    """One segment of all paths: what may follow it, and the operations that end here, by verb."""

    __slots__ = ("below", "below_any", "routes")

    def __init__(self) -> None:
        self.below: dict[str, Node] = {}
        self.below_any: Node | None = None
        self.routes: dict[str, Route] = {}

    def caller(self, request: Request) -> Caller:
        """Return the right that the request needs; one with a wrong verb needs that of any other."""
        route = self._find(request) or next(iter(self.routes.values()))
        return route.operation.caller

    def choose(self, request: Request) -> Route:
        """Return the operation of the request's verb; MethodNotAllowed if there is none."""
        route = self._find(request)
        if route is None:
            allowed = allowed_methods(self.routes)
            raise MethodNotAllowed(f"{request.path} takes {', '.join(allowed)}, not {request.method}", allowed=allowed)
        return route

    def _find(self, request: Request) -> Route | None:
        return self.routes.get("GET" if request.method == "HEAD" else request.method)


class Routes:
    """All paths of some operations, as a tree."""

    def __init__(self, operations: Iterable[AnyOperation]) -> None:
        self._top = Node()
        for operation in operations:
            route = Route(operation, signature_of(operation))
            for path in operation.paths:
                self._add(path).routes[operation.verb] = route

    def match(self, path: str) -> tuple[Node | None, list[str]]:
        """Find where a path leads, and the ids in it as they came; None where no operation is."""
        node = self._top
        ids = []
        for segment in path.split("/")[1:]:
            following = node.below.get(segment)
            if following is None:
                following = node.below_any
                ids.append(segment)
                if following is None:
                    return None, ids
            node = following
        return node if node.routes else None, ids

    def _add(self, path: str) -> Node:
        node = self._top
        for segment in path.split("/")[1:]:
            if segment.startswith("{"):
                node.below_any = node = node.below_any or Node()
            else:
                node = node.below.setdefault(segment, Node())
        return node


@dataclass(slots=True)
class Call:
    """One call of an operation: the object whose method it is, and all arguments but those that are the body."""

    route: Route
    owner: object
    arguments: dict[str, object]
    request: Request

    def begin(self, **content: object) -> Any:  # what the method gives, which the operation's form says
        """Call the method."""
        return getattr(self.owner, self.route.operation.method)(**self.arguments, **content)


Responder = Callable[[Call], Awaitable[Answer]]


async def read_arguments(
    route: Route, ids: list[str], request: Request, most_bytes: int = _MOST_BODY_BYTES
) -> dict[str, object]:
    """The arguments in the path, in the query and in a body of JSON; ValidationFailed for what they cannot be."""
    operation, signature = route.operation, route.signature
    arguments: dict[str, object] = {}
    if operation.has_request and operation.has_query:
        arguments = decode_query(request.query, operation.request).arguments()
    elif operation.has_request:
        arguments = decode_json(await request.read(most_bytes) or b"{}", operation.request).arguments()
    if signature.in_path:
        arguments |= signature.read_path([unquote_text(id) for id in ids[-len(signature.in_path) :]])
    return arguments


async def _answer_value(call: Call, **content: object) -> Answer:
    value = await call.begin(**content)
    operation = call.route.operation
    if operation.reply is None:
        return Response(operation.status)
    answer = operation.answer
    return Response(operation.status, _JSON, encode_json(answer.encode(call.owner if answer.of_owner else value)))


async def _answer_upload(call: Call) -> Answer:
    return await _answer_value(call, **{call.route.signature.content: await call.request.read(_MOST_BODY_BYTES)})


async def _answer_stream(call: Call) -> Answer:
    return await _answer_value(call, **{call.route.signature.content: call.request.chunks()})


async def _answer_content(call: Call) -> Answer:
    chunks: AsyncGenerator[bytes, None] = call.begin()
    return await content_response(chunks, _HELD_BYTES)


async def _answer_events(call: Call) -> Answer:
    operation, headers = call.route.operation, call.request.headers
    if operation.has_cursor and (last := headers.get(b"last-event-id")):
        call.arguments["since"] = last.decode("latin-1")
    assert operation.answer.events is not None
    return _event_stream(call.begin(), operation.answer.events, headers.get(b"accept", b""))


def _event_stream(events: AsyncGenerator[Any, None], codec: EventCodec[Any], accept: bytes) -> Response:
    """Frames for whoever accepts them, server-sent events for all others."""
    if FRAMES.encode() in accept:
        body, media_type, ping = _write(events, codec.encode, encode_failure_frame), FRAMES, PING_FRAME
    else:
        body = _write(events, lambda event: (codec.encode_server_sent(event),), encode_failure_server_sent)
        media_type, ping = SERVER_SENT_EVENTS, PING_COMMENT
    headers = ((b"content-type", media_type.encode()), (b"cache-control", b"no-cache"))
    return Response(200, headers, body, Ping(ping, PING_SECONDS))


async def _write(
    events: AsyncGenerator[Any, None],
    encode: Callable[[Any], tuple[bytes, ...]],
    fail: Callable[[CoveError], bytes],
) -> AsyncGenerator[tuple[bytes, ...], None]:
    async with aclosing(events):
        try:
            async for event in events:
                yield encode(event)
        except CoveError as error:
            yield (fail(error),)


async def _answer_work(call: Call, **content: object) -> Answer:
    """Wait for the first event, so that what is refused has its own status; then tell, or wait for the result."""
    operation, accept = call.route.operation, call.request.headers.get(b"accept", b"")
    events: AsyncGenerator[Any, None] = call.begin(**content)
    assert operation.answer.events is not None
    try:
        last = await anext(events)
    except BaseException:
        await events.aclose()
        raise
    if FRAMES.encode() in accept or SERVER_SENT_EVENTS.encode() in accept:
        return _event_stream(_continued(last, events), operation.answer.events, accept)
    async with aclosing(events):
        async for last in events:  # noqa: B007  # only the last is wanted
            pass
    return Response(operation.status, _JSON, encode_json(operation.answer.encode(last)))


async def _continued(first: object, events: AsyncGenerator[Any, None]) -> AsyncGenerator[object, None]:
    async with aclosing(events):
        yield first
        async for event in events:
            yield event


async def _answer_stream_work(call: Call) -> Answer:
    return await _answer_work(call, **{call.route.signature.content: call.request.chunks()})


async def _answer_page(call: Call) -> Answer:
    media_type = call.route.operation.answer.media_type.encode()
    return Response(200, ((b"content-type", media_type), _NO_SCRIPTS), await call.begin())


RESPONDERS: Final[Mapping[Form, Responder]] = {
    Form.VALUE: _answer_value,
    Form.UPLOAD: _answer_upload,
    Form.STREAM: _answer_stream,
    Form.CONTENT: _answer_content,
    Form.EVENTS: _answer_events,
    Form.WORK: _answer_work,
    Form.STREAM_WORK: _answer_stream_work,
    Form.PAGE: _answer_page,
}
