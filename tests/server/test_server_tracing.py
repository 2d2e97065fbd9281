"""Spans, from a program through the gateway to the runtime, as a receiver of OTLP sees them."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.otlp import Received, Receiver, receiving
from support.servers import eventually, serving

pytestmark = pytest.mark.anyio

PROGRAM = Path(__file__).with_name("traced_program.py")
CANARIES = (b"canary-command", b"canary-variable", b"canary-input", b"canary-content", b"canary-header")
EXEC = "POST /v1/sandboxes/{sandbox}/exec"
READ = "GET /v1/sandboxes/{sandbox}/files/content"


@pytest.fixture
def exporting(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=canary-header")
    return monkeypatch


async def run(receiver: Receiver, **environment: str) -> dict[str, object]:
    command = [sys.executable, str(PROGRAM), receiver.url]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")} | environment
    end = await asyncio.to_thread(subprocess.run, command, env=variables, capture_output=True, text=True, timeout=60)
    assert end.returncode == 0, end.stderr
    found = json.loads(end.stdout)
    assert isinstance(found, dict)
    return found


def below(spans: list[Received], parent: str) -> Received:
    (found,) = [span for span in spans if span.parent == parent]
    return found


async def test_a_call_is_one_trace_from_the_program_to_the_runtime(
    other_home: Path, exporting: pytest.MonkeyPatch
) -> None:
    with receiving() as receiver:
        exporting.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        exporting.setenv("OTEL_SERVICE_NAME", "sandboxes")
        with serving(other_home) as server:
            said = await run(receiver, COVE_URL=server.url, COVE_API_KEY=server.key)
            await eventually(lambda: len(receiver.find("runtime", "sandbox.exec")) == 2)
        assert (said["refused"], said["is_hidden"]) == ("FILE_NOT_FOUND", True)
        assert {span.trace for span in receiver.spans} == {said["trace"]} == {*said["journal"]}  # type: ignore[misc]
        for call in receiver.find("client", EXEC):
            assert call.parent == said["span"]
            assert call.attributes["http.response.status_code"] == "200"
            served = below(receiver.find("gateway", EXEC), call.id)
            assert (served.attributes["http.route"], served.attributes["cove.operation"]) == (EXEC[5:], "exec")
            done = below(receiver.find("runtime", "sandbox.exec"), served.id)
            assert done.attributes["process.exit.code"] == "0"
            assert "process.command_line" not in done.attributes
        (call,) = receiver.find("client", READ)
        served = below(receiver.find("gateway", READ), call.id)
        assert (call.is_error, call.attributes["error.type"]) == (True, "FILE_NOT_FOUND")
        assert (served.is_error, served.attributes["error.type"]) == (False, "FILE_NOT_FOUND")
        assert not [canary for canary in CANARIES if canary in receiver.data]


async def test_a_sandbox_in_the_program_makes_spans_of_its_own(cove_home: Path) -> None:
    with receiving() as receiver:
        said = await run(receiver, COVE_HOME=str(cove_home))
        done = receiver.find("client", "sandbox.exec")
        assert len(done) == 2
        assert {span.parent for span in done} == {said["span"]}
        assert said["journal"] == [said["trace"]]
        (read,) = receiver.find("client", "files.read_text")
        assert read.is_error
        assert not [canary for canary in CANARIES if canary in receiver.data]


async def test_a_receiver_that_hangs_or_is_down_holds_up_nothing(
    other_home: Path, exporting: pytest.MonkeyPatch
) -> None:
    """It takes connections and never answers: calls go on, and a server that stops does not wait for it."""
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        exporting.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{hanging.getsockname()[1]}")
        with serving(other_home) as server:
            sandbox = await server.create("x")
            for _ in range(3):
                assert (await sandbox.exec("echo fine")).stdout == "fine\n"
            await sandbox.destroy()
            server.process.terminate()
            began = time.monotonic()
            await asyncio.to_thread(server.process.wait, 30)
            assert time.monotonic() - began < 14  # the SDK would wait for 30, and a worker is killed after 15


def test_a_server_says_that_it_cannot_export_and_serves(other_home: Path, exporting: pytest.MonkeyPatch) -> None:
    exporting.setenv("OTEL_TRACES_EXPORTER", "nowhere")
    with serving(other_home) as server:
        assert server.process.poll() is None


def test_without_spans_nothing_of_opentelemetry_is_imported() -> None:
    program = (
        "import cove, sys, cove.server.supervisor, cove.server.runtime.zygote, cove.client.provider;"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    end = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert end.stdout == "[]\n"
