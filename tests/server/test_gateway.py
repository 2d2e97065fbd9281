"""The gateway: who is let in, where requests go, and what becomes of them when a runtime is not there."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from io import FileIO
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.raw_http import connect, serve, serve_unix
from support.servers import serving

from cove import SandboxSpec
from cove.core.identifier import new_identifier
from cove.errors import SandboxUnavailable, ValidationFailed
from cove.http import Answer, Request, Response
from cove.linux.file_lock import make_locked
from cove.model import SandboxStatus
from cove.runtime.home import LOCK
from cove.server.configuration import Configuration
from cove.server.gateway.auth import Authenticator, load_key
from cove.server.gateway.documents import Documents
from cove.server.gateway.handler import Gateway
from cove.server.sandboxes.directory import Directory, Record
from cove.server.sandboxes.starter import Starter

pytestmark = [pytest.mark.anyio, pytest.mark.pure]

KEY = "the-key-of-this-server"
BEARER = f"Bearer {KEY}"


@pytest.fixture
def directory(other_home: Path) -> Directory:
    directory = Directory(other_home)
    directory.open()
    (other_home / "sandboxes").mkdir(exist_ok=True)
    return directory


@asynccontextmanager
async def gateway(directory: Directory, authenticator: Authenticator | None = None) -> AsyncIterator[int]:
    """A worker of a server that has no zygote: nothing can be started."""
    authenticator = authenticator or Authenticator(KEY, is_loopback=True)
    documents = Documents(json=b"as JSON", html=b"as a page")
    async with (
        Gateway(directory, Starter(directory.home), authenticator, documents) as handler,
        serve(handler, grace=1.0) as port,
    ):
        yield port


@asynccontextmanager
async def sandbox(directory: Directory, id: str, *, status: SandboxStatus) -> AsyncIterator[Record]:
    """What a sandbox leaves on disk; a running one has its lock."""
    record, lock = await asyncio.to_thread(write_down, directory, id, status)
    try:
        yield record
    finally:
        if lock is not None:
            lock.close()


def write_down(directory: Directory, id: str, status: SandboxStatus) -> tuple[Record, FileIO | None]:
    record = Record(
        id=id,
        key=new_identifier(),
        spec=SandboxSpec(),
        created_at=datetime.now(UTC),
        status=SandboxStatus.STOPPED if status is SandboxStatus.STOPPED else SandboxStatus.RUNNING,
    )
    directory.place(record.key).mkdir()
    directory.write(record)
    directory.entry(id).write_text(record.key)
    is_running = status is SandboxStatus.RUNNING
    return record, make_locked(directory.place(record.key) / LOCK) if is_running else None


async def runtime(request: Request) -> Answer:
    body = await request.read(1000)
    return Response(200, (), f"{request.method} {request.path}?{request.query} {body.decode()}".encode())


# Who is let in

GUARDED = [
    "/",
    "/metrics",
    "/v1/sandboxes",
    "/v1/sandboxes/a",
    "/v1/sandboxes/a/exec",
    "/v1/sandbox/x",
    "/v1/openapi.json",
]


@pytest.mark.parametrize("path", GUARDED)
@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        f"Basic {KEY}",
        KEY,
        "Bearer \xff",
    ],
)
async def test_without_the_key_nothing_is_told(directory: Directory, path: str, authorization: str) -> None:
    async with gateway(directory) as port, connect(port) as client:
        for method in ("GET", "POST", "DELETE"):
            client.send(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n".encode())
            client.send(b"Authorization: " + authorization.encode("latin-1") + b"\r\n\r\n")
            reply = await client.reply()
            assert reply.status == 401
            assert json.loads(reply.body)["code"] == "UNAUTHORIZED"
            assert reply.headers["www-authenticate"] == "Bearer"


async def test_health_is_open(directory: Directory) -> None:
    async with gateway(directory) as port, connect(port) as client:
        reply = await client.ask("/health", Origin="http://elsewhere")
        assert (reply.status, json.loads(reply.body)) == (200, {"ok": True})


async def test_the_scheme_of_the_key_is_not_case_sensitive(directory: Directory) -> None:
    async with gateway(directory) as port, connect(port) as client:
        for scheme in ("Bearer", "bearer", "BEARER"):
            assert (await client.ask("/v1/sandboxes", Authorization=f"{scheme} {KEY}")).status == 200


async def test_a_key_in_the_address_opens_the_documents_only(directory: Directory) -> None:
    async with gateway(directory) as port, connect(port) as client:
        assert (await client.ask(f"/v1/openapi.json?token={KEY}")).body == b"as JSON"
        assert (await client.ask(f"/v1/openapi.html?x=y&token={KEY}")).body == b"as a page"
        assert (await client.ask("/v1/openapi.json?token=wrong")).status == 401
        assert (await client.ask("/v1/openapi.json?token=%FF%00")).status == 401
        assert (await client.ask("/v1/openapi.json?" + "&" * 100)).status == 401
        assert (await client.ask("/v1/openapi.json?" + "a=b&" * 100)).status == 401
        assert (await client.ask(f"/v1/sandboxes?token={KEY}")).status == 401
        assert (await client.ask(f"/v1/sandboxes/a/exec?token={KEY}")).status == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("localhost", 200), ("LOCALHOST:8787", 200), ("127.0.0.1:1", 200), ("[::1]:8787", 200), ("a.localhost", 200)),
        *(("cove.example", 200), ("evil.example", 403), ("127.0.0.1.evil.example", 403), ("localhost.evil", 403)),
        *(("notlocalhost", 403), ("", 403)),
    ],
)
async def test_a_name_that_somebody_points_at_this_machine_is_refused(
    directory: Directory, host: str, status: int
) -> None:
    authenticator = Authenticator(None, is_loopback=True, names=["Cove.example"])
    async with gateway(directory, authenticator) as port, connect(port) as client:
        for _ in range(2):
            client.send(f"GET /v1/sandboxes HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert (await client.reply()).status == status


@pytest.mark.parametrize("host", ["localhost:x", "[::1", "a@localhost"])
async def test_what_is_no_name_is_refused(directory: Directory, host: str) -> None:
    async with gateway(directory, Authenticator(None, is_loopback=True)) as port, connect(port) as client:
        client.send(f"GET /v1/sandboxes HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert (await client.reply()).status == 400


async def test_a_server_for_other_machines_is_called_by_any_name(directory: Directory) -> None:
    async with gateway(directory, Authenticator(KEY, is_loopback=False)) as port, connect(port) as client:
        client.send(
            b"GET /v1/sandboxes HTTP/1.1\r\nHost: any.example\r\nAuthorization: " + BEARER.encode() + b"\r\n\r\n"
        )
        assert (await client.reply()).status == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        *(("http://localhost", 200), ("https://localhost", 200), ("http://console.example", 200)),
        *(("http://evil.example", 403), ("null", 403), ("http://localhost:1", 403), ("localhost", 403), ("", 403)),
    ],
)
async def test_a_page_of_another_origin_is_refused(directory: Directory, origin: str, status: int) -> None:
    authenticator = Authenticator(None, is_loopback=True, origins=["http://console.example"])
    async with gateway(directory, authenticator) as port, connect(port) as client:
        assert (await client.ask("/v1/sandboxes", Origin=origin)).status == status


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
)
async def test_an_image_in_a_page_elsewhere_starts_nothing(directory: Directory, site: str, status: int) -> None:
    authenticator = Authenticator(None, is_loopback=True)
    async with gateway(directory, authenticator) as port, connect(port) as client:
        assert (await client.ask("/v1/sandboxes", Sec_Fetch_Site=site)).status == status


# Where requests go


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/", "/v1/sandboxesx", "/v2/sandboxes", "/healthx", "//v1/sandboxes"])
async def test_there_is_nothing_elsewhere(directory: Directory, path: str) -> None:
    async with gateway(directory) as port, connect(port) as client:
        reply = await client.ask(path, Authorization=BEARER)
        assert (reply.status, json.loads(reply.body)["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/v1/sandboxes"), ("POST", "/v1/sandboxes/a"), ("POST", "/metrics")]
)
async def test_a_method_that_makes_no_sense_is_refused(directory: Directory, method: str, path: str) -> None:
    async with gateway(directory) as port, connect(port) as client:
        reply = await client.ask(path, method=method, Authorization=BEARER)
        assert (reply.status, json.loads(reply.body)["code"]) == (405, "METHOD_NOT_ALLOWED")


async def test_what_is_below_a_sandbox_goes_to_its_runtime(directory: Directory) -> None:
    async with (
        sandbox(directory, "one", status=SandboxStatus.RUNNING) as one,
        sandbox(directory, "two", status=SandboxStatus.RUNNING) as two,
        serve_unix(runtime, directory.socket(one)),
        serve_unix(lambda request: Response(200, (), b"two"), directory.socket(two)),
        gateway(directory) as port,
        connect(port) as client,
    ):
        for _ in range(3):
            reply = await client.ask("/v1/sandboxes/one/a%2Fb?c=d", method="POST", body=b"body", Authorization=BEARER)
            assert reply.body == b"POST /v1/sandboxes/one/a%2Fb?c=d body"
            assert (await client.ask("/v1/sandboxes/two/x", Authorization=BEARER)).body == b"two"
        assert (await client.ask("/v1/sandboxes/three/x", Authorization=BEARER)).status == 404
        assert (await client.ask("/v1/sandboxes/UPPER/x", Authorization=BEARER)).status == 400
        assert (await client.ask("/v1/sandboxes/%2E%2E/x", Authorization=BEARER)).status == 400


async def test_a_sandbox_that_was_made_anew_is_found_again(directory: Directory) -> None:
    async with gateway(directory) as port, connect(port) as client:
        for name in (b"first", b"second"):
            answer = Response(200, (), name)
            async with (
                sandbox(directory, "one", status=SandboxStatus.RUNNING) as record,
                serve_unix(partial(_give, answer), directory.socket(record)),
            ):
                for _ in range(2):
                    assert (await client.ask("/v1/sandboxes/one/x", Authorization=BEARER)).body == name
        directory.entry("one").unlink()
        reply = await client.ask("/v1/sandboxes/one/x", Authorization=BEARER)
        assert (reply.status, json.loads(reply.body)["code"]) == (404, "SANDBOX_NOT_FOUND")


async def test_a_lost_sandbox_is_unavailable_and_the_answer_says_what_to_do(directory: Directory) -> None:
    async with (
        sandbox(directory, "one", status=SandboxStatus.LOST),
        gateway(directory) as port,
        connect(port) as client,
    ):
        reply = await client.ask("/v1/sandboxes/one/exec", method="POST", body=b"{}", Authorization=BEARER)
        assert (reply.status, json.loads(reply.body)["code"]) == (503, "SANDBOX_UNAVAILABLE")
        assert "POST /v1/sandboxes/one/restart" in json.loads(reply.body)["error"]


async def test_looking_starts_nothing(directory: Directory) -> None:
    async with (
        sandbox(directory, "lost", status=SandboxStatus.LOST),
        sandbox(directory, "stopped", status=SandboxStatus.STOPPED),
        gateway(directory) as port,
        connect(port) as client,
    ):
        listed = json.loads((await client.ask("/v1/sandboxes", Authorization=BEARER)).body)
        assert {each["id"]: each["status"] for each in listed} == {"lost": "lost", "stopped": "stopped"}
        for id in ("lost", "stopped"):
            reply = await client.ask(f"/v1/sandboxes/{id}", Authorization=BEARER)
            assert json.loads(reply.body)["status"] == id
        reply = await client.ask("/metrics", Authorization=BEARER)
        assert b'cove_sandboxes{status="stopped"} 1\n' in reply.body
        reply = await client.ask("/v1/sandboxes/stopped/exec", method="POST", body=b"{}", Authorization=BEARER)
        assert reply.status == 503  # only this one asks for it to be started, and here nobody can


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"{",
            b"[]",
            b"\xff",
            b'{"unknown": 1}',
            b'{"id": 5}',
            b'{"spec": {"limits": {"memory": -1}}}',
            b'{"id": "A"}',
        ),
        b'{"spec": {"mounts": [{"source": "/srv", "target": "/data\\u0000--bind\\u0000/\\u0000/host"}]}}',
        b'{"spec": {"mounts": [{"source": "/srv\\u0000--share-net", "target": "/data"}]}}',
        b'{"spec": {"workdir": "/\\u0000"}}',
        b'{"id": "a\\u0000--share-net"}',
    ],
)
async def test_a_creation_that_makes_no_sense_is_refused(directory: Directory, body: bytes) -> None:
    async with gateway(directory) as port, connect(port) as client:
        reply = await client.ask("/v1/sandboxes", method="POST", body=body, Authorization=BEARER)
        assert (reply.status, json.loads(reply.body)["code"]) == (400, "VALIDATION_FAILED")


async def test_a_creation_has_a_limited_size(directory: Directory) -> None:
    async with gateway(directory) as port, connect(port) as client:
        body = json.dumps({"spec": {"env": {"A": "x" * (2 << 20)}}}).encode()
        assert (await client.ask("/v1/sandboxes", method="POST", body=body, Authorization=BEARER)).status == 413


async def test_a_sandbox_whose_runtime_was_killed_can_be_restarted(other_home: Path) -> None:
    with serving(other_home, "--on-stop", "destroy") as server:
        sandbox = await server.create("one")
        await sandbox.files.write("kept", b"kept")
        os.kill(await server.runtime("one"), signal.SIGKILL)
        port = urlsplit(server.url).port
        assert port is not None
        bearer = f"Bearer {server.key}"
        body = json.dumps({"command": "cat kept"}).encode()
        async with connect(port) as client:
            reply = await client.ask("/v1/sandboxes/one/exec", method="POST", body=body, Authorization=bearer)
            assert reply.status == 503
            while json.loads((await client.ask("/v1/sandboxes/one", Authorization=bearer)).body)["status"] != "lost":
                await asyncio.sleep(0.01)
            assert (
                await client.ask("/v1/sandboxes/one/exec", method="POST", body=body, Authorization=bearer)
            ).status == 503
            assert (await client.ask("/v1/sandboxes/one/restart", method="POST", Authorization=bearer)).status == 204
            reply = await client.ask("/v1/sandboxes/one/exec", method="POST", body=body, Authorization=bearer)
            assert json.loads(reply.body)["stdout"] == "kept"
            assert (await client.ask("/v1/sandboxes/one", method="DELETE", Authorization=bearer)).status == 204
            assert (await client.ask("/v1/sandboxes/one", method="DELETE", Authorization=bearer)).status == 204
            assert (await client.ask("/v1/sandboxes/one", Authorization=bearer)).status == 404


# The key


def test_a_key_is_made_once_and_only_this_user_can_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COVE_API_KEY", raising=False)
    key = load_key(tmp_path)
    assert len(key) >= 40
    assert load_key(tmp_path) == key
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["key"]


async def test_all_who_make_a_key_at_the_same_time_get_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COVE_API_KEY", raising=False)
    keys = await asyncio.gather(*(asyncio.to_thread(load_key, tmp_path) for _ in range(20)))
    assert len(set(keys)) == 1


def test_a_key_that_is_given_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVE_API_KEY", "from-the-environment")
    assert load_key(tmp_path) == "from-the-environment"
    assert load_key(tmp_path, "from-the-configuration") == "from-the-configuration"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("key", ["short", "with a space", "with-ümlaut", "with\nnewline"])
def test_a_key_that_no_header_can_carry_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValidationFailed):
        load_key(tmp_path, key)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COVE_API_KEY", raising=False)
    load_key(tmp_path)
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(SandboxUnavailable, match="chmod 600"):
        load_key(tmp_path)


def test_names_and_origins_are_configured() -> None:
    configuration = Configuration(names=("cove.example",), origins=("https://console.example",))
    assert configuration.names == ("cove.example",)
    assert configuration.origins == ("https://console.example",)


def _give(answer: Response, _: Request) -> Response:
    return answer
