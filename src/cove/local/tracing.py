"""Make spans by OpenTelemetry's API where the program has loaded it; import nothing and cost nothing where not.

A program that wants spans has imported the API to set its tracer provider. Spans say what was called and how it ended.
Of an error they have the code: its message may quote what a caller gave.
"""

import asyncio
import sys
from collections.abc import Mapping
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Final

from cove.errors import CoveError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

API: Final = "opentelemetry.trace"
TRACEPARENT: Final = "traceparent"
_CANCELLED: Final = "CANCELLED"

Attributes = Mapping[str, str | int]


def is_loaded() -> bool:
    """Return whether this program has a tracer provider: many load the API and set none."""
    api = sys.modules.get(API)
    return api is not None and not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)


@lru_cache(maxsize=1)
def tracer() -> "Tracer":
    """Return ours; it follows the provider that the program sets, also later."""
    from opentelemetry import trace

    return trace.get_tracer("cove")


class ClientSpan:
    """A call of a server, ended with what it raised; `headers` take it there. Others below it cannot see it."""

    __slots__ = ("_span", "headers")

    def __init__(self, name: str, attributes: Attributes) -> None:
        from opentelemetry.trace import SpanKind

        self._span = tracer().start_span(name, kind=SpanKind.CLIENT, attributes=attributes)
        self.headers = "".join(f"{name}: {value}\r\n" for name, value in headers_of(self._span).items()).encode()

    def __enter__(self) -> "ClientSpan":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        end_span(self._span, error)

    def answered(self, status: int) -> None:
        """Note the status of the answer."""
        self._span.set_attribute("http.response.status_code", status)


def headers_of(span: "Span") -> dict[str, str]:
    """Return the headers of W3C Trace Context that name a span as the parent; none for one of no trace."""
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers, set_span_in_context(span))
    return headers


def context_of(headers: Mapping[str, str]) -> "Context":
    """Return the context that those headers name, and nothing of this task's own."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(headers, Context())


def trace_id(span: "Span") -> str | None:
    """Return the id of its trace, as journals have it."""
    from opentelemetry.trace import format_trace_id

    context = span.get_span_context()
    return format_trace_id(context.trace_id) if context.is_valid else None


def end_span(span: "Span", error: BaseException | None = None) -> None:
    """End a span, with the code of what was raised; who leaves a stream has seen no error."""
    if error is not None and not isinstance(error, GeneratorExit):
        fail_span(span, code_of(error))
    span.end()


def fail_span(span: "Span", code: str) -> None:
    """Say that what a span stands for has failed."""
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR, code))


def code_of(error: BaseException) -> str:
    """Return what a span says of an error."""
    if isinstance(error, CoveError):
        return error.code
    return _CANCELLED if isinstance(error, asyncio.CancelledError) else type(error).__name__


def has_current_span() -> bool:
    """Return whether the current task works below a span, of this process or another."""
    from opentelemetry.trace import get_current_span

    return bool(get_current_span().get_span_context().is_valid)


def annotate(attributes: Attributes) -> None:
    """Add to the span that the current task works in, while it lasts."""
    from opentelemetry.trace import get_current_span

    span = get_current_span()
    if span.is_recording():
        span.set_attributes(attributes)
