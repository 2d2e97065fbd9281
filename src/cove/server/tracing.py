"""Export the spans of a server's processes: set up OpenTelemetry's SDK by its own variables, and tell who asks whom.

Each process exports its own, in a thread that the SDK has for that. A span waits in a bounded queue, so that a receiver
that is down or hangs holds up no call, and costs a process that ends no more than a moment.
"""

import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, cast

from cove.http import Answer, Handler, Request
from cove.local.extras import install_command
from cove.local.tracing import TRACEPARENT, context_of, end_span, fail_span, headers_of, tracer
from cove.wire.operation import AnyOperation

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

_GROUP: Final = "opentelemetry_traces_exporter"
_EXPORTERS: Final = "OTEL_TRACES_EXPORTER"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_OTLP: Final = "otlp"
_HEADERS: Final = (TRACEPARENT.encode(), b"tracestate")

Stop = Callable[[float], None]


def is_configured(environment: Mapping[str, str]) -> bool:
    """Return whether the variables of OpenTelemetry say that spans are to be exported."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    wanted = environment.get(_EXPORTERS, "").strip()
    return wanted != "none" if wanted else any(environment.get(name) for name in _ENDPOINTS)


def find_problem(environment: Mapping[str, str]) -> str | None:
    """Return why spans that are to be exported cannot be; None where all is well, or nothing is to be."""
    if not is_configured(environment):
        return None
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        return f"no spans are exported: OpenTelemetry is not installed: `{install_command('otel')}`"
    for name in _exporter_names(environment):
        if not _find_exporters(name):
            command = install_command("otel")
            return f"no spans are exported: there is no exporter {name}: `{command}`, or change {_EXPORTERS}"
    return None


def start_tracing(role: str) -> Stop | None:
    """Export the spans of this process from here on, and return what ends that within some seconds. Blocks.

    Nothing is done, and None returned, where that is not configured or cannot be.
    """
    if not is_configured(os.environ) or find_problem(os.environ) is not None:
        return None
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create(_resource(role)), shutdown_on_exit=False)
    for name in _exporter_names(os.environ):
        for entry in _find_exporters(name):
            make = cast("Callable[[], SpanExporter]", entry.load())
            provider.add_span_processor(BatchSpanProcessor(make()))
    trace.set_tracer_provider(provider)

    def stop(seconds: float) -> None:
        """Export what is left in a thread of its own: a process that ends waits for no receiver."""
        thread = threading.Thread(target=provider.shutdown, daemon=True)
        thread.start()
        thread.join(seconds)

    return stop


def preload() -> None:
    """Import what tracing needs, so that processes that are forked have it. Blocks."""
    if is_configured(os.environ) and find_problem(os.environ) is None:
        import opentelemetry.sdk.resources
        import opentelemetry.sdk.trace.export  # noqa: F401

        for name in _exporter_names(os.environ):
            for entry in _find_exporters(name):
                entry.load()


def _resource(role: str) -> dict[str, str | int]:
    """Return what all spans of this process have; the name of the service is the user's choice first."""
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return {"cove.role": role, "process.pid": os.getpid(), **({} if named else {"service.name": "cove"})}


def _exporter_names(environment: Mapping[str, str]) -> Iterator[str]:
    for name in (environment.get(_EXPORTERS) or _OTLP).split(","):
        if name.strip() != _OTLP:
            yield name.strip()
            continue
        protocol = next((environment[each] for each in _PROTOCOLS if environment.get(each)), "http/protobuf")
        yield f"{_OTLP}_proto_{protocol.partition('/')[0]}"


def _find_exporters(name: str) -> list[EntryPoint]:
    return list(entry_points(group=_GROUP, name=name))[:1]


def with_server_span(handler: Handler) -> Handler:
    """Return the handler, with a span for each request, below the one that the client names; whoever is asked further
    is named this one."""
    from opentelemetry.trace import SpanKind

    def handle(request: Request) -> Answer | Coroutine[object, object, Answer]:
        parent = context_of(_headers(request))
        request.trace = span = tracer().start_span(
            request.method, context=parent, kind=SpanKind.SERVER, attributes={"http.request.method": request.method}
        )
        named = [(name.encode(), value.encode()) for name, value in headers_of(span).items()]
        request.headers.update(named)
        request.raw_headers[:] = [*(each for each in request.raw_headers if each[0].lower() not in _HEADERS), *named]
        return handler(request)

    return handle


def with_remote_parent(handler: Handler) -> Handler:
    """Return the handler, whose spans are below the one that a request names: the task that answers is made then."""
    from opentelemetry.context import attach

    def handle(request: Request) -> Answer | Coroutine[object, object, Answer]:
        attach(context_of(_headers(request)))
        return handler(request)

    return handle


def end_server_span(request: Request, operation: AnyOperation | None, status: int, code: str) -> None:
    """End the span of a request: by HTTP's conventions only what the server is to blame for has failed."""
    span = cast("Span", request.trace)
    path = request.path
    if operation is not None:
        span.update_name(f"{request.method} {operation.paths[0]}")
        span.set_attributes({"http.route": operation.paths[0], "cove.operation": operation.name})
    span.set_attributes({"url.path": path, "url.scheme": "http", "http.response.status_code": status})
    if request.owner:
        span.set_attribute("cove.owner", request.owner)
    if status >= 500:
        fail_span(span, code)
    elif status >= 400:
        span.set_attribute("error.type", code)
    end_span(span)


def _headers(request: Request) -> dict[str, str]:
    found = ((name, request.headers.get(name)) for name in _HEADERS)
    return {name.decode(): value.decode("latin-1") for name, value in found if value is not None}
