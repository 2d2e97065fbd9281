"""Requests that nobody would write: whatever a client sends, the server answers in time, never with a fault of its own.

Requests are made from the OpenAPI document: by its schemas, by what is nearly right, and by what is nothing at all.
"""

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import quote

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from support.servers import Server, left_behind
from support.serving import address
from yarl import URL

from cove import AsyncSandbox
from cove.errors import CoveError
from cove.wire.openapi import make_document

pytestmark = pytest.mark.pure

Schema = dict[str, object]

ANSWERS_WITHIN = 10.0
EXAMPLES = int(os.environ.get("COVE_FUZZ_EXAMPLES", "6"))
DOCUMENT = make_document("0")
SCHEMAS = cast(dict[str, Schema], cast(Schema, DOCUMENT["components"])["schemas"])
ROUTES = [
    (verb.upper(), path, described)
    for path, verbs in cast(dict[str, dict[str, Schema]], DOCUMENT["paths"]).items()
    for verb, described in verbs.items()
]


def group_of(path: str, described: Schema) -> str:
    """Which routes are asked in one sandbox."""
    tags = cast(list[str], described.get("tags", ["bridge"]))
    return f"{tags[0]} of a session" if "{session}/files" in path else tags[0]


OF_THE_COMMAND = {
    "SPAWN_FAILED",
    "PROCESS_EXITED_BEFORE_READY",
    "GIT_FAILED",
}  # answered with 500, and no fault of ours
ENDS_THE_SANDBOX = {"DELETE /v1/sandboxes/{sandbox}", "DELETE /v1/sandbox/{id}", "POST /v1/sandboxes/{sandbox}/restart"}
MAY_WAIT = ("/wait", "/output", "/logs", "/wait_for_log", "/wait_for_port", "/watch", "/stdin", "/connect", "/pty")
OWN_IDS = {"process": "p", "session": "s", "terminal": "t", "context": "c", "sid": "s", "port": "3000"}

odd_text = st.text(st.characters(codec=None), max_size=20) | st.sampled_from(
    [
        "",
        ".",
        "..",
        "../..",
        "/",
        "a/b",
        "%2e%2e",
        "%00",
        "\0",
        "\ud800",
        "\udcff",
        "ü",
        "x" * 300,
        "-1",
        "1e999",
        "null",
    ]
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | odd_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(odd_text, inner, max_size=3),
    max_leaves=6,
)
paths = st.sampled_from(
    ["file", "d", ".", "/etc", "/tmp/x", "../../etc/passwd", "/proc/self/mem", "/dev/zero", "fifo", "d/"]
)
odd_names = odd_text.filter(lambda text: text.strip("/.")) | st.just("")  # whoever removes the root ends the sandbox
by_name: dict[str, SearchStrategy[object]] = {
    "timeout": st.sampled_from([0, 0.01, 0.1]),
    "grace": st.sampled_from([0, 0.01]),
    "command": st.sampled_from(["true", "echo $0; exit 3", "cat", ["printf", "\\377"], "'", "kill -9 $$"]) | odd_text,
    "code": st.sampled_from(["1 + 1", "1/0", "print('x')", "if"]) | odd_text,
    "signal": st.sampled_from(["TERM", "SIGKILL", 9, 0, 65, "x", -1]),
    "language": st.sampled_from(["python", "javascript", "cobol", ""]),
    "since": st.sampled_from(["0", "1", "-1", "x", "9" * 40, "1:2"]) | odd_text,
    "lifetime": st.sampled_from([60.0, None, -1]),
    "mode": st.sampled_from([0o755, 0o7777, 0o10000, -1, 10**30]),  # a root that nobody may enter ends the sandbox
    **dict.fromkeys(("path", "source", "destination", "old", "new", "root", "cwd", "workdir"), paths | odd_names),
    **dict.fromkeys(("cols", "rows"), st.sampled_from([1, 80, 1000, 0, 1001, -1, 10**30])),
}


SCALARS: dict[str, SearchStrategy[object]] = {
    "integer": st.integers() | st.integers(0, 5000),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "null": st.none(),
    "string": odd_text,
}


def from_schema(schema: Schema, name: str = "") -> SearchStrategy[object]:
    """Values that the schema describes; some fields are chosen by hand, so that they mean something."""
    if name in by_name:
        return by_name[name]
    if "$ref" in schema:
        return from_schema(SCHEMAS[str(schema["$ref"]).rpartition("/")[2]], name)
    if "anyOf" in schema:
        return st.one_of([from_schema(each, name) for each in cast(list[Schema], schema["anyOf"])])
    if "enum" in schema:
        return st.sampled_from(cast(list[object], schema["enum"]))
    made = {"object": _objects, "array": _arrays}.get(str(schema.get("type")))
    return made(schema) if made is not None else SCALARS.get(str(schema.get("type")), anything)


def _objects(schema: Schema) -> SearchStrategy[object]:
    properties = {
        name: from_schema(each, name) for name, each in cast(dict[str, Schema], schema.get("properties", {})).items()
    }
    if not properties:
        values = schema.get("additionalProperties")
        return st.dictionaries(odd_text, from_schema(values) if isinstance(values, dict) else anything, max_size=3)
    required = set(cast(list[str], schema.get("required", []))) | ({"timeout"} & set(properties))
    return st.fixed_dictionaries(
        {name: strategy for name, strategy in properties.items() if name in required},
        optional={name: strategy for name, strategy in properties.items() if name not in required},
    )


def _arrays(schema: Schema) -> SearchStrategy[object]:
    if "prefixItems" in schema:
        return st.tuples(*map(from_schema, cast(list[Schema], schema["prefixItems"])))
    items = schema.get("items")
    return st.lists(from_schema(items) if isinstance(items, dict) else anything, max_size=3)


@dataclass
class Asked:
    """One request."""

    path: str
    query: str
    body: bytes | None


@st.composite
def requests_for(draw: st.DrawFn, verb: str, path: str, described: Schema, sandbox: str) -> Asked:
    parameters = cast(list[Schema], described.get("parameters", []))
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    for name in names:
        path = path.replace("{" + name + "}", draw(_path_parts(name, sandbox, f"{verb} {path}")))
    query = {
        str(each["name"]): draw(from_schema(cast(Schema, each["schema"]), str(each["name"])))
        for each in parameters
        if each["in"] == "query" and (each.get("required") or draw(st.booleans()))
    }
    pairs = [(name, _as_text(value)) for name, value in query.items() if value is not None]
    pairs += draw(st.lists(st.tuples(odd_text, odd_text), max_size=1))
    content = cast(dict[str, Schema], cast(Schema, described.get("requestBody", {})).get("content", {}))
    return Asked(
        path, "&".join(f"{_quote(name)}={_quote(value)}" for name, value in pairs), draw(_bodies(path, content))
    )


def _path_parts(name: str, sandbox: str, route: str) -> SearchStrategy[str]:
    if name in ("sandbox", "id"):
        own = st.just(sandbox) if route not in ENDS_THE_SANDBOX else st.nothing()
        return own | st.sampled_from(["unknown", "UPPER", "%2e%2e", "a%00b", "%ff", "x" * 200])
    known = st.just(OWN_IDS[name]) if name in OWN_IDS else paths.map(_quote)
    return known | odd_text.map(_quote)


def _bodies(path: str, content: dict[str, Schema]) -> SearchStrategy[bytes | None]:
    if not content:
        return st.none() | st.binary(max_size=20)
    if "application/json" not in content:
        return st.binary(max_size=2000)
    valid = from_schema(cast(Schema, content["application/json"].get("schema", {})))
    wrong = st.tuples(valid, odd_text, anything).map(_spoil)
    garbage = st.binary(min_size=1, max_size=50) | st.sampled_from([b"[" * 100_000, b"{}" * 3, b"nul", b'"', b"\xff"])
    encoded = (valid | wrong | anything.filter(lambda value: value not in ({}, None))).map(_encode)
    empty = st.nothing() if path.endswith(MAY_WAIT) else st.sampled_from([None, b"", b"{}"])
    return encoded | encoded | garbage | empty


def _spoil(parts: tuple[object, str, object]) -> object:
    """One field of another type, or one too many."""
    value, name, other = parts
    if not isinstance(value, dict):
        return value
    fields = sorted(set(value) - {"timeout"})
    return {**value, (fields[len(name) % len(fields)] if fields and len(name) % 2 else name): other}


def _encode(value: object) -> bytes:
    return json.dumps(value).encode()


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _quote(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


async def furnish(sandbox: AsyncSandbox) -> None:
    """What requests can be about; most of it may be there."""
    await sandbox.start()
    await sandbox.exec("mkdir -p d; echo text > file; [ -e fifo ] || mkfifo fifo")
    await sandbox.cleanup_processes()
    for make in (
        lambda: sandbox.start_process("cat", id="p", stdin=True),
        lambda: sandbox.create_session(id="s"),
        lambda: sandbox.terminal(id="t", shell=["cat"]),
        lambda: sandbox.create_code_context(id="c"),
    ):
        with suppress(CoveError):
            await make()


@contextmanager
def fuzzed(server: Server, *, is_stopped: bool = False) -> Iterator[tuple[asyncio.Runner, AsyncSandbox]]:
    """A loop and a sandbox, which are as they should be in the end; with the sandboxes that were made by the way.

    A sandbox that is stopped by the way has another runtime in the end.
    """
    with asyncio.Runner() as runner:
        sandbox = runner.run(server.create())
        runtime = runner.run(server.runtime(sandbox.id))
        try:
            yield runner, sandbox
            runner.run(sandbox.start())
            assert is_stopped or runner.run(server.runtime(sandbox.id)) == runtime
            assert runner.run(sandbox.exec("echo alive")).stdout == "alive\n"
            assert sorted(server.children().values()) == ["worker", "worker", "zygote"]
            assert "Traceback" not in runner.run(log_of(server, sandbox)).read_text()
        finally:
            runner.run(destroy_all(server))
            runner.run(sandbox.detach())
    assert left_behind(server.home) == []


async def log_of(server: Server, sandbox: AsyncSandbox) -> Path:
    return server.directory.place((await server.record(sandbox.id)).key) / "runtime.log"


async def destroy_all(server: Server) -> None:
    for info in await AsyncSandbox.list(**address(server)):
        async with AsyncSandbox.connect(info.id, **address(server)) as sandbox:
            await sandbox.destroy()


async def send(server: Server, verb: str, asked: Asked) -> tuple[int, bytes]:
    """The answer's status and beginning; whoever would stream on is left."""
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    target = URL(f"{server.url}{asked.path}" + (f"?{asked.query}" if asked.query else ""), encoded=True)
    async with (
        asyncio.timeout(ANSWERS_WITHIN),
        aiohttp.ClientSession(headers=headers) as client,
        client.request(verb, target, data=asked.body, allow_redirects=False) as answer,
    ):
        body = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05 if answer.status == 200 else ANSWERS_WITHIN):
                body = await answer.content.read(1 << 20)
        return answer.status, body


def check(status: int, body: bytes, asked: Asked) -> None:
    if status < 400 or not asked.path.startswith("/v1/sandboxes"):
        assert status < 500 or status in (501, 502, 503), (status, body, asked)
        return
    error = json.loads(body)
    assert isinstance(error["error"], str), asked
    assert status != 500 or error["code"] in OF_THE_COMMAND, (error, asked)
    assert status != 503 or error["code"] != "SANDBOX_UNAVAILABLE", (error, asked)


@pytest.mark.parametrize("group", sorted({group_of(path, described) for _, path, described in ROUTES}))
def test_every_operation_answers_whatever_it_is_asked(group: str, shared_server: Server) -> None:
    with fuzzed(shared_server, is_stopped=group == "sandbox") as (runner, sandbox):
        for verb, path, described in ROUTES:
            if group_of(path, described) == group:
                runner.run(furnish(sandbox))
                requests = requests_for(verb, path, described, sandbox.id)
                ask(runner, shared_server, verb, requests.filter(lambda asked: not ends_soon(asked)))


def ends_soon(asked: Asked) -> bool:
    """Return whether a sandbox would be gone before it was asked for all the rest."""
    try:
        return asked.path.endswith("/lifetime") and 0 < float(json.loads(asked.body or b"")["seconds"]) < 3600
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return False


def ask(runner: asyncio.Runner, server: Server, verb: str, requests: SearchStrategy[Asked]) -> None:
    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), database=None)
    @given(asked=requests)
    def one(asked: Asked) -> None:
        check(*runner.run(send(server, verb, asked)), asked)

    one()


messages = st.lists(
    st.binary(max_size=100)
    | odd_text.map(lambda text: text.encode("utf-8", "replace").decode())
    | anything.map(json.dumps)
    | st.builds(lambda cols, rows: json.dumps({"type": "resize", "cols": cols, "rows": rows}), anything, anything)
    | st.builds(lambda cols: json.dumps({"type": "resize", "cols": cols, "rows": 24}), st.integers()),
    max_size=5,
)


@pytest.mark.parametrize("path", ["/v1/sandboxes/{id}/terminals/t/connect", "/v1/sandbox/{id}/pty"])
def test_a_terminal_takes_or_refuses_any_message(path: str, shared_server: Server) -> None:
    with fuzzed(shared_server) as (runner, sandbox):
        runner.run(furnish(sandbox))

        @settings(max_examples=EXAMPLES * 2, suppress_health_check=list(HealthCheck), database=None)
        @given(messages=messages)
        def talk(messages: list[bytes | str]) -> None:
            runner.run(_say(shared_server, path.format(id=sandbox.id), messages))

        talk()


async def _say(server: Server, path: str, messages: list[bytes | str]) -> None:
    headers = {"Authorization": f"Bearer {server.key}"}
    async with (
        asyncio.timeout(ANSWERS_WITHIN),
        aiohttp.ClientSession(headers=headers) as client,
        client.ws_connect(f"{server.url}{path}", max_msg_size=0) as socket,
    ):
        for message in messages:
            with suppress(ConnectionResetError):  # it was refused
                await (socket.send_bytes(message) if isinstance(message, bytes) else socket.send_str(message))
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                async for _ in socket:
                    pass
        await socket.close()
    assert socket.close_code != 1011
