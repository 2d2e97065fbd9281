"""The bridge protocol: ids, keys, routes, and the life of a sandbox."""

import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.bridge_client import BridgeClient, bridge_server, fresh_sandbox, read_events
from support.bridge_fixtures import bridge, server
from support.servers import Server
from support.upstream import running_upstream

from cove.server.bridge import ids
from cove.server.bridge.ids import UnusedIds
from cove.server.sandboxes.directory import Directory

pytestmark = pytest.mark.pure

__all__ = ["bridge", "server"]  # fixtures


def test_a_new_sandbox_is_only_an_id(bridge: BridgeClient, server: Server) -> None:
    before = server.directory.count()
    first, second = (bridge.send("POST", "/v1/sandbox", b"") for _ in range(2))
    assert first.status == 200
    assert re.fullmatch(r"[a-z2-7]{26}", first.json["id"])
    assert first.json.keys() == {"id"}
    assert first.json != second.json
    assert server.directory.count() == before


def test_bodies_that_are_not_known_are_ignored(bridge: BridgeClient) -> None:
    for body in (b'{"exposedPorts": [3000], "timeoutMs": 5, "mounts": []}', b"no json", b"[]"):
        assert bridge.send("POST", "/v1/sandbox", body).status == 200


def test_any_valid_id_works_without_having_been_created(bridge: BridgeClient) -> None:
    assert bridge.exec("pwd").stdout == b"/workspace\n"


def test_ids_of_one_and_of_128_characters_are_valid(server: Server) -> None:
    for id in ("q", "7" * 128):
        client = BridgeClient(server, id)
        try:
            assert client.exec("true").exit_code == 0
        finally:
            client.delete()


INVALID_IDS = ("A", "a1", "a8", "a-b", "a_b", "a.b", "%61bc", "a" * 129, "a%2Fb", "..")


@pytest.mark.parametrize("id", INVALID_IDS)
def test_what_is_no_id_is_refused_before_the_key_is_looked_at(bridge: BridgeClient, id: str) -> None:
    for key in ("", "wrong", bridge.server.key):
        reply = bridge.send("POST", f"/v1/sandbox/{id}/exec", b"{}", key=key)
        assert reply.refusal == (400, "invalid_request", "Invalid sandbox ID format")


ROUTES = (
    ("POST", "exec"),
    ("GET", "file/workspace/a"),
    ("PUT", "file/workspace/a"),
    ("POST", "persist"),
    ("POST", "hydrate"),
    ("POST", "mount"),
    ("POST", "unmount"),
    ("POST", "session"),
    ("DELETE", "session/s"),
    ("GET", "pty"),
    ("POST", "tunnel/8000"),
    ("DELETE", "tunnel/8000"),
    ("GET", "running"),
    ("DELETE", ""),
    ("GET", "nothing"),
)


@pytest.mark.parametrize(("method", "route"), ROUTES)
def test_every_route_needs_the_key_and_starts_nothing_without_it(
    bridge: BridgeClient, server: Server, method: str, route: str
) -> None:
    path = f"{bridge.root}/{route}".removesuffix("/")
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": server.key}):
        status, code, _ = bridge.send(method, path, b"", headers, key="").refusal
        assert (status, code) == (401, "unauthorized")
    elsewhere = [f"token={server.key}", f"authorization=Bearer%20{'wrong' if route == 'pty' else server.key}"]
    for query in elsewhere:
        assert bridge.send(method, f"{path}?{query}", b"", key="").status == 401
    assert server.directory.find(bridge.id) is None


@pytest.mark.parametrize("key", ["", None])
def test_a_query_with_more_fields_than_anybody_needs_is_refused(bridge: BridgeClient, key: str | None) -> None:
    query = "&".join(["a=1"] * 200)
    assert bridge.send("GET", f"{bridge.root}/pty?{query}", key=key).refusal[:2] == (400, "invalid_request")


@pytest.mark.parametrize("path", ["/v1/sandbox", "/v1/pool/stats", "/v1/pool/prime"])
def test_routes_without_an_id_need_the_key_too(bridge: BridgeClient, path: str) -> None:
    assert bridge.send("POST", path, b"", key="").refusal[:2] == (401, "unauthorized")


def test_the_scheme_of_the_key_is_matched_without_regard_to_case(bridge: BridgeClient) -> None:
    for scheme in ("bearer", "BEARER", "Bearer"):
        headers = {"Authorization": f"{scheme} {bridge.server.key}"}
        assert bridge.send("GET", f"{bridge.root}/running", headers=headers, key="").status == 200


UNKNOWN = (
    ("GET", "/v1/sandbox"),
    ("PUT", "/v1/sandbox"),
    ("GET", "/v1/sandbox/abc"),
    ("POST", "/v1/sandbox/abc"),
    ("GET", "/v1/sandbox/abc/exec"),
    ("POST", "/v1/sandbox/abc/file/workspace/a"),
    ("DELETE", "/v1/sandbox/abc/file/workspace/a"),
    ("POST", "/v1/sandbox/abc/running"),
    ("GET", "/v1/sandbox/abc/persist"),
    ("GET", "/v1/sandbox/abc/hydrate"),
    ("POST", "/v1/sandbox/abc/pty"),
    ("GET", "/v1/sandbox/abc/session"),
    ("POST", "/v1/sandbox/abc/session/s"),
    ("GET", "/v1/sandbox/abc/tunnel/8000"),
    ("DELETE", "/v1/sandbox/abc/session/s/more"),
    ("DELETE", "/v1/sandbox/abc/session/s/"),
    ("POST", "/v1/sandbox/abc/tunnel"),
    ("POST", "/v1/sandbox/abc/tunnel/8000/more"),
    ("DELETE", "/v1/sandbox/abc/tunnel/8000/"),
    ("GET", "/v1/sandbox/abc/"),
    ("GET", "/v1/sandbox/abc/nothing"),
    ("POST", "/v1/sandbox/abc/exec/more"),
    ("POST", "/sandbox/abc/exec"),
    ("POST", "/sandbox"),
    ("GET", "/v1/pool/prime"),
    ("GET", "/v1/pool/nothing"),
)


@pytest.mark.parametrize(("method", "path"), UNKNOWN)
def test_unknown_routes_and_methods_are_404_and_start_nothing(
    bridge: BridgeClient, server: Server, method: str, path: str
) -> None:
    assert bridge.send(method, path, b"").status == 404
    assert server.directory.find("abc") is None


def test_running_is_true_for_ids_that_exist_or_were_handed_out(bridge: BridgeClient, server: Server) -> None:
    def is_running(id: str) -> bool:
        reply = bridge.send("GET", f"/v1/sandbox/{id}/running")
        assert reply.status == 200
        assert reply.json.keys() == {"running"}
        return bool(reply.json["running"])

    assert not is_running(bridge.id)
    assert server.directory.find(bridge.id) is None
    bridge.exec("true")
    assert is_running(bridge.id)
    bridge.delete()
    assert not is_running(bridge.id)
    handed_out = bridge.send("POST", "/v1/sandbox").json["id"]
    assert is_running(handed_out)
    with_it = BridgeClient(server, handed_out)
    with_it.exec("true")
    assert is_running(handed_out)
    with_it.delete()
    assert not is_running(handed_out)


def test_an_id_that_was_handed_out_and_deleted_unused_is_not_running(bridge: BridgeClient, server: Server) -> None:
    client = BridgeClient(server, bridge.send("POST", "/v1/sandbox").json["id"])
    client.delete()
    assert client.call("GET", "running").json == {"running": False}


def test_delete_is_204_for_live_gone_and_unknown_ids(bridge: BridgeClient) -> None:
    bridge.exec("true")
    for _ in range(3):
        reply = bridge.send("DELETE", bridge.root)
        assert (reply.status, reply.body) == (204, b"")


def test_an_id_that_is_used_again_after_delete_is_a_fresh_sandbox(bridge: BridgeClient) -> None:
    bridge.shell("touch /workspace/a /tmp/b; sleep 1000 &")
    bridge.delete()
    assert bridge.shell("ls -A /workspace /tmp; ps -e | grep -c sleep").stdout == b"/tmp:\n\n/workspace:\n0\n"


def test_files_and_background_processes_live_on_between_calls(bridge: BridgeClient) -> None:
    bridge.shell("echo kept > /tmp/file; (while :; do sleep 0.05; date +%N > /tmp/beat; done) >/dev/null 2>&1 &")
    beats: set[bytes] = set()
    until = time.monotonic() + 20
    while len(beats) < 3:
        assert time.monotonic() < until
        beats.add(bridge.shell("cat /tmp/file /tmp/beat").stdout)
    assert all(beat.startswith(b"kept\n") for beat in beats)


def test_delete_ends_the_streams_of_running_commands_at_once(bridge: BridgeClient) -> None:
    bridge.exec("true")
    with ThreadPoolExecutor() as pool:
        running = pool.submit(bridge.call, "POST", "exec", {"argv": ["sh", "-c", "touch /tmp/here; sleep 1000"]})
        until = time.monotonic() + 20
        while bridge.exec("test", "-e", "/tmp/here").exit_code != 0:
            assert time.monotonic() < until
        bridge.delete()
        ran = read_events(running.result().body)
    assert ran.exit_code == 137 or ran.error is not None


def test_first_uses_of_one_id_at_the_same_time_meet_in_one_sandbox(bridge: BridgeClient) -> None:
    with ThreadPoolExecutor(8) as pool:
        codes = [ran.exit_code for ran in pool.map(lambda _: bridge.exec("mkdir", "/tmp/one"), range(8))]
    assert sorted(code for code in codes if code is not None) == [0] + [1] * 7


def test_sandboxes_share_nothing(bridge: BridgeClient, server: Server) -> None:
    with fresh_sandbox(server) as other:
        bridge.shell("touch /workspace/a /tmp/a")
        assert other.shell("ls -A /workspace /tmp").stdout == b"/tmp:\n\n/workspace:\n"


def test_the_native_api_sees_the_same_sandbox(bridge: BridgeClient) -> None:
    bridge.call("PUT", "file/workspace/a.txt", b"hello")
    listed = bridge.send("GET", "/v1/sandboxes")
    assert bridge.id in [each["id"] for each in json.loads(listed.body)]


def test_the_pool_is_described_and_can_be_told(bridge: BridgeClient) -> None:
    bridge.exec("true")
    stats = bridge.send("GET", "/v1/pool/stats").json
    assert stats["assigned"] >= 1
    assert stats["total"] == stats["warm"] + stats["assigned"]
    assert stats["maxInstances"] is None
    assert stats["config"].keys() == {"warmTarget", "refreshInterval", "maxInstances", "scaleBatchSize"}
    for route in ("prime", "shutdown-prewarmed"):
        reply = bridge.send("POST", f"/v1/pool/{route}", b"")
        assert (reply.status, reply.json) == (200, {"ok": True})


@pytest.mark.parametrize("route", ["exec", "session", "mount", "unmount", "tunnel/8000"])
def test_a_body_that_is_too_large_is_heard_to_its_end_and_refused(bridge: BridgeClient, route: str) -> None:
    bridge.exec("true")
    for body in (bytes(80 << 20), iter([bytes(1 << 20)] * 80)):
        assert bridge.send("POST", f"{bridge.root}/{route}", body).refusal[:2] == (413, "payload_too_large")


def test_health_is_open(bridge: BridgeClient) -> None:
    assert bridge.send("GET", "/health", key="").json == {"ok": True}


def test_a_web_page_that_is_not_ours_is_refused(bridge: BridgeClient) -> None:
    reply = bridge.send("GET", f"{bridge.root}/running", headers={"Origin": "http://evil.example"})
    assert reply.refusal[:2] == (403, "invalid_request")


def test_ids_that_nobody_uses_are_forgotten_in_the_end(other_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "_MOST_UNUSED", 20)
    directory = Directory(other_home)
    directory.open()
    unused = UnusedIds(directory)
    made = [unused.make() for _ in range(50)]
    assert 10 <= sum(map(unused.has, made)) <= 20


DOCUMENTS = ("/v1/openapi.json", "/v1/openapi.html", "/v1/openapi")


@pytest.mark.parametrize("path", DOCUMENTS)
def test_who_may_not_see_the_documents_is_told_as_everywhere_in_the_protocol(bridge: BridgeClient, path: str) -> None:
    refused = bridge.send("GET", path, key="wrong")
    assert refused.refusal[:2] == (401, "unauthorized")
    assert refused.headers["www-authenticate"] == "Bearer"


def test_the_document_describes_every_path_that_is_answered(bridge: BridgeClient) -> None:
    described = json.loads(bridge.send("GET", "/v1/openapi.json").body)["paths"]
    for path in (*DOCUMENTS, "/health", "/metrics"):
        assert bridge.send("GET", path).status == 200
        assert "200" in described[path]["get"]["responses"]


def test_sandboxes_have_the_network_policy_that_the_configuration_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_upstream(tmp_path) as world:
        monkeypatch.setenv("SSL_CERT_FILE", str(world.ca))
        monkeypatch.setenv("A_TOKEN", "the-real-one")
        plain, secure = world.serve_http("db.example"), world.serve_http("api.example", tls=True)
        (tmp_path / "cove.toml").write_text(f"""
        [network]
        resolver = "{world.resolver}"
        [network.secrets.A_TOKEN]
        env = "A_TOKEN"
        hosts = ["api.example"]
        [network.policies.agents]
        allow = [
            {{host = "db.example:{plain}", private = true}},
            {{host = "api.example:{secure}", private = true, inject = {{X-Key = {{name = "A_TOKEN"}}}}}},
        ]
        [bridge_spec]
        network = "agents"
        [bridge_specs.closed]
        network = "none"
        [bridge_specs.inline]
        network = {{allow = [{{host = "db.example:{plain}", private = true}}]}}
        """)
        with bridge_server("--config", str(tmp_path / "cove.toml")) as server, fresh_sandbox(server) as usual:
            database, api = f"curl -sS http://db.example:{plain}/", f"curl -sS https://api.example:{secure}/"
            assert usual.shell(database).stdout == b"hello"
            assert usual.shell(api).stdout == b"hello"
            assert b"x-key: the-real-one" in world.requests[-1]
            assert usual.shell("curl -sS http://other.example/").exit_code == 6
            for name, expected in (("closed", b""), ("inline", b"hello")):
                id = usual.send("POST", "/v1/sandbox", json.dumps({"spec": name}).encode()).json["id"]
                named = BridgeClient(server, id)
                assert named.shell(database).stdout == expected
                assert named.shell(api).exit_code != 0
                named.delete()


CONFIGURATION = """
[bridge_spec]
env = {NAME = "usual"}

[bridge_spec.limits]
pids = 50

[bridge_specs.open]
network = "host"
env = {NAME = "open"}
"""


def test_sandboxes_are_what_the_configuration_says_by_name_if_a_client_names_one(tmp_path: Path) -> None:
    (tmp_path / "cove.toml").write_text(CONFIGURATION)
    with bridge_server("--config", str(tmp_path / "cove.toml")) as server, fresh_sandbox(server) as usual:
        network = os.readlink("/proc/self/ns/net").encode()
        assert usual.shell("echo $NAME").stdout == b"usual\n"
        assert usual.exec("readlink", "/proc/self/ns/net").stdout.strip() != network
        assert usual.shell("for n in $(seq 100); do sleep 5 & done; wait").exit_code != 0
        id = usual.send("POST", "/v1/sandbox", b'{"spec": "open"}').json["id"]
        named = BridgeClient(server, id)
        assert named.shell("echo $NAME").stdout == b"open\n"
        assert named.exec("readlink", "/proc/self/ns/net").stdout.strip() == network
        named.delete()
        assert named.shell("echo $NAME").stdout == b"usual\n"
        named.delete()
        refusal = usual.send("POST", "/v1/sandbox", b'{"spec": "unknown"}').refusal
        assert refusal[:2] == (400, "invalid_request")
        assert "unknown" in refusal[2]
