"""Make a span of every call of what a program or a server holds of a sandbox.

A class whose methods are calls is decorated by `traced`, outside its gate. Where nobody has loaded OpenTelemetry's API,
a call is passed on as it is. A stream has a span too, which is not the current one while its caller has the turn.
"""

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from functools import partial, wraps
from typing import TypeVar

from cove.core.journal import Actor
from cove.local.tracing import Attributes, end_span, has_current_span, is_loaded, trace_id, tracer
from cove.runtime.journal import ACTOR

T = TypeVar("T")
_Call = Callable[..., Coroutine[object, object, object]]
_Stream = Callable[..., AsyncGenerator[object, None]]


_is_served = False


def trace_requests_only() -> None:
    """Make spans in this process below those of requests only: what it does by itself is nobody's call."""
    global _is_served
    _is_served = True


def _makes_spans() -> bool:
    return is_loaded() and (not _is_served or has_current_span())


def traced(name: str, interface: type) -> Callable[[type[T]], type[T]]:
    """Make spans called `name.method` of the methods that an interface declares."""

    def decorate(kind: type[T]) -> type[T]:
        declared = {each for base in inspect.getmro(interface) for each in vars(base) if not each.startswith("_")}
        for each in sorted(declared):
            method = getattr(kind, each, None)
            if inspect.iscoroutinefunction(method) and not inspect.ismethod(method):
                setattr(kind, each, _traced_call(f"{name}.{each}", method))
            elif inspect.isasyncgenfunction(method):
                setattr(kind, each, _traced_stream(f"{name}.{each}", method))
        return kind

    return decorate


def _traced_call(name: str, method: _Call) -> _Call:
    @wraps(method)
    def call(self: object, *arguments: object, **named: object) -> Coroutine[object, object, object]:
        if not _makes_spans():
            return method(self, *arguments, **named)
        return _run(name, self, partial(method, self, *arguments, **named))

    return call


async def _run(name: str, owner: object, begin: Callable[[], Coroutine[object, object, object]]) -> object:
    """Run a call as the current span; what it writes into a journal has its trace, unless somebody else's is there.

    It begins in here: who is cancelled before that leaves no coroutine that was never awaited.
    """
    from opentelemetry.trace import use_span

    span = tracer().start_span(name, attributes=_attributes(owner))
    actor = ACTOR.get()
    token = None
    if actor.trace is None and (trace := trace_id(span)) is not None:
        token = ACTOR.set(Actor(actor.key, actor.client, trace))
    try:
        with use_span(span, record_exception=False, set_status_on_exception=False):
            result = await begin()
    except BaseException as error:
        end_span(span, error)
        raise
    finally:
        if token is not None:
            ACTOR.reset(token)
    end_span(span)
    return result


def _traced_stream(name: str, method: _Stream) -> _Stream:
    @wraps(method)
    def stream(self: object, *arguments: object, **named: object) -> AsyncGenerator[object, None]:
        items = method(self, *arguments, **named)
        return _follow(name, self, items) if _makes_spans() else items

    return stream


async def _follow(name: str, owner: object, items: AsyncGenerator[object, None]) -> AsyncGenerator[object, None]:
    span = tracer().start_span(name, attributes=_attributes(owner))
    try:
        async with aclosing(items):
            async for item in items:
                yield item
    except BaseException as error:
        end_span(span, error)
        raise
    end_span(span)


def _attributes(owner: object) -> Attributes:
    id = getattr(owner, "id", None)
    return {"cove.id": id} if isinstance(id, str) else {}
