"""Who may use a server, asked of a real one: every route, by somebody without the key or from a strange web page."""

import asyncio
from pathlib import Path
from typing import cast

import aiohttp
import pytest
from support.raw_http import Reply, connect
from support.servers import Server, serving
from support.serving import address
from yarl import URL

from cove import AsyncSandbox, Unauthorized
from cove.wire.openapi import make_document

pytestmark = [pytest.mark.anyio, pytest.mark.pure]

PATHS = cast(dict[str, dict[str, dict[str, object]]], make_document("0")["paths"])
ROUTES = [
    (verb.upper(), path)
    for path, verbs in PATHS.items()
    for verb, operation in verbs.items()
    if operation.get("security") != []  # whoever watches over the server may ask whether it lives
]
OTHER_ROUTES = [("GET", "/metrics"), ("GET", "/v1/openapi.json"), ("GET", "/v1/openapi.html"), ("GET", "/nothing")]
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
WRONG_KEYS = ["", "Bearer", "Bearer ", "Bearer wrong", "Basic {key}", "{key}", "Bearer {key}x", "Bearer {short}"]


def port_of(server: Server) -> int:
    port = URL(server.url).port
    assert port is not None
    return port


def filled(path: str) -> str:
    """The route with ids in it, of a sandbox that is there."""
    for name in ("sandbox", "id"):
        path = path.replace("{" + name + "}", "guarded")
    return "/".join("x" if part.startswith("{") else part for part in path.split("/"))


async def ask(server: Server, verb: str, path: str, headers: dict[str, str]) -> Reply:
    async with connect(port_of(server)) as client:
        lines = [f"{verb} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        client.send("\r\n".join([*lines, "Content-Length: 0", "", ""]).encode("latin-1"))
        return await client.reply(head_only=verb == "HEAD")


def with_key(server: Server, **headers: str) -> dict[str, str]:
    return {"Host": f"127.0.0.1:{port_of(server)}", "Authorization": f"Bearer {server.key}", **headers}


@pytest.fixture
def wrong_keys(shared_server: Server) -> list[str]:
    key = shared_server.key
    return [each.format(key=key, short=key[:-1]) for each in WRONG_KEYS]


async def test_without_the_key_every_route_answers_401(shared_server: Server, wrong_keys: list[str]) -> None:
    async with AsyncSandbox.create(id="guarded", **address(shared_server)) as sandbox:
        await sandbox.start_process("sleep 1000", id="x")
        await sandbox.terminal(id="x")
        for verb, path in ROUTES + OTHER_ROUTES:
            for headers in ({}, UPGRADE):
                reply = await ask(shared_server, verb, filled(path), {"Host": "localhost", **headers})
                assert reply.status == 401, (verb, path, reply)
        for wrong in wrong_keys:
            for verb, path in (("GET", "/v1/sandboxes"), ("POST", "/v1/sandbox"), ("DELETE", "/v1/sandboxes/guarded")):
                headers = {"Host": "localhost", **({"Authorization": wrong} if wrong else {})}
                assert (await ask(shared_server, verb, path, headers)).status == 401, wrong
        assert (await sandbox.get_process("x")).status == "running"
        assert (await ask(shared_server, "GET", "/health", {"Host": "localhost"})).status == 200


async def test_the_key_in_the_address_opens_the_documents_only(shared_server: Server) -> None:
    for verb, path in ROUTES + OTHER_ROUTES:
        reply = await ask(shared_server, verb, f"{filled(path)}?token={shared_server.key}", {"Host": "localhost"})
        is_document = path.startswith("/v1/openapi")
        assert reply.status == (200 if is_document else 401), (verb, path, reply)


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "[::1", "", "a b"]
)
async def test_a_name_that_is_not_ours_is_refused_also_with_the_key(host: str, shared_server: Server) -> None:
    async with AsyncSandbox.create(id="guarded", **address(shared_server)):
        for verb, path in ROUTES:
            reply = await ask(shared_server, verb, filled(path), with_key(shared_server, Host=host))
            assert reply.status in (400, 403), (verb, path, reply)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://localhost.evil.example", "http://localhost:1"]
)
async def test_a_page_of_another_origin_is_refused_also_with_the_key(origin: str, shared_server: Server) -> None:
    async with AsyncSandbox.create(id="guarded", **address(shared_server)):
        for verb, path in ROUTES:
            for headers in ({}, UPGRADE):
                sent = with_key(shared_server, Origin=origin, **headers)
                reply = await ask(shared_server, verb, filled(path), sent)
                assert reply.status == 403, (verb, path, reply)


async def test_our_own_page_and_no_page_are_served(shared_server: Server) -> None:
    own = f"http://127.0.0.1:{port_of(shared_server)}"
    assert (await ask(shared_server, "GET", "/v1/sandboxes", with_key(shared_server, Origin=own))).status == 200
    assert (await ask(shared_server, "GET", "/v1/sandboxes", with_key(shared_server))).status == 200


@pytest.mark.parametrize("verb", ["TRACE", "CONNECT", "OPTIONS", "PROPFIND", "get", "FOO"])
async def test_other_methods_are_refused(verb: str, shared_server: Server) -> None:
    async with AsyncSandbox.create(id="guarded", **address(shared_server)):
        for path in PATHS:
            reply = await ask(shared_server, verb, filled(path), with_key(shared_server))
            assert reply.status in (400, 404, 405), (verb, path, reply)


async def test_a_request_has_a_largest_size(shared_server: Server) -> None:
    async with AsyncSandbox.create(id="guarded", **address(shared_server)) as sandbox:
        for path, size in (("/v1/sandboxes", 1 << 20), ("/v1/sandboxes/guarded/exec", 64 << 20)):
            async with connect(port_of(shared_server)) as client:
                head = [
                    f"POST {path} HTTP/1.1",
                    *(f"{name}: {value}" for name, value in with_key(shared_server).items()),
                ]
                client.send("\r\n".join([*head, f"Content-Length: {size + 1}", "", ""]).encode())
                assert (await client.reply()).status == 413
        async with connect(port_of(shared_server)) as client:
            client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 2_000_000)
            assert (await client.reply()).status == 431
        assert (await sandbox.exec("echo alive")).stdout == "alive\n"


async def test_clients_that_send_slowly_are_cut_off_and_hold_nobody_up(shared_server: Server) -> None:
    async def trickle() -> bool:
        """Whether it was cut off before it had said everything."""
        async with connect(port_of(shared_server)) as client:
            client.send(b"GET /v1/sandboxes HTTP/1.1\r\n")
            for number in range(100):
                client.send(b"X-%d: slow\r\n" % number)
                if client.reader.at_eof() or await _ends_within(client.reader, 0.5):
                    return True
        return False

    slow = [asyncio.create_task(trickle()) for _ in range(50)]
    async with AsyncSandbox.create(**address(shared_server)) as sandbox:
        assert (await sandbox.exec("echo fast")).stdout == "fast\n"
    assert all(await asyncio.gather(*slow))


async def _ends_within(reader: asyncio.StreamReader, seconds: float) -> bool:
    """The server has answered, and closes."""
    try:
        async with asyncio.timeout(seconds):
            await reader.read(1 << 16)
    except TimeoutError:
        return False
    return True


async def test_the_client_raises_unauthorized(shared_server: Server) -> None:
    with pytest.raises(Unauthorized):
        await AsyncSandbox.list(url=shared_server.url, api_key="wrong-key-wrong")
    with pytest.raises(Unauthorized):
        await AsyncSandbox.create(url=shared_server.url, api_key="wrong-key-wrong")
    async with AsyncSandbox.create(**address(shared_server)) as sandbox:
        terminal = await sandbox.terminal()
        other = aiohttp.ClientSession()
        async with other:
            path = f"{shared_server.url}/v1/sandboxes/{sandbox.id}/terminals/{terminal.id}/connect"
            with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
                await other.ws_connect(path)


async def test_a_runtimes_socket_is_for_its_user_only(shared_server: Server) -> None:
    async with AsyncSandbox.create(**address(shared_server)) as sandbox:
        socket = shared_server.directory.socket(await shared_server.record(sandbox.id))
        assert socket.stat().st_mode & 0o777 == 0o600
        with pytest.raises(Exception, match=r"not here|there is no"):
            await AsyncSandbox.connect("another", url=f"unix://{socket}")


async def test_an_open_server_still_refuses_strange_pages(other_home: Path) -> None:
    with serving(other_home, "--insecure-no-key") as server:
        assert (await ask(server, "GET", "/v1/sandboxes", {"Host": "localhost"})).status == 200
        assert (await ask(server, "GET", "/v1/sandboxes", {"Host": "evil.example"})).status == 403
        page = {"Host": "localhost", "Origin": "http://evil.example"}
        assert (await ask(server, "POST", "/v1/sandboxes", page)).status == 403


async def test_a_runtime_names_the_methods_that_it_takes(shared_server: Server) -> None:
    async with AsyncSandbox.create(**address(shared_server)) as sandbox:
        reply = await ask(shared_server, "PUT", f"/v1/sandboxes/{sandbox.id}/exec", with_key(shared_server))
    assert (reply.status, reply.headers["allow"]) == (405, "POST")
