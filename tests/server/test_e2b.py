"""E2B's protocol as clients never speak it: wrong keys and tokens, forged frames, what is not to be had."""

import base64
import http.client
import json
import shutil
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from support.bridge_client import bridge_server
from support.e2b_client import CODE, E2bClient, Inside, envelope, start
from support.servers import Server, serving

from cove.core.e2b_access import sign_file

CONFIGURATION = """
[e2b_spec]
env = {FROM = "the configuration"}

[e2b_templates.small]
limits = {memory = 134217728}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("e2b") / "cove.toml"
    path.write_text(CONFIGURATION)
    with bridge_server("--config", str(path)) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> E2bClient:
    return E2bClient(server)


@pytest.fixture
def sandbox(client: E2bClient) -> Iterator[Inside]:
    with client.sandbox() as made:
        yield made


def test_the_control_api_takes_the_servers_key_alone(client: E2bClient, sandbox: Inside) -> None:
    for key in ("", "wrong-key", "e2b_" + b"wrong-key".hex(), sandbox.made["envdAccessToken"]):
        reply = client.send("GET", "/v2/sandboxes", headers={"X-API-KEY": key})
        assert reply.refusal[0] == 401
    hexadecimal = "e2b_" + client.server.key.encode().hex()
    assert client.send("GET", "/v2/sandboxes", headers={"X-API-KEY": hexadecimal}).status == 200


def test_requests_that_web_pages_cause_are_refused(client: E2bClient, sandbox: Inside) -> None:
    assert client.call("GET", "/v2/sandboxes", Origin="http://evil.example").refusal[0] == 403
    assert client.call("GET", "/v2/sandboxes", Host="evil.example").refusal[0] == 403


def test_what_is_not_had_here_says_what_to_use(client: E2bClient) -> None:
    for method, path, word in (
        ("POST", "/v3/templates", "cove image build"),
        ("POST", "/v2/templates/abc/builds/def", "cove image build"),
        ("GET", "/volumes", "cove volume create"),
        ("POST", "/secrets", "configuration"),
    ):
        status, message = client.call(method, path, {}).refusal
        assert status == 501
        assert word in message
    assert client.call("GET", "/templates/aliases/mine").refusal[0] == 404
    for method, path in (("POST", "/sandboxes/abc/unknown"), ("PATCH", "/v2/sandboxes"), ("GET", "/sandboxes/a/b/c")):
        assert client.call(method, path, {}).refusal[0] == 501


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"timeout": 0}, 400),
        ({"timeout": "soon"}, 400),
        ({"templateID": "mcp-gateway"}, 404),
        ({"templateID": "../../etc"}, 404),
        ({"iam": {"role": "x"}}, 400),
        ({"network": {"egressProxy": {"url": "x"}}}, 400),
        ({"network": {"allowOut": ["10.0.0.0/8"]}}, 400),
        ({"envVars": {"A\0": "x"}}, 400),
        ({"volumeMounts": [{"name": "missing", "path": "/data"}]}, 404),
    ],
)
def test_a_creation_that_cannot_be_is_refused(client: E2bClient, fields: dict[str, object], status: int) -> None:
    before = client.server.directory.count()
    assert client.call("POST", "/v2/sandboxes", {"templateID": "base", **fields}).refusal[0] == status
    assert client.server.directory.count() == before


def test_a_body_that_is_no_json_is_refused(client: E2bClient) -> None:
    for body in (b"{", b"[]", b'{"timeout":1e999}', b"\xff", b"[" * 100_000):
        reply = client.send("POST", "/v2/sandboxes", body, {"X-API-KEY": client.server.key})
        assert reply.refusal[0] == 400


def test_templates_are_specs_of_the_configuration(client: E2bClient) -> None:
    with client.sandbox() as sandbox:
        assert sandbox.run("echo $FROM")[0] == b"the configuration\n"
        assert sandbox.send("GET", "/envs").json == {"FROM": "the configuration"}
    with client.sandbox(templateID="small") as sandbox:
        assert client.call("GET", f"/sandboxes/{sandbox.id}").json["memoryMB"] == 128


def test_a_creation_with_the_same_idempotency_key_gives_the_same_sandbox(client: E2bClient) -> None:
    bodies = [client.call("POST", "/v2/sandboxes", {}, Idempotency_Key="once") for _ in range(2)]
    try:
        assert [each.status for each in bodies] == [201, 201]
        assert bodies[0].json == bodies[1].json
    finally:
        assert client.call("DELETE", f"/sandboxes/{bodies[0].json['sandboxID']}").status == 204


def test_unknown_sandboxes_are_not_found(client: E2bClient) -> None:
    for id in ("nosuchsandbox", "..", "%2e%2e", "A", "a" * 200):
        assert client.call("GET", f"/sandboxes/{id}").refusal[0] == 404
        assert client.call("DELETE", f"/sandboxes/{id}").refusal[0] == 404
    for id in ("nosuchsandbox", "../x", "A", "", "a" * 200):
        reply = client.send("GET", "/health", headers={"E2b-Sandbox-Id": id, "E2b-Sandbox-Port": "49983"})
        assert reply.refusal == (502, "The sandbox was not found")


def test_nothing_inside_is_reached_without_its_own_token(client: E2bClient, sandbox: Inside) -> None:
    with client.sandbox() as other:
        for token in (
            "",
            "wrong",
            client.server.key,
            other.made["envdAccessToken"],
            sandbox.made["trafficAccessToken"],
        ):
            for method, path in (
                ("POST", "/process.Process/List"),
                ("GET", "/files?path=/etc/passwd"),
                ("GET", "/envs"),
            ):
                assert sandbox.send(method, path, b"{}", token=token).refusal[0] == 401
        for token in ("", "wrong", other.made["trafficAccessToken"], other.made["envdAccessToken"]):
            reply = sandbox.send("GET", "/contexts", port=CODE, token="", headers={"E2B-Traffic-Access-Token": token})
            assert reply.refusal[0] == 401
    right = sandbox.made["trafficAccessToken"]
    assert sandbox.send("GET", "/contexts", port=CODE, token="", headers={"E2B-Traffic-Access-Token": right}).json == []
    assert sandbox.send("GET", "/health", token="").status == 204


def test_a_host_name_stands_for_the_headers(client: E2bClient, sandbox: Inside) -> None:
    token = sandbox.made["envdAccessToken"]
    host = f"49983-{sandbox.id}.x.example"
    assert client.send("GET", "/envs", headers={"Host": host, "X-Access-Token": token}).status == 200
    assert client.send("GET", "/envs", headers={"Host": host}).refusal[0] == 401


def test_a_sandbox_that_takes_over_an_id_has_other_tokens(client: E2bClient) -> None:
    with client.native("dev"):
        old = Inside(client, client.call("POST", "/v2/sandboxes/dev/connect", {}).json)
        assert old.run("echo $0")[1]["exitCode"] == 0
    assert old.send("GET", "/health").status == 502
    with client.native("dev"):
        assert old.send("GET", "/envs").status in (401, 502)  # one that remembers the old sandbox finds it gone
        new = Inside(client, client.call("POST", "/v2/sandboxes/dev/connect", {}).json)
        assert new.send("GET", "/envs").status == 200


def test_ports_of_sandboxes_that_were_made_otherwise_need_a_token(client: E2bClient) -> None:
    with client.native("native"):
        made = client.call("POST", "/v2/sandboxes/native/connect", {}).json
        host = {"Host": "8000-native.localhost"}
        assert client.send("GET", "/", headers=host).refusal[0] == 403
        shown = {**host, "E2B-Traffic-Access-Token": made["trafficAccessToken"]}
        assert client.send("GET", "/", headers=shown).status == 502


def test_what_the_gateway_says_to_runtimes_nobody_else_can_say(client: E2bClient, sandbox: Inside) -> None:
    bearer = {"Authorization": f"Bearer {client.server.key}", "X-API-KEY": client.server.key}
    for path in (f"/v1/e2b/{sandbox.id}/control/metrics", f"/v1/e2b/{sandbox.id}/49983/envs"):
        assert client.send("POST", path, b"{}", bearer).status == 404
        assert sandbox.send("POST", path, b"{}").status == 404
    assert sandbox.run("id -un", {"Cove-User": "root"})[0] == b"user\n"
    for authorization in ("Basic cm9vdDo=", "Basic ???", "Basic OTk6", "Basic YSBiOg=="):
        assert (
            sandbox.stream("process.Process/Start", start("id"), {"Authorization": authorization}).failure
            == "unauthenticated"
        )


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_argument"),
        (b"\0\0", "invalid_argument"),
        (start("echo no")[:-1], "invalid_argument"),
        (struct.pack(">BI", 0, 0xFFFFFFFF) + b"{}", "resource_exhausted"),
        (struct.pack(">BI", 1, 2) + b"{}", "unimplemented"),
        (struct.pack(">BI", 8, 2) + b"{}", "invalid_argument"),
        (start("echo no") + start("echo no"), "invalid_argument"),
        (envelope({}, 2), "invalid_argument"),
        (envelope({"process": {"cmd": 7}}), "invalid_argument"),
        (envelope({"process": {"cmd": ""}}), "invalid_argument"),
        (envelope({"process": {"cmd": "/bin/true", "cwd": "~other"}}), "invalid_argument"),
        (struct.pack(">BI", 0, 4) + b"\xff\xfe{}", "invalid_argument"),
        (struct.pack(">BI", 0, 100_000) + b"[" * 100_000, "invalid_argument"),
    ],
)
def test_a_forged_call_starts_nothing(sandbox: Inside, body: bytes, code: str) -> None:
    assert sandbox.stream("process.Process/Start", body).failure == code
    assert sandbox.unary("process.Process/List", {}).json == {"processes": []}


def test_wrong_calls_have_the_codes_of_the_protocol(sandbox: Inside) -> None:
    for name, message, status, code in (
        ("process.Process/SendSignal", {"process": {"pid": 99999}, "signal": "SIGNAL_SIGKILL"}, 404, "not_found"),
        ("process.Process/SendSignal", {"signal": "SIGNAL_SIGSTOP"}, 400, "invalid_argument"),
        ("process.Process/SendInput", {"process": {"tag": "x"}, "input": {"stdin": "!"}}, 400, "invalid_argument"),
        ("process.Process/Unknown", {}, 501, "unimplemented"),
        ("filesystem.Filesystem/Stat", {"path": "/nowhere"}, 404, "not_found"),
        ("filesystem.Filesystem/Stat", {"path": "a\0b"}, 400, "invalid_argument"),
        ("filesystem.Filesystem/ListDir", {"path": "/etc/passwd"}, 400, "invalid_argument"),
        ("filesystem.Filesystem/MakeDir", {"path": "/tmp"}, 409, "already_exists"),
        ("filesystem.Filesystem/GetWatcherEvents", {"watcherId": "x"}, 404, "not_found"),
    ):
        reply = sandbox.unary(name, message)
        assert (reply.status, reply.json["code"]) == (status, code), name
    assert sandbox.send("GET", "/process.Process/List").refusal[0] == 405
    assert sandbox.send("GET", "/init").refusal[0] == 404


def test_output_and_ends_are_told_as_they_are(sandbox: Inside) -> None:
    output, end = sandbox.run("printf '\\0\\377'; exit 3")
    assert output == b"\0\xff"
    assert end == {"exitCode": 3, "exited": True, "status": "exit status 3", "error": "exit status 3"}
    assert sandbox.run("true")[1] == {"exitCode": 0, "exited": True, "status": "exit status 0"}
    killed = {"exitCode": -1, "exited": False, "status": "signal: terminated", "error": "signal: terminated"}
    assert sandbox.run("kill -TERM $$")[1] == killed
    timed_out = sandbox.stream("process.Process/Start", start("sleep 100"), {"Connect-Timeout-Ms": "200"}).messages
    assert timed_out[-1]["error"]["code"] == "deadline_exceeded"
    assert sandbox.unary("process.Process/List", {}).json == {"processes": []}


def test_a_silent_stream_is_kept_alive_after_its_first_message(sandbox: Inside) -> None:
    body = start("read line < <(sleep 2.5)")
    first, *events, _, _ = sandbox.stream("process.Process/Start", body, {"Keepalive-Ping-Interval": "1"}).messages
    assert set(first["event"]) == {"start"}
    assert events
    assert all(each == {"event": {"keepalive": {}}} for each in events)


def test_files_that_cannot_be_are_refused_and_nothing_is_written(sandbox: Inside) -> None:
    form = "multipart/form-data; boundary=b"
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="%b"\r\n\r\nx\r\n'
    for path, body, kind, status in (
        ("/files?path=f", b"no multipart", form, 400),
        ("/files", part % b"f" + b"no end", form, 400),
        ("/files", part % b"" + b"--b--", form, 400),
        ("/files", part % b"g" + part % b"/home/user/g" + b"--b--", form, 400),
        ("/files?path=f", b"x", "multipart/form-data", 400),
        ("/files", b"x", "application/octet-stream", 400),
        ("/files?path=/tmp", b"x", "application/octet-stream", 400),
        ("/files?path=f&username=root", b"x", "application/octet-stream", 401),
        ("/files?path=~root/f", b"x", "application/octet-stream", 400),
    ):
        assert sandbox.send("POST", path, body, headers={"Content-Type": kind}).refusal[0] == status, (path, body)
    packed = sandbox.send("POST", "/files?path=f", b"\x1f\x8bno", headers={"Content-Encoding": "gzip"})
    assert packed.refusal[0] == 400
    assert sandbox.send("GET", "/files?path=f").refusal[0] == 404
    assert sandbox.send("GET", "/files?path=/tmp").refusal[0] == 400
    assert sandbox.send("PUT", "/files?path=f").refusal[0] == 405


def test_a_signature_that_is_wrong_opens_nothing(client: E2bClient, sandbox: Inside) -> None:
    for query in ("", "&signature=", "&signature=v1_x", "&signature=v1_" + "A" * 43):
        assert client.send("GET", f"/files?path=/etc/passwd{query}").refusal[0] == 401
        assert sandbox.send("GET", f"/files?path=/etc/passwd{query}", token="").refusal[0] == 401


def test_a_signed_url_gives_what_it_names_and_nothing_else(client: E2bClient, sandbox: Inside) -> None:
    def sign(path: str, operation: str = "read", user: str = "", expiry: str | None = None) -> str:
        signature = sign_file(path, operation, user, sandbox.made["envdAccessToken"], expiry)
        until = "" if expiry is None else f"&signature_expiration={expiry}"
        return f"&signature={quote(signature, safe='')}{until}"

    def status(query: str, method: str = "GET", **headers: str) -> int:
        found = {
            sandbox.send(method, f"/files?{query}", token="", headers=headers).status,
            client.send(method, f"/files?{query}", headers=headers).status,  # the signature alone names the sandbox
        }
        assert len(found) == 1, found
        return found.pop()

    assert sandbox.send("POST", "/files?path=f", b"x", headers={"Content-Type": "application/octet-stream"}).json
    later, before = str(int(time.time()) + 1000), str(int(time.time()) - 1)
    assert status(f"path=f{sign('f')}") == 200
    assert status(f"path=f{sign('f', expiry=later)}") == 200
    # A name in a header is not covered by the signature.
    root = "Basic " + base64.b64encode(b"root:").decode()
    assert status(f"path=f{sign('f')}", Authorization=root) == 200
    for wrong in (
        f"path=/etc/passwd{sign('f')}",
        f"path=../user/f{sign('f')}",
        f"path=f&username=root{sign('f')}",
        f"path=f{sign('f', expiry=before)}",
        f"path=f{sign('f', expiry=later).partition('&signature_expiration')[0]}",
        f"path=f{sign('f', expiry=before).replace(before, later)}",
        f"path=f{sign('f', operation='write')}",
        f"path=f{sign('f', expiry='1e99')}",
    ):
        assert status(wrong) == 401, wrong
    assert status(f"path=f{sign('f')}", "POST") == 401
    with client.sandbox() as other:
        assert other.send("GET", f"/files?path=f{sign('f')}", token="").status == 401


def test_what_is_no_file_is_not_read(sandbox: Inside) -> None:
    assert sandbox.run("mkfifo pipe")[1]["exitCode"] == 0
    for path in ("/dev/zero", "pipe", "/proc/self/mem", "a%00b"):
        assert 400 <= sandbox.send("GET", f"/files?path={path}").refusal[0] <= 500, path


def test_a_client_that_leaves_ends_no_process(client: E2bClient) -> None:
    with client.sandbox() as sandbox:
        connection = http.client.HTTPConnection(*client.address, timeout=60)
        headers = {
            "E2b-Sandbox-Id": sandbox.id,
            "E2b-Sandbox-Port": "49983",
            "X-Access-Token": sandbox.made["envdAccessToken"],
        }
        connection.request("POST", "/process.Process/Start", start("sleep 100; echo never"), headers)
        connection.getresponse().read1()
        connection.close()
        (listed,) = sandbox.unary("process.Process/List", {}).json["processes"]
        assert listed["config"]["args"] == ["-l", "-c", "sleep 100; echo never"]
        assert sandbox.run(f"kill {listed['pid']}")[1]["exitCode"] == 0


def test_wrong_code_requests_are_plain_text(sandbox: Inside) -> None:
    for body, status in (
        (b"{", 400),
        (b'{"code": 1}', 400),
        (b'{"code": "1", "context_id": "x", "language": "python"}', 400),
        (b'{"code": "1", "context_id": "nowhere"}', 404),
        (b'{"code": "1", "language": "cobol"}', 500),
    ):
        reply = sandbox.send("POST", "/execute", body, port=CODE)
        assert (reply.status, reply.headers["content-type"]) == (status, "text/plain; charset=utf-8"), body
    assert sandbox.send("DELETE", "/contexts/nowhere", port=CODE).status == 404
    assert sandbox.send("GET", "/nowhere", port=CODE).status == 404
    assert sandbox.send("GET", "/health", port=CODE, token="").status == 200


def test_a_paused_sandbox_is_not_woken_by_what_clients_ask(client: E2bClient) -> None:
    with client.sandbox() as sandbox:
        assert client.call("POST", f"/sandboxes/{sandbox.id}/pause").status == 204
        assert client.call("POST", f"/sandboxes/{sandbox.id}/pause").refusal[0] == 409
        for path in ("/health", "/envs", "/files?path=x"):
            assert sandbox.send("GET", path).refusal == (502, "The sandbox was not found")
        assert sandbox.send("GET", "/", port=8000).refusal == (502, "The sandbox was not found")
        (listed,) = client.call("GET", "/v2/sandboxes?state=paused").json
        assert listed["sandboxID"] == sandbox.id
        assert client.call("POST", f"/sandboxes/{sandbox.id}/connect", {}).status == 201
        assert client.call("POST", f"/sandboxes/{sandbox.id}/connect", {}).status == 200
        assert sandbox.run("echo on")[0] == b"on\n"


def test_tokens_and_choices_outlive_the_server(tmp_path: Path) -> None:
    home = Path("/tmp") / f"cove-e2b-{tmp_path.name}-{tmp_path.parent.name}"
    home.mkdir(mode=0o711)
    try:
        with serving(home) as server:
            client = E2bClient(server)
            made = client.call("POST", "/v2/sandboxes", {"metadata": {"a b": "c"}, "autoPause": True}).json
            Inside(client, made).run("echo kept > kept")
        with serving(home, "--on-stop", "destroy") as server:
            again = Inside(E2bClient(server), made)
            assert again.run("cat kept")[0] == b"kept\n"
            detail = again.client.call("GET", f"/sandboxes/{again.id}").json
            assert detail["metadata"] == {"a b": "c"}
            assert detail["lifecycle"]["onTimeout"] == "pause"
            assert json.dumps(detail).count(again.made["envdAccessToken"]) == 1
    finally:
        shutil.rmtree(home)
