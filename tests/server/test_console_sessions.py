"""Sessions of the console on disk: who knows them, how many there are, and when they end."""

import os
import time
from pathlib import Path

import msgspec
import pytest

from cove.http import Request, Response
from cove.local.api_keys import ApiKeys
from cove.server.console.gate import COOKIE, HEADER, SECURE_COOKIE, ConsoleGate
from cove.server.console.live import Row, compare
from cove.server.console.sessions import DIRECTORY, MOST_PER_KEY, Session, Sessions
from cove.server.gateway.auth import Authenticator
from cove.server.gateway.key_ring import KeyRing
from cove.server.preview.exposures import PreviewAddress
from cove.server.sandboxes.directory import Directory

pytestmark = pytest.mark.pure

KEY = "the-server's-own-key"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "server").mkdir()
    return tmp_path


def files(home: Path) -> list[Path]:
    return [home / DIRECTORY / name for name in os.listdir(home / DIRECTORY)]


def test_every_process_of_a_server_and_the_next_server_know_a_session(home: Path) -> None:
    token = Sessions(home, KEY, None).begin(KEY).encode()
    principal = Sessions(home, KEY, None).find(token)
    assert principal is not None
    assert principal.is_admin
    assert Sessions(home, KEY, None).find(token[:-1] + b"_") is None


def test_a_session_ends_when_the_server_has_another_key(home: Path) -> None:
    token = Sessions(home, KEY, None).begin(KEY).encode()
    assert Sessions(home, KEY + "2", None).find(token) is None


def test_a_session_is_bound_to_one_key_of_a_tenant(home: Path) -> None:
    keys, ring = ApiKeys(home), KeyRing(home)
    made, other = keys.create("a"), keys.create("b")
    sessions = Sessions(home, KEY, ring)
    token = sessions.begin(made.key).encode()
    (path,) = files(home)
    found = msgspec.json.decode(path.read_bytes(), type=Session)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(found, handle=other.key[5:17])))
    assert sessions.find(token) is None


def test_of_many_sessions_of_one_key_the_oldest_end(home: Path) -> None:
    sessions = Sessions(home, KEY, None)
    tokens = [sessions.begin(KEY).encode() for _ in range(MOST_PER_KEY + 3)]
    assert len(files(home)) == MOST_PER_KEY
    assert [sessions.find(token) is not None for token in tokens] == [False] * 3 + [True] * MOST_PER_KEY


def test_a_session_that_is_over_is_none_and_goes_with_the_next(home: Path) -> None:
    sessions = Sessions(home, KEY, None)
    token = sessions.begin(KEY).encode()
    (path,) = files(home)
    found = msgspec.json.decode(path.read_bytes(), type=Session)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(found, expires=time.time() - 1)))
    assert sessions.find(token) is None
    sessions.begin(KEY)
    assert not path.exists()


def test_a_spoilt_file_is_no_session(home: Path) -> None:
    sessions = Sessions(home, KEY, None)
    token = sessions.begin(KEY).encode()
    (path,) = files(home)
    path.write_bytes(b"{\xff")
    assert sessions.find(token) is None
    sessions.begin(KEY)
    assert not path.exists()


@pytest.mark.parametrize(
    "token", [b"", b"cove_console_", b"cove_console_" + b"a" * 44, b"cove_console_../../../x", b"\xff"]
)
def test_what_is_no_token_opens_no_file(home: Path, token: bytes) -> None:
    assert Sessions(home, KEY, None).find(token) is None


def test_rows_that_did_not_change_are_not_told_again() -> None:
    a, b, c = (row(id) for id in "abc")
    again = msgspec.structs.replace(b, memory_bytes=1)
    changes = compare({r.key: r for r in (a, b, c)}, {r.key: r for r in (a, again)}, 1.0)
    assert (changes.changed, [each.id for each in changes.removed]) == ([again], ["c"])


def row(id: str) -> Row:
    fields: dict[str, object] = {
        "owner": None,
        "status": "running",
        "labels": {},
        "created_at": "2026-01-01T00:00:00Z",
        "image": None,
    }
    rest = {"node": None, "ends_at": None, "memory_limit": None, "cpu_limit": None}
    return msgspec.convert({"id": id, **fields, **rest}, Row)


class Source:
    """A connection that has nothing to say."""

    def want_body(self) -> None: ...

    def pause_body(self) -> None: ...


@pytest.mark.parametrize(
    ("host", "headers", "counts"),
    [
        ("cove.example", {}, "plain"),
        ("cove.example:8787", {b"origin": b"http://cove.example:8787"}, "plain"),
        ("cove.example", {b"sec-fetch-site": b"same-origin"}, "host"),
        ("cove.example", {b"origin": b"https://cove.example"}, "host"),
        ("10.0.0.1", {b"sec-fetch-site": b"same-origin"}, "host"),
        ("[::2", {b"sec-fetch-site": b"same-origin"}, "host"),
        ("localhost:8787", {b"sec-fetch-site": b"same-origin"}, "plain"),
        ("a.localhost", {b"sec-fetch-site": b"same-origin"}, "plain"),
        ("127.0.0.2:8787", {b"sec-fetch-site": b"same-origin"}, "plain"),
        ("[::1]:8787", {b"sec-fetch-site": b"same-origin"}, "plain"),
    ],
)
def test_over_tls_a_cookie_with_the_plain_name_is_none(
    home: Path, host: str, headers: dict[bytes, bytes], counts: str
) -> None:
    sessions = Sessions(home, KEY, None)
    token = sessions.begin(KEY).encode()
    authenticator = Authenticator(KEY, is_loopback=False, sessions=sessions.find)
    gate = ConsoleGate(Directory(home), authenticator, sessions, PreviewAddress())
    handler = gate.before(lambda request: Response(200, (), request.headers.get(b"authorization", b"none")))
    for name, is_session in ((COOKIE, counts == "plain"), (SECURE_COOKIE, True)):
        request = Request(Source(), 0)
        request.method, request.path = "GET", "/v1/sandboxes"
        cookie = name + b"=" + token
        request.headers = {b"host": host.encode(), HEADER: b"1", b"cookie": cookie, **headers}
        request.raw_headers = list(request.headers.items())
        answer = handler(request)
        assert isinstance(answer, Response)
        assert answer.body == (b"Bearer " + token if is_session else b"none")
        assert all(each[0] != b"cookie" for each in request.raw_headers)
