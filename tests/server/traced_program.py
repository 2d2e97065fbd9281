"""A program with a tracer provider of its own, that uses a server or sandboxes of its own; prints what it knows."""

import asyncio
import json
import os
import sys

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from cove import AsyncSandbox, JournalDetail, JournalKind
from cove.errors import CoveError


async def use(url: str | None) -> dict[str, object]:
    with trace.get_tracer("program").start_as_current_span("program") as span:
        async with AsyncSandbox.create(url=url, journal=JournalDetail.EVENTS) as sandbox:
            await sandbox.exec("echo canary-command; cat", env={"SECRET": "canary-variable"}, stdin=b"canary-input")
            await sandbox.files.write("file", "canary-content")
            refused = ""
            try:
                await sandbox.files.read_text("canary-missing")
            except CoveError as error:
                refused = error.code
            inside = (await sandbox.exec("env")).stdout
            events = [event async for event in sandbox.journal()]
    traces = {event.trace for event in events if event.kind is JournalKind.EXEC}
    return {
        "trace": trace.format_trace_id(span.get_span_context().trace_id),
        "span": trace.format_span_id(span.get_span_context().span_id),
        "journal": sorted(str(each) for each in traces),
        "refused": refused,
        "is_hidden": "OTEL_" not in inside,
    }


def main() -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=f"{sys.argv[1]}/v1/traces")))
    trace.set_tracer_provider(provider)
    print(json.dumps(asyncio.run(use(os.environ.get("COVE_URL")))))
    provider.shutdown()


if __name__ == "__main__":
    main()
