"""Handles: what a client holds of something on a server. Their methods are derived from the table of operations.

A handle's class implements one of `cove.api`. For every row of its target it gets the method that the row names, with
the signature that `cove.api` declares: the arguments become the row's request, the answer becomes the method's value.
A method that a class writes itself is left alone: those that are made from other operations, that keep more than the
answer, or that open a connection.
"""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping
from contextlib import aclosing
from functools import wraps
from typing import Any, ClassVar, Final, Self, cast

import msgspec

from cove.client.calls import HANDLES, Calls
from cove.client.retry import Backoff
from cove.errors import ConnectionLost, Unreachable, ValidationFailed
from cove.model import Exit
from cove.wire import operations
from cove.wire.operation import AnyOperation, Form
from cove.wire.requests import Request
from cove.wire.signature import Signature, signature_of
from cove.wire.target import Target


class Handle:
    """Something on a server: the calls that reach it, and the facts that were known when it was last asked."""

    _ids: tuple[str, ...] = ()
    target: ClassVar[Target]

    def __init__(self, calls: Calls, facts: msgspec.Struct | None = None) -> None:
        self._calls = calls
        if facts is not None:
            self._take(facts)
        if self.target.ids:
            self._ids = (getattr(self, "id"),)  # noqa: B009  # what has an id has it from its facts

    def __init_subclass__(cls, *, target: Target) -> None:
        super().__init_subclass__()
        cls.target = target
        HANDLES[target] = cls.of
        for operation in operations.OPERATIONS:
            if operation.target is target and operation.method not in vars(cls) and operation.form in _METHODS:
                setattr(cls, operation.method, _derive(operation))

    @classmethod
    def of(cls, calls: Calls, facts: Any = None) -> Self:  # of the type that the target's operations answer
        """Make a handle: its class has all methods of the one in `cove.api`, which no type checker can see."""
        return cls(calls, facts)

    async def discard(self) -> None:
        """Remove what was made for a caller that will never hear of it."""
        raise NotImplementedError

    def _take(self, facts: msgspec.Struct) -> None:
        for name in facts.__struct_fields__:
            setattr(self, name, getattr(facts, name))


def _derive(operation: AnyOperation) -> Callable[..., object]:
    call = _METHODS[operation.form]

    @wraps(getattr(operation.target.kind, operation.method), updated=())  # nothing that says it is abstract
    def method(self: Handle, *arguments: object, **named: object) -> object:
        signature = signature_of(operation)
        return call(self, operation, signature, signature.bind(arguments, named))

    return method


def _request(operation: AnyOperation, arguments: dict[str, object]) -> Request | None:
    return operation.request.of(**arguments) if operation.has_request else None


async def _call(handle: Handle, operation: AnyOperation, signature: Signature, arguments: dict[str, object]) -> object:
    ids = (*handle._ids, *signature.take_path(arguments)) if signature.in_path else handle._ids
    content = _content(arguments.pop(signature.content)) if operation.takes_content else None
    facts = await handle._calls.facts(operation, *ids, request=_request(operation, arguments), content=content)
    if operation.answer.of_owner:
        handle._take(facts)
    return operation.answer.decode(facts, handle._calls.open)


async def _events(
    handle: Handle, operation: AnyOperation, signature: Signature, arguments: dict[str, object]
) -> AsyncGenerator[object, None]:
    """Follow a stream; where events have cursors, reconnect where a connection broke."""
    ids = (*handle._ids, *signature.take_path(arguments))
    request, backoff = _request(operation, arguments), Backoff()
    while True:
        events = handle._calls.events(operation, *ids, request=request)
        try:
            async with aclosing(events):
                async for event in events:
                    if request is not None and operation.has_cursor:
                        backoff.renew()
                        request = msgspec.structs.replace(request, since=getattr(event, "cursor"))  # noqa: B009
                    yield event
                    if isinstance(event, Exit):
                        return
            return
        except (ConnectionLost, Unreachable) as error:
            if not operation.has_cursor:
                raise
            await backoff.pause(error)


async def _work(
    handle: Handle, operation: AnyOperation, signature: Signature, arguments: dict[str, object]
) -> AsyncGenerator[object, None]:
    """Follow what the server does; ask again while it is away and nothing was sent."""
    ids = (*handle._ids, *signature.take_path(arguments))
    sent = _Sent(arguments.pop(signature.content)) if operation.takes_content else None
    request, backoff = _request(operation, arguments), Backoff()
    while True:
        try:
            async with aclosing(handle._calls.events(operation, *ids, request=request, content=sent)) as events:
                async for event in events:
                    yield event
            return
        except Unreachable as error:
            if sent is not None and sent.has_begun:
                raise
            await backoff.pause(error)


class _Sent:
    """Chunks that are sent once: `has_begun` when the first was asked for."""

    def __init__(self, chunks: object) -> None:
        self._chunks = _encoded(cast(AsyncIterable[object], chunks))
        self.has_begun = False

    def __aiter__(self) -> "_Sent":
        return self

    async def __anext__(self) -> bytes:
        self.has_begun = True
        return await anext(self._chunks)


async def _chunks(
    handle: Handle, operation: AnyOperation, signature: Signature, arguments: dict[str, object]
) -> AsyncGenerator[bytes, None]:
    """Ask again while the server is away, until the first byte: what comes later may be of another content."""
    ids = (*handle._ids, *signature.take_path(arguments))
    request, backoff, has_begun = _request(operation, arguments), Backoff(), False
    while True:
        try:
            async with aclosing(handle._calls.content(operation, *ids, request=request)) as chunks:
                async for chunk in chunks:
                    has_begun = True
                    yield chunk
            return
        except (ConnectionLost, Unreachable) as error:
            if has_begun:
                raise
            await backoff.pause(error)


_METHODS: Final[Mapping[Form, Callable[[Handle, AnyOperation, Signature, dict[str, object]], object]]] = {
    Form.VALUE: _call,
    Form.UPLOAD: _call,
    Form.STREAM: _call,
    Form.EVENTS: _events,
    Form.WORK: _work,
    Form.STREAM_WORK: _work,
    Form.CONTENT: _chunks,
}


def _content(data: object) -> bytes | AsyncIterable[bytes]:
    return _encoded(cast(AsyncIterable[object], data)) if isinstance(data, AsyncIterable) else encode_content(data)


async def _encoded(chunks: AsyncIterable[object]) -> AsyncGenerator[bytes, None]:
    async for chunk in chunks:
        yield encode_content(chunk)


def encode_content(data: object) -> bytes:
    """Bytes, or text as UTF-8; ValidationFailed for anything else."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    if not isinstance(data, str):
        raise ValidationFailed(f"data must be bytes or a string, not {type(data).__name__}")
    try:
        return data.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ValidationFailed(f"data has a character that UTF-8 cannot carry: {error.reason}") from None
