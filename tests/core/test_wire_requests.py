"""Arguments of a call: checked by the client, carried as a request, given back by the server."""

import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from cove import api
from cove.errors import ValidationFailed
from cove.model import CodeEvent, Execution, Limits, Network, NetworkPolicy, SnapshotInfo
from cove.wire import operations, requests
from cove.wire.coding import decode_query, encode_query
from cove.wire.operation import AnyOperation, Form
from cove.wire.operations import OPERATIONS
from cove.wire.requests import Request
from cove.wire.signature import signature_of

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (requests.Exec, {"command": "ls", "env": {"A": "1", "B": None}, "timeout": 5.0}),
        (requests.Exec, {"command": ["ls", "-l"], "stdin": "text", "max_output": 0}),
        (requests.Exec, {"command": "cat", "stdin": b"\xff"}),
        (requests.StartProcess, {"command": "x", "env": None, "timeout": None}),
        (requests.Terminate, {"grace": 0.5}),
        (requests.OpenTerminal, {"shell": None}),
        (requests.Watch, {"include": ["*.py"], "exclude": []}),
        (requests.AddToRepository, {"paths": None}),
        (requests.AddToRepository, {"paths": ["a"]}),
        (requests.RunCode, {"code": "1", "context": "c"}),
        (requests.WaitForLog, {"pattern": "ready", "timeout": 1.0}),
        (requests.WaitForLog, {"pattern": re.compile("a.b", re.IGNORECASE), "timeout": None}),
        (requests.CreateSandbox, {"id": "abc", "exist_ok": True}),
    ],
)
def test_a_server_calls_with_the_arguments_that_the_client_was_given(
    kind: type[Request], arguments: dict[str, object]
) -> None:
    arrived = kind.of(**arguments).arguments()
    for name, value in arguments.items():
        assert arrived[name] == (tuple(value) if isinstance(arrived[name], tuple) else value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (requests.Exec, {"command": b"ls"}, "command must be a string or a list"),
        (requests.Exec, {"command": 5}, "command must be a string or a list"),
        (requests.Exec, {"command": ["ls", 5]}, "Expected"),
        (requests.Exec, {"command": "ls", "env": {"A B": "1"}}, "A B"),
        (requests.Exec, {"command": "ls", "timeout": -1}, "timeout"),
        (requests.Exec, {"command": "ls", "stdin": 5}, "Expected"),
        (requests.Terminate, {"grace": None}, "grace must be"),
        (requests.Terminate, {"grace": float("inf")}, "grace must be"),
        (requests.AddToRepository, {"paths": "a"}, "a list of strings"),
        (requests.Watch, {"exclude": {"a"}}, "a list of strings"),
        (requests.CreateSandbox, {"id": "A_B"}, "sandbox id"),
        (requests.FilePath, {"path": 5}, "Expected"),
    ],
)
def test_what_cannot_travel_is_refused_by_the_client(
    kind: type[Request], arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ValidationFailed, match=re.escape(message)):
        kind.of(**arguments)


@dataclass
class Held(api.CodeContext):
    """A context in the hands of a client."""

    id: str
    language: str = "python"

    async def run(self, code: str, *, timeout: float | None = None) -> Execution:
        raise NotImplementedError

    def stream(self, code: str, *, timeout: float | None = None) -> AsyncGenerator[CodeEvent, None]:
        raise NotImplementedError

    async def fork(self, count: int = 1, *, force: bool = False) -> list[api.CodeContext]:
        raise NotImplementedError

    async def interrupt(self) -> None:
        raise NotImplementedError

    async def delete(self) -> None:
        raise NotImplementedError


def test_a_context_travels_as_its_id() -> None:
    assert requests.RunCode.of(code="1", context=Held("c")).context == "c"


def test_an_expression_that_is_too_long_is_refused_before_it_is_compiled() -> None:
    with pytest.raises(ValidationFailed, match="longer than 65536"):
        requests.WaitForLog(pattern="x" * 65537, is_expression=True).arguments()


@pytest.mark.parametrize(
    ("request_", "makes_new"),
    [
        (requests.Exec(command="x"), True),
        (requests.CreateSandbox(), True),
        (requests.CreateSandbox(id="a"), True),
        (requests.CreateSandbox(exist_ok=True), True),
        (requests.CreateSandbox(id="a", exist_ok=True), False),
        (requests.OpenTerminal(), True),
        (requests.OpenTerminal(id="t"), False),
    ],
)
def test_what_may_have_been_there_before_is_not_the_callers_alone(request_: Request, makes_new: bool) -> None:
    assert request_.makes_new == makes_new


def test_arguments_are_bound_by_place_and_by_name() -> None:
    signature = signature_of(operations.EXEC)
    assert signature.bind(["ls"], {"timeout": 5}) == {"command": "ls", "timeout": 5}


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        ([], {}, "missing a required argument: 'command'"),
        (["ls"], {"command": "ls"}, "multiple values for argument 'command'"),
        (["ls"], {"nope": 1}, "unexpected keyword argument 'nope'"),
        (["ls", *range(20)], {}, "too many positional arguments"),
    ],
)
def test_arguments_that_do_not_fit_raise_as_the_method_would(
    arguments: list[object], named: dict[str, object], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        signature_of(operations.EXEC).bind(arguments, named)


def with_port() -> AnyOperation:
    return next(row for row in OPERATIONS if signature_of(row).in_path == {"port": int})


def test_arguments_in_a_path_are_written_and_read() -> None:
    signature = signature_of(with_port())
    arguments: dict[str, object] = {"port": 8080, "token": "t"}
    assert signature.take_path(arguments) == ["8080"]
    assert arguments == {"token": "t"}
    assert signature.read_path(["8080"]) == {"port": 8080}


@pytest.mark.parametrize("port", ["8080", True, None])
def test_an_argument_in_a_path_has_its_type(port: object) -> None:
    with pytest.raises(ValidationFailed, match="port must be int"):
        signature_of(with_port()).take_path({"port": port})


def test_a_path_with_something_else_in_it_is_refused() -> None:
    with pytest.raises(ValidationFailed, match="port must be int, not 'x'"):
        signature_of(with_port()).read_path(["x"])
    with pytest.raises(ValidationFailed, match="port must be int"):
        signature_of(with_port()).read_path(["\udced\udca0"])


def test_a_document_has_no_arguments() -> None:
    for page in (row for row in OPERATIONS if row.form is Form.PAGE):
        signature = signature_of(page)
        assert signature.bind([], {}) == {}
        assert signature.read_path([]) == {}


def test_a_snapshot_travels_by_its_id() -> None:
    snapshot = SnapshotInfo(id="s", created_at=datetime.now(UTC))
    for given in ("s", snapshot):
        assert requests.Restore.of(snapshot=given).arguments() == {"snapshot": "s"}
        assert requests.DiffSince.of(path="a", since=given).arguments() == {"path": "a", "since": "s"}
    assert requests.Since.of().arguments() == {"since": None}


def test_objects_in_a_query_are_json() -> None:
    request = requests.BuildImage(
        name="{not an object",
        build_args={"A": "{b}"},
        network=NetworkPolicy(allow=["a.example"]),
        limits=Limits(pids=7),
    )
    query = encode_query(request)
    assert decode_query(query, requests.BuildImage) == request
    assert decode_query("network=none&cache=false", requests.BuildImage).network is Network.NONE
    for query, says in (
        ("limits={", "limits is not valid JSON"),
        ('limits={"pid":1}', "unknown field `pid`"),
        ('limits={"pids":"many"}', "limits.pids"),
        ("absent={}", "unknown field `absent`"),
        ("build_args=text", "build_args"),
    ):
        with pytest.raises(ValidationFailed, match=says):
            decode_query(query, requests.BuildImage)


def test_a_plain_value_of_a_query_may_look_like_an_object() -> None:
    assert decode_query("a=%7B", dict[str, str]) == {"a": "{"}
