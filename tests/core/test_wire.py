import inspect
import json
import re
from datetime import UTC, datetime
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cove import errors
from cove.errors import CoveError, Internal, SessionTerminated, ValidationFailed
from cove.model import (
    BuildOutput,
    BuildStep,
    Display,
    Done,
    ExecResult,
    Exit,
    FileEvent,
    FileEventKind,
    Gap,
    ImageInfo,
    ImageMade,
    NetworkPolicy,
    NetworkRule,
    Outcome,
    Output,
    Ready,
    Result,
    SandboxSpec,
    Secret,
    Text,
    TransferProgress,
    VolumeMount,
)
from cove.wire import frames, operations, replies, requests
from cove.wire.coding import (
    decode_json,
    decode_query,
    encode_json,
    encode_query,
    quote_segment,
    quote_text,
    unquote_text,
)
from cove.wire.errors import STATUS, ErrorBody, decode_error, encode_error, make_error, status_of
from cove.wire.openapi import make_document
from cove.wire.operation import AnyOperation, Form
from cove.wire.operations import OPERATIONS
from cove.wire.signature import signature_of
from cove.wire.target import Target

pytestmark = pytest.mark.pure

NAMES = st.binary(min_size=1, max_size=30).map(
    lambda name: name.replace(b"\0", b"x").decode("utf-8", "surrogateescape")
)

IMAGE = ImageInfo(name="a", id="b", created_at=datetime(2026, 1, 1, tzinfo=UTC), size=1, layers=1)
METHODS = [row for row in OPERATIONS if row.form is not Form.PAGE]


def all_errors(kind: type[CoveError] = CoveError) -> list[type[CoveError]]:
    return [kind, *(found for below in kind.__subclasses__() for found in all_errors(below))]


def with_code() -> list[type[CoveError]]:
    return [kind for kind in all_errors() if "code" in vars(kind) and kind.__module__.startswith("cove.errors.")]


def make(kind: type[CoveError]) -> CoveError:
    parameters = inspect.signature(kind.__init__).parameters
    facts = {"exit_code": 3, "output": "the end", "outcome": "exited"}
    return kind("what happened", **{name: value for name, value in facts.items() if name in parameters})


@given(NAMES)
def test_any_file_name_travels_as_json(name: str) -> None:
    request = requests.FilePath(path=name)
    assert decode_json(encode_json(request), requests.FilePath) == request


@given(NAMES, st.integers(0, 9), st.none() | st.integers(0, 9))
def test_any_file_name_travels_in_a_query(name: str, start: int, end: int | None) -> None:
    request = requests.ReadFile(path=name, start=start, end=end)
    assert decode_query(encode_query(request), requests.ReadFile) == request
    assert unquote_text(quote_text(name)) == name


@pytest.mark.parametrize("value", [True, False])
def test_booleans_travel_in_a_query(value: bool) -> None:
    request = requests.ListFiles(path="x", recursive=value, hidden=not value)
    assert decode_query(encode_query(request), requests.ListFiles) == request


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b'{"path": 5}', "Expected `str`"),
        (b'{"path": "x", "more": 1}', "unknown field `more`"),
        (b"{}", "missing required field `path`"),
        (b'{"path": "\\udcff", "more": 1}', "unknown field `more`"),
        (b'{"path": "\\ud800"}', "not valid JSON"),
    ],
)
def test_a_body_that_is_wrong_is_refused_with_what_is_wrong(data: bytes, message: str) -> None:
    with pytest.raises(ValidationFailed, match=re.escape(message)):
        decode_json(data, requests.FilePath)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"image": "debian"}', "unknown field `image`: it belongs in `spec`"),
        (b'{"nonsense": 1}', "unknown field `nonsense`"),
        (b'{"spec": {"nonsense": 1}}', "unknown field `nonsense` - at `$.spec`"),
        (b'{"spec": {"env": {"\\udcff": "x"}, "nonsense": 1}}', "unknown field `nonsense` - at `$.spec`"),
        (b'{"spec": {"limits": {"memry": 1}}}', "unknown field `memry` - at `$.spec.limits`"),
        (
            b'{"spec": {"network": {"allow": [{"host": "a.example", "prot": [1]}]}}}',
            "unknown field `prot` - at `$.spec.network.allow[0]`",
        ),
    ],
)
def test_an_unknown_field_says_where_it_belongs(data: bytes, message: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        decode_json(data, requests.CreateSandbox)
    assert str(caught.value).endswith(message)


def test_a_spec_with_all_its_depths_travels() -> None:
    rule = NetworkRule("a.example", ports=[443], inject={"Authorization": Secret("TOKEN")})
    policy = NetworkPolicy(allow=["b.example", rule])
    mounts = (VolumeMount(volume="data", target="/data"),)
    request = requests.CreateSandbox(spec=SandboxSpec(network=policy, mounts=mounts, env={"x": "y"}))
    assert encode_json(decode_json(encode_json(request), requests.CreateSandbox)) == encode_json(request)


def test_an_image_is_answered_by_its_facts() -> None:
    facts = ImageInfo(name="debian", id="sha256:0", created_at=datetime(2026, 1, 1, tzinfo=UTC), size=1, layers=1)
    assert replies.IMAGE.encode(facts) is facts
    assert replies.IMAGE.encode(SimpleNamespace(facts=facts)) is facts


def test_a_command_says_as_whom_it_runs() -> None:
    assert requests.ExecAs(command="id", user="root").arguments()["user"] == "root"


def test_labels_in_the_query_that_are_no_json_are_named() -> None:
    with pytest.raises(ValidationFailed, match="`labels` in the query is not valid JSON"):
        requests.ListSandboxes(labels="x").arguments()


def test_a_body_that_is_nested_without_end_is_refused() -> None:
    with pytest.raises(ValidationFailed, match="not valid JSON"):
        decode_json(b'{"error": "", "code": "", "details": {"a": ' + b"[" * 200_000, ErrorBody)


@pytest.mark.parametrize(
    ("query", "message"), [("", "missing required"), ("path=x&start=abc", "int"), ("a=1&" * 200, "too many fields")]
)
def test_a_query_that_is_wrong_is_refused_with_what_is_wrong(query: str, message: str) -> None:
    with pytest.raises(ValidationFailed, match=message):
        decode_query(query, requests.ReadFile)


@pytest.mark.parametrize("kind", with_code(), ids=lambda kind: kind.__name__)
def test_every_error_arrives_as_the_class_it_was(kind: type[CoveError]) -> None:
    sent = make(kind)
    received = decode_error(encode_error(sent), status_of(sent))
    assert type(received) is (Internal if kind is CoveError else kind)
    assert (received.message, received.details) == (sent.message, sent.details)
    assert sent.code in STATUS


def test_facts_of_an_error_are_attributes_again() -> None:
    received = decode_error(encode_error(SessionTerminated("ended", exit_code=7, output="bye")), 410)
    assert isinstance(received, SessionTerminated)
    assert (received.exit_code, received.output) == (7, "bye")


def test_an_error_with_facts_of_another_version_is_still_an_error() -> None:
    received = make_error(ErrorBody("ended", "SESSION_TERMINATED", {"colour": "red"}))
    assert isinstance(received, Internal)
    assert "SESSION_TERMINATED" in received.message


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"error": 1}', b"\xff"])
def test_an_answer_that_is_no_error_of_ours_is_quoted(body: bytes) -> None:
    received = decode_error(body, 502)
    assert isinstance(received, Internal)
    assert "502" in received.message


OUTPUT = st.builds(Output, stream=st.sampled_from(["stdout", "stderr"]), data=st.binary(max_size=200), cursor=st.text())
EVENTS = st.lists(
    OUTPUT
    | st.builds(Gap, bytes=st.integers(0, 2**40), cursor=st.text())
    | st.builds(Ready, cursor=st.text())
    | st.builds(
        Exit,
        outcome=st.sampled_from(Outcome),
        exit_code=st.none() | st.integers(0, 255),
        signal=st.none(),
        cursor=st.text(),
    ),
    max_size=8,
)


@given(EVENTS, st.data())
def test_frames_survive_any_cut(events: list[frames.OutputEvent], data: st.DataObject) -> None:
    stream = b"".join(frames.encode_frame(event) for event in events) + frames.PING_FRAME
    reader = frames.FrameReader()
    found: list[tuple[int, bytes, bytes]] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += reader.feed(stream[:size])
        stream = stream[size:]
    assert found.pop() == (frames.PING, b"", b"")
    assert [frames.decode_output(head, content) for _, head, content in found] == events


def test_the_data_of_a_frame_are_put_together_from_its_pieces() -> None:
    events: list[frames.OutputEvent] = [
        Output("stdout", b"\xff" * 5, "1"),
        Gap(5, "2"),
        Output("stderr", b"x" * 100, "3"),
    ]
    stream = b"".join(map(frames.encode_frame, events))
    reader = frames.FrameReader()
    found = [each for at in range(0, len(stream), 3) for each in reader.feed(stream[at : at + 3])]
    assert [frames.decode_output(head, content) for _, head, content in found] == events


@pytest.mark.parametrize(
    ("event", "operation"),
    [
        (Text("stdout", "é"), operations.STREAM_CODE),
        (Display(Result(data={"text/plain": "2"}, is_main=True)), operations.STREAM_CODE),
        (Done(1, Outcome.EXITED), operations.STREAM_CODE),
        (FileEvent(kind=FileEventKind.MOVE, path="/a", old_path="/b"), operations.WATCH_FILES),
        (FileEvent(kind=FileEventKind.CREATE, path="/\udcff"), operations.WATCH_FILES),
        (BuildStep(number=1, total=2, line=3, instruction="RUN x"), operations.BUILD_IMAGE),
        (BuildOutput(stream="stdout", data=b"\xff"), operations.BUILD_IMAGE),
        (ImageMade(image=IMAGE), operations.BUILD_IMAGE),
        (ImageMade(image=IMAGE), operations.LOAD_IMAGE),
        (TransferProgress(layers=1, total_layers=2, bytes=3), operations.PULL_IMAGE),
    ],
)
def test_other_events_travel_in_frames_too(event: object, operation: AnyOperation) -> None:
    codec = operation.answer.events
    assert codec is not None
    ((_, head, data),) = frames.FrameReader().feed(b"".join(codec.encode(event)))
    assert codec.decode(head, data) == event


def test_a_failure_in_a_stream_is_the_error_it_was() -> None:
    ((kind, head, _),) = frames.FrameReader().feed(frames.encode_failure_frame(errors.ProcessNotFound("gone", id="x")))
    assert kind == frames.FAILURE
    failure = frames.decode_failure(head)
    assert isinstance(failure, errors.ProcessNotFound)
    assert failure.details == {"id": "x"}


def test_the_first_length_of_an_answer_to_an_upgrade_counts() -> None:
    one, other = b"\r\nContent-Length: 12", b"\r\nContent-Length: x"
    assert frames.parse_upgrade(b"HTTP/1.1 502 Bad" + one + other) == (502, 12)
    assert frames.parse_upgrade(b"HTTP/1.1 502 Bad" + other + one) == (502, 0)


def test_kinds_of_frames_have_their_numbers() -> None:
    assert frames.encode_frame(Gap(5, "2"))[0] == 1
    assert frames.encode_failure_frame(errors.ProcessNotFound("gone", id="x"))[0] == 2
    assert b"\x03" + bytes(8) == frames.PING_FRAME


@pytest.mark.parametrize("head", [0, 9])
def test_a_frame_has_256_mebibytes_at_most(head: int) -> None:
    data = (256 << 20) - head
    assert list(frames.FrameReader().feed(b"\x01" + head.to_bytes(4, "big") + data.to_bytes(4, "big"))) == []
    with pytest.raises(Internal, match="of 268435457 bytes"):
        list(frames.FrameReader().feed(b"\x01" + head.to_bytes(4, "big") + (data + 1).to_bytes(4, "big")))


def test_a_frame_that_claims_to_be_huge_is_refused_at_once() -> None:
    with pytest.raises(Internal, match="bytes"):
        list(frames.FrameReader().feed(b"\x01" + b"\xff" * 8))


@pytest.mark.parametrize(
    ("operation", "event", "lines"),
    [
        (
            operations.PROCESS_LOGS,
            Output("stdout", "é\n".encode(), "7"),
            ["id: 7", "event: output", 'data: {"type":"output","stream":"stdout","text":"é\\n","cursor":"7"}'],
        ),
        (
            operations.PROCESS_LOGS,
            Output("stderr", b"\xff", "8"),
            ["id: 8", "event: output", 'data: {"type":"output","stream":"stderr","base64":"/w==","cursor":"8"}'],
        ),
        (
            operations.BUILD_IMAGE,
            BuildOutput(stream="stderr", data=b"x"),
            ["event: output", 'data: {"type":"output","stream":"stderr","text":"x"}'],
        ),
        (
            operations.BUILD_IMAGE,
            BuildStep(number=1, total=2, line=3, instruction="RUN x"),
            [
                "event: step",
                'data: {"type":"step","number":1,"total":2,"line":3,"instruction":"RUN x","is_cached":false}',
            ],
        ),
        (operations.PROCESS_LOGS, Gap(5, "9"), ["id: 9", "event: gap", 'data: {"type":"gap","bytes":5,"cursor":"9"}']),
        (
            operations.STREAM_CODE,
            Text("stdout", "a\nb"),
            ["event: text", 'data: {"type":"text","stream":"stdout","text":"a\\nb"}'],
        ),
        (
            operations.WATCH_FILES,
            FileEvent(kind=FileEventKind.CREATE, path="/a"),
            ["event: create", 'data: {"kind":"create","path":"/a","is_directory":false,"old_path":null}'],
        ),
    ],
)
def test_server_sent_events_are_one_line_of_data_each(operation: AnyOperation, event: object, lines: list[str]) -> None:
    codec = operation.answer.events
    assert codec is not None
    assert codec.encode_server_sent(event).decode() == "\n".join(lines) + "\n\n"


def test_a_failure_is_a_server_sent_event() -> None:
    text = frames.encode_failure_server_sent(ValidationFailed("no")).decode()
    assert text.startswith("event: error\ndata: {")
    assert json.loads(text.splitlines()[1].removeprefix("data: "))["code"] == "VALIDATION_FAILED"


@given(st.binary(max_size=100), st.binary(max_size=100), st.sampled_from(Outcome))
@example(b"text", b"\xff", Outcome.EXITED)
def test_results_arrive_byte_for_byte(stdout: bytes, stderr: bytes, outcome: Outcome) -> None:
    result = ExecResult(
        command=["a", "b"],
        outcome=outcome,
        exit_code=3,
        stdout_bytes=stdout,
        stderr_bytes=stderr,
        started_at=datetime.now(UTC),
        duration=0.5,
        truncated=True,
        signal=9,
        session_id="s",
        session_restarted=True,
        restored_command="c",
    )
    data = encode_json(replies.EXEC.encode(result))
    assert decode_json(data, replies.ExecReply).result() == result


def test_names_and_routes_are_unique() -> None:
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)
    assert len({(operation.verb, operation.path) for operation in OPERATIONS}) == len(OPERATIONS)


@pytest.mark.parametrize("operation", METHODS, ids=lambda row: row.name)
def test_every_request_has_exactly_the_arguments_of_its_method(operation: AnyOperation) -> None:
    signature = signature_of(operation)
    given = {*operation.request.__struct_fields__} - {"stdin_base64", "is_expression", "flags"}
    if operation is operations.CONNECT_PORT:
        given.remove("token")  # the preview's
    assert signature.names - signature.in_path.keys() - {signature.content} == given
    assert bool(signature.content) == operation.takes_content


@pytest.mark.parametrize("operation", METHODS, ids=lambda row: row.name)
def test_defaults_on_the_wire_are_those_of_the_method(operation: AnyOperation) -> None:
    parameters = inspect.signature(signature_of(operation).method).parameters
    for field in msgspec.structs.fields(operation.request):
        if field.name in parameters and not field.required:
            declared = parameters[field.name].default
            assert declared in (field.default, inspect.Parameter.empty), field.name


@pytest.mark.parametrize("operation", METHODS, ids=lambda row: row.name)
def test_the_form_of_an_operation_is_that_of_its_method(operation: AnyOperation) -> None:
    method = signature_of(operation).method
    returns = str(inspect.signature(method).return_annotation)
    has_events = operation.form in (Form.EVENTS, Form.WORK, Form.STREAM_WORK)
    is_stream = has_events or operation.form is Form.CONTENT
    assert ("AsyncGenerator[" in returns) == is_stream
    assert inspect.iscoroutinefunction(method) == (operation.form in (Form.VALUE, Form.UPLOAD, Form.STREAM))
    assert (operation.answer.events is not None) == has_events


def test_every_method_of_the_api_has_an_operation() -> None:
    """But those that are made from others, or are the client's own."""
    covered = {(row.target, row.method) for row in OPERATIONS}
    own = {
        *((Target.SERVER, name) for name in ("connect", "count_room", "get_volume", "load_snapshot")),
        *(
            (Target.SERVER, name)
            for name in ("get_image", "load_image", "pull_image", "build_image", "bootstrap_image")
        ),
        *((Target.VOLUME, name) for name in ("create", "get", "list")),
        *((Target.IMAGE, name) for name in ("load", "pull", "build", "bootstrap", "get", "list", "prune", "save")),
        *((Target.SANDBOX, name) for name in ("create", "connect", "list", "detach", "kill_process", "transaction")),
        *((Target.SANDBOX, name) for name in ("list_destroyed", "destroyed_journal", "signed_url")),
        (Target.PROCESS, "refresh"),
        *((Target.SNAPSHOT, name) for name in ("get", "list", "info", "load", "export")),
        *((Target.SESSION, "delete"), (Target.CONTEXT, "delete")),
        *((Target.FILES, name) for name in ("read", "read_text", "write", "upload", "download")),
    }
    for target in Target:
        for name, _ in inspect.getmembers(target.kind, inspect.isroutine):
            if not name.startswith("_"):
                assert (target, name) in covered | own, f"{target.kind.__name__}.{name} cannot be called over HTTP"


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (requests.WaitForLog(pattern="(", is_expression=True), "regular expression"),
        (requests.Exec(command="x", stdin="a", stdin_base64=b"b"), "not both"),
    ],
)
def test_requests_that_contradict_themselves_are_refused(request_: requests.Request, message: str) -> None:
    with pytest.raises(ValidationFailed, match=message):
        request_.arguments()


def test_an_expression_keeps_its_flags() -> None:
    pattern = requests.WaitForLog(pattern="a", is_expression=True, flags=int(re.IGNORECASE)).arguments()["pattern"]
    assert isinstance(pattern, re.Pattern)
    assert pattern.flags & re.IGNORECASE
    assert requests.WaitForLog(pattern="a").arguments() == {"pattern": "a", "timeout": None}


def test_the_answer_of_a_making_is_the_image_of_its_last_event() -> None:
    assert operations.BUILD_IMAGE.answer.encode(ImageMade(image=IMAGE)) == IMAGE


def test_the_document_describes_every_operation() -> None:
    document = make_document("1.2.3")
    text = json.dumps(document)
    assert document["openapi"] == "3.1.0"
    for operation in OPERATIONS:
        assert f'"{operation.name}"' in text
    for reference in set(re.findall(r'"#/components/schemas/([^"]+)"', text)):
        assert f'"{reference}": {{' in text


def test_the_document_has_the_bridge_as_its_clients_know_it() -> None:
    paths = make_document("1")["paths"]
    assert isinstance(paths, dict)
    terminal = paths["/v1/sandbox/{id}/pty"]["get"]
    assert terminal["operationId"] == "ptyTerminal"
    assert [row["name"] for row in terminal["parameters"]] == ["id", "cols", "rows", "shell", "session"]
    assert set(terminal["responses"]) == {"101", "400", "502"}
    assert "/v1/sandbox/{id}/file/{path}" in paths


def test_what_is_no_text_does_not_travel_in_a_query() -> None:
    with pytest.raises(ValidationFailed, match="UTF-8"):
        quote_text("\ud800")


def test_an_id_is_one_segment_of_a_path() -> None:
    assert quote_segment("a-1") == "a-1"
    assert quote_segment("a/../b?\ud800") == "a%2F..%2Fb%3F%ED%A0%80"
    with pytest.raises(ValidationFailed, match="an id is a string, not int"):
        quote_segment(5)  # type: ignore[arg-type]


def test_an_upgrade_is_one_request_with_the_key_if_there_is_one() -> None:
    head = frames.render_upgrade("/x?since=1", "host:80", "Bearer k").split(b"\r\n")
    assert head[0] == b"GET /x?since=1 HTTP/1.1"
    assert set(head[1:-2]) == {b"Host: host:80", b"Authorization: Bearer k", b"Connection: Upgrade", b"Upgrade: tcp"}
    assert head[-2:] == [b"", b""]
    assert b"Authorization" not in frames.render_upgrade("/", "h")


@pytest.mark.parametrize(
    ("head", "status", "length"),
    [
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: tcp", 101, 0),
        (b"HTTP/1.1 404 Not Found\r\nA: b\r\nContent-LENGTH: 12", 404, 12),
        (b"HTTP/1.0 500\r\nContent-Length: many", 500, 0),
    ],
)
def test_the_answer_to_an_upgrade_has_a_status_and_a_length(head: bytes, status: int, length: int) -> None:
    assert frames.parse_upgrade(head) == (status, length)


@pytest.mark.parametrize("head", [b"", b"SSH-2.0-x", b"HTTP/1.1", b"HTTP/1.1 OK", b"HTTP/2 200", b"HTTP/1.1 -1 x"])
def test_an_answer_to_an_upgrade_that_is_no_http_is_an_error(head: bytes) -> None:
    with pytest.raises(Internal, match="no HTTP"):
        frames.parse_upgrade(head)


def test_a_stream_is_resumed_where_its_request_takes_a_cursor() -> None:
    resumed = {operation.name for operation in OPERATIONS if operation.has_cursor}
    journals = {operations.JOURNAL.name, operations.DESTROYED_JOURNAL.name}
    assert resumed == {operations.PROCESS_LOGS.name, operations.NETWORK_LOG.name, *journals}


def test_an_answer_without_content_is_none() -> None:
    def nobody(target: Target, facts: object) -> object:
        raise AssertionError("no handle is made of a plain value")

    assert replies.NOTHING.decode(replies.NOTHING.encode(None), nobody) is None
