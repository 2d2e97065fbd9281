"""Sessions, mounts and tunnels of the bridge protocol."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from urllib.parse import urlsplit

import pytest
from support.bridge_client import BridgeClient
from support.bridge_fixtures import bridge, server

__all__ = ["bridge", "server"]  # fixtures

pytestmark = pytest.mark.pure


def test_a_session_has_the_id_directory_and_variables_that_it_was_given(bridge: BridgeClient) -> None:
    reply = bridge.call("POST", "session", {"id": "s1", "cwd": "/tmp", "env": {"A": "b c"}})
    assert (reply.status, reply.json) == (200, {"id": "s1"})
    assert bridge.exec("sh", "-c", 'pwd; echo "$A"', session="s1").stdout == b"/tmp\nb c\n"


@pytest.mark.parametrize("body", [None, b"", b"{}", b"no json", b"[]", b"null"])
def test_without_an_id_one_is_made_up(bridge: BridgeClient, body: bytes | None) -> None:
    id = bridge.call("POST", "session", body).json["id"]
    assert re.fullmatch(r"[a-zA-Z0-9._-]{1,128}", id)
    assert bridge.exec("pwd", session=id).stdout == b"/workspace\n"


def test_the_same_id_twice_is_502(bridge: BridgeClient) -> None:
    bridge.call("POST", "session", {"id": "s1"})
    assert bridge.call("POST", "session", {"id": "s1"}).refusal[:2] == (502, "session_error")


def test_a_directory_that_is_not_there_is_502(bridge: BridgeClient) -> None:
    assert bridge.call("POST", "session", {"cwd": "/nowhere"}).refusal[:2] == (502, "session_error")


@pytest.mark.parametrize("id", ["a b", "a/b", "a..b", "..", "x" * 129, "ü", "a\\b"])
def test_what_is_no_session_id_is_400(bridge: BridgeClient, id: str) -> None:
    expected = (400, "invalid_request", "Invalid session ID format")
    assert bridge.call("POST", "session", {"id": id}).refusal == expected
    if id.isascii():
        assert bridge.call("POST", "exec", {"argv": ["true"]}, Session_Id=id).refusal == expected


def test_delete_says_what_it_did(bridge: BridgeClient) -> None:
    bridge.call("POST", "session", {"id": "s1"})
    reply = bridge.call("DELETE", "session/s1")
    assert reply.status == 200
    assert reply.json.keys() == {"success", "sessionId", "timestamp"}
    assert (reply.json["success"], reply.json["sessionId"]) == (True, "s1")
    assert datetime.fromisoformat(reply.json["timestamp"]).tzinfo is not None
    assert bridge.call("DELETE", "session/s1").refusal[:2] == (502, "session_error")
    assert bridge.call("DELETE", "session/a..b").refusal[:2] == (400, "invalid_request")


def test_directory_and_variables_are_kept_from_command_to_command(bridge: BridgeClient) -> None:
    bridge.exec("mkdir", "x")
    assert bridge.exec("cd", "x", session="s1").exit_code == 0
    assert bridge.exec("export", "A=1", session="s1").exit_code == 0
    assert bridge.shell("pwd; echo $A", session="s1").stdout == b"/workspace/x\n1\n"
    assert bridge.shell("pwd; echo $A", session="s2").stdout == b"/workspace\n\n"
    assert bridge.shell("pwd; echo $A").stdout == b"/workspace\n\n"


def test_a_cwd_holds_for_one_call(bridge: BridgeClient) -> None:
    bridge.exec("mkdir", "x")
    assert bridge.exec("pwd", session="s1", cwd="x").stdout == b"/workspace/x\n"
    assert bridge.exec("pwd", session="s1").stdout == b"/workspace\n"


def test_output_of_a_session_is_exact_to_the_byte(bridge: BridgeClient) -> None:
    every = bytes(range(256)) * 1000
    bridge.call("PUT", "file/workspace/every", every)
    assert bridge.exec("cat", "every", session="s1").stdout == every
    assert bridge.exec("printf", "no newline", session="s1").stdout == b"no newline"


def test_commands_of_one_session_run_one_at_a_time_also_when_its_first_ones_come_together(
    bridge: BridgeClient,
) -> None:
    bridge.exec("true")
    script = "mkdir turn && sleep 0.05 && rmdir turn"
    with ThreadPoolExecutor(5) as pool:
        codes = [ran.exit_code for ran in pool.map(lambda _: bridge.shell(script, session="new"), range(5))]
    assert codes == [0] * 5


def test_sessions_run_beside_each_other(bridge: BridgeClient) -> None:
    bridge.exec("true")
    script = "mkdir $0; until test -d a -a -d b; do sleep 0.01; done"
    with ThreadPoolExecutor(2) as pool:
        ran = pool.map(lambda name: bridge.exec("bash", "-c", script, name, session=name), "ab")
        assert [each.exit_code for each in ran] == [0, 0]


def test_what_a_command_in_a_session_prints_comes_while_it_runs(bridge: BridgeClient) -> None:
    line = "echo out; echo err >&2; while [ ! -e go ]; do sleep 0.01; done; echo last"
    body = json.dumps({"argv": ["eval", line]}).encode()
    head = f"POST {bridge.root}/exec HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {bridge.server.key}\r\n"
    with bridge.connect() as client:
        client.sendall(f"{head}Session-Id: s1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        said = b""
        while b"event: stdout\ndata: b3V0Cg==" not in said or b"event: stderr\ndata: ZXJyCg==" not in said:
            said += client.recv(65536)
        assert b"event: exit" not in said
        bridge.exec("touch", "go")
        while b'{"exit_code":0}' not in said:
            said += client.recv(65536)
        assert b"event: stdout\ndata: bGFzdAo=" in said


def test_a_command_in_a_session_whose_client_is_gone_is_ended(bridge: BridgeClient) -> None:
    body = json.dumps({"argv": ["eval", "touch here; sleep 1000"]}).encode()
    head = f"POST {bridge.root}/exec HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {bridge.server.key}\r\n"
    bridge.exec("export", "A=1", session="s1")
    with bridge.connect() as client:
        client.sendall(f"{head}Session-Id: s1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        until = time.monotonic() + 20
        while bridge.exec("test", "-e", "here").exit_code != 0:
            assert time.monotonic() < until
    assert bridge.shell("echo $A", session="s1", timeout_ms=20_000).stdout == b"1\n"


def test_a_timeout_keeps_the_session(bridge: BridgeClient) -> None:
    bridge.exec("export", "A=1", session="s1")
    ran = bridge.exec("sleep", "1000", session="s1", timeout_ms=200)
    assert ran.exit_code == 124
    assert b"Command timed out after 200ms" in ran.stderr
    assert bridge.exec("printenv", "A", session="s1").stdout == b"1\n"


def test_a_shell_that_exits_gives_its_code_and_the_id_a_new_one(bridge: BridgeClient) -> None:
    bridge.exec("export", "A=1", session="s1")
    assert bridge.exec("exit", "42", session="s1").exit_code == 42
    assert bridge.shell("echo $A", session="s1").stdout == b"\n"


MOUNT = {"bucket": "b", "mountPath": "/mnt", "options": {"endpoint": "https://s3.example"}}
BAD_MOUNTS = (
    (b"no json", "Invalid JSON"),
    ({**MOUNT, "bucket": ""}, "bucket"),
    ({**MOUNT, "bucket": 5}, "bucket"),
    ({**MOUNT, "bucket": None}, "bucket"),
    ({"mountPath": "/mnt", "options": {"endpoint": "https://s3.example"}}, "bucket"),
    ({**MOUNT, "mountPath": ""}, "mountPath"),
    ({**MOUNT, "mountPath": 5}, "mountPath"),
    ({"bucket": "b", "options": {}}, "mountPath"),
    ({**MOUNT, "mountPath": "mnt"}, "absolute path"),
    ({"bucket": "b", "mountPath": "/mnt"}, "options"),
    ({**MOUNT, "options": None}, "options"),
    ({**MOUNT, "options": []}, "options"),
    ({**MOUNT, "options": {"endpoint": 5}}, "endpoint"),
    ({**MOUNT, "options": {"endpoint": "e", "s3fsOptions": "x"}}, "s3fsOptions"),
    ({**MOUNT, "options": {"endpoint": "e", "s3fsOptions": [5]}}, "s3fsOptions"),
    ({**MOUNT, "options": {"endpoint": "e", "readOnly": "yes"}}, "readOnly"),
    ({**MOUNT, "options": {"endpoint": "e", "prefix": 5}}, "prefix"),
    ({**MOUNT, "options": {"endpoint": "e", "credentialProxy": 1}}, "credentialProxy"),
    ({**MOUNT, "options": {"endpoint": "e", "credentials": []}}, "credentials"),
    ({**MOUNT, "options": {"endpoint": "e", "credentials": {"accessKeyId": "a"}}}, "credentials"),
    ({"binding": 5, "mountPath": "/mnt", "options": {}}, "binding"),
    ({"binding": "", "mountPath": "/mnt", "options": {}}, "binding"),
    ({"binding": "B", "mountPath": "/mnt", "options": {"endpoint": "e"}}, "either binding or options.endpoint"),
    ({"bucket": "b", "mountPath": "/mnt", "options": {}}, "binding"),
    ({"mountPath": "/mnt", "options": {}}, "binding"),
    ({"bucket": "", "mountPath": "", "options": None}, "bucket"),
    ({"bucket": "b", "mountPath": "", "options": None}, "mountPath"),
)


def test_mounts_are_checked_in_order(bridge: BridgeClient) -> None:
    for body, text in BAD_MOUNTS:
        refusal = bridge.call("POST", "mount", body).refusal
        assert refusal[:2] == (400, "invalid_request"), body
        assert text in refusal[2], body


def test_valid_mounts_are_not_to_be_had(bridge: BridgeClient) -> None:
    for body in (
        MOUNT,
        {"binding": "B", "mountPath": "/mnt", "options": {"provider": "r2", "prefix": "/x/", "readOnly": True}},
        {**MOUNT, "options": {"endpoint": "e", "credentials": {"accessKeyId": "a", "secretAccessKey": "s"}}},
    ):
        assert bridge.call("POST", "mount", body).refusal[:2] == (502, "mount_error")


def test_unmount_is_checked_and_touches_nothing(bridge: BridgeClient) -> None:
    bridge.exec("mkdir", "plain")
    for body, text in (
        (b"no json", "Invalid JSON"),
        ({}, "mountPath"),
        ({"mountPath": ""}, "mountPath"),
        ({"mountPath": "mnt"}, "absolute path"),
        ({"mountPath": "/"}, "filesystem root"),
        ({"mountPath": "/a/.."}, "filesystem root"),
    ):
        refusal = bridge.call("POST", "unmount", body).refusal
        assert refusal[:2] == (400, "invalid_request"), body
        assert text in refusal[2], body
    assert bridge.call("POST", "unmount", {"mountPath": "/workspace/plain"}).refusal[:2] == (502, "unmount_error")
    assert bridge.exec("test", "-d", "plain").exit_code == 0


@pytest.mark.parametrize("port", ["3000", "1023", "65536", "0", "-1", "abc", "80800000", "8000x", "1e4", ""])
def test_ports_that_no_tunnel_leads_to_are_400(bridge: BridgeClient, port: str) -> None:
    for method in ("POST", "DELETE"):
        assert bridge.call(method, f"tunnel/{port}").refusal == (400, "invalid_request", "Invalid port")


def test_a_tunnel_is_the_same_until_it_is_deleted(bridge: BridgeClient) -> None:
    first = bridge.call("POST", "tunnel/8000", b"")
    assert first.status == 200
    assert first.json.keys() == {"id", "port", "url", "path_url", "hostname", "createdAt"}
    assert first.json["port"] == 8000
    assert first.json["url"].startswith("http")
    assert first.json["hostname"] in first.json["url"]
    assert urlsplit(first.json["path_url"]).hostname == "127.0.0.1"
    for body in (b"", b"{}", b"[]", b"5", b'{"other": 1}'):
        assert bridge.call("POST", "tunnel/8000", body).json == first.json
    for _ in range(2):
        reply = bridge.call("DELETE", "tunnel/8000")
        assert (reply.status, reply.body) == (204, b"")
    assert bridge.call("POST", "tunnel/8000", b"").json["id"] != first.json["id"]


def test_a_tunnel_that_some_open_while_others_delete_it_is_there_or_not(bridge: BridgeClient) -> None:
    bridge.exec("true")
    methods = ("POST", "POST", "DELETE") * 60
    with ThreadPoolExecutor(12) as pool:
        statuses = list(pool.map(lambda method: bridge.call(method, "tunnel/8000").status, methods))
    assert statuses == [200 if method == "POST" else 204 for method in methods]


def test_names_of_tunnels_are_checked(bridge: BridgeClient) -> None:
    assert "JSON" in bridge.call("POST", "tunnel/8000", b"no json").refusal[2]
    for name, text in (
        (5, "name must be a string"),
        (None, "name must be a string"),
        ("", "valid DNS label"),
        ("-a", "valid DNS label"),
        ("a-", "valid DNS label"),
        ("A", "valid DNS label"),
        ("a.b", "valid DNS label"),
        ("x" * 64, "valid DNS label"),
    ):
        refusal = bridge.call("POST", "tunnel/8000", {"name": name}).refusal
        assert refusal[:2] == (400, "invalid_request")
        assert text in refusal[2]


def test_a_tunnel_has_the_name_that_it_was_first_given(bridge: BridgeClient) -> None:
    for port, name in enumerate(("app", "a-b", "7", "x" * 63), 8000):
        first = bridge.call("POST", f"tunnel/{port}", {"name": name})
        assert first.status == 200
        assert first.json.keys() == {"id", "port", "url", "path_url", "hostname", "createdAt", "name"}
        assert (first.json["port"], first.json["name"]) == (port, name)
        for body in (b"", {"name": "another"}):
            assert bridge.call("POST", f"tunnel/{port}", body).json == first.json
