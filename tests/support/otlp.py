"""A receiver of spans by OTLP over HTTP, on this machine."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Received:
    """One span, and the role of the process that made it."""

    role: str
    name: str
    trace: str
    id: str
    parent: str
    is_error: bool
    attributes: dict[str, str]


@dataclass
class Receiver:
    """What has come, as spans and as bytes."""

    url: str = ""
    spans: list[Received] = field(default_factory=list)
    data: bytes = b""

    def take(self, data: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(data)
        self.data += data
        for each in request.resource_spans:
            resource = {pair.key: pair.value.string_value for pair in each.resource.attributes}
            for scope in each.scope_spans:
                self.spans += [
                    Received(
                        resource.get("cove.role", "client"),
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.status.code == 2,
                        {pair.key: pair.value.string_value or str(pair.value.int_value) for pair in span.attributes},
                    )
                    for span in scope.spans
                ]

    def find(self, role: str, name: str) -> list[Received]:
        return [span for span in list(self.spans) if (span.role, span.name) == (role, name)]


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiver.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
