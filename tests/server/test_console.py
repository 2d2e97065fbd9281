"""The console's door: who may come in, with what, from where, and for how long."""

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.console_client import WEBSOCKET, ConsoleClient, next_event
from support.raw_http import Client
from support.servers import Server, serving

from cove import AsyncApiKey, AsyncSandbox
from cove.model import ApiKeyMade
from cove.server.console.sessions import DIRECTORY

pytestmark = pytest.mark.anyio

EVENTS = "/v1/console/events"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    home = Path(tempfile.mkdtemp(prefix="cove-console-", dir="/tmp"))
    home.chmod(0o711)
    with serving(home) as running:
        yield running
    shutil.rmtree(home)


@pytest.fixture(autouse=True)
async def no_keys_left(server: Server) -> AsyncIterator[None]:
    yield
    for info in await AsyncApiKey.list(url=server.url, api_key=server.key):
        await AsyncApiKey.delete(info.name, url=server.url, api_key=server.key)


async def make_key(server: Server, name: str, **options: bool) -> ApiKeyMade:
    return await AsyncApiKey.create(name, url=server.url, api_key=server.key, **options)  # type: ignore[arg-type]


async def browser(server: Server, key: str | None = None) -> ConsoleClient:
    client = ConsoleClient(server)
    assert await client.log_in(server.key if key is None else key) == 204
    return client


async def test_a_log_in_gives_a_cookie_that_scripts_cannot_read_and_that_is_not_the_key(server: Server) -> None:
    client = await browser(server)
    attributes = {part.strip() for part in client.set_cookie.split(";")[1:]}
    assert attributes == {"Path=/", "HttpOnly", "SameSite=Strict", "Max-Age=43200"}
    assert server.key not in client.set_cookie
    found = await client.session()
    assert (found["is_admin"], found["tenant"], found["is_cluster"]) == (True, None, False)
    for path in (server.home / DIRECTORY).iterdir():
        content = path.read_bytes()
        assert server.key.encode() not in content
        assert client.cookie.partition("=")[2].encode() not in content + path.name.encode()


async def test_behind_tls_the_cookie_is_for_tls_alone(server: Server) -> None:
    client = ConsoleClient(server)
    client.origin = "https://localhost"
    assert await client.log_in(server.key) == 204
    assert client.cookie.startswith("__Host-cove_console=cove_console_")
    attributes = {part.strip() for part in client.set_cookie.split(";")[1:]}
    assert attributes == {"Path=/", "HttpOnly", "SameSite=Strict", "Max-Age=43200", "Secure"}
    assert await client.status(origin=client.origin) == 200
    reply = await client.ask("/console/logout", method="POST", origin=client.origin)
    assert reply.headers["set-cookie"].startswith("__Host-cove_console=;")
    assert await client.status(origin=client.origin) == 401


async def test_behind_tls_a_cookie_that_a_neighbour_has_planted_is_none(server: Server) -> None:
    client, neighbour = ConsoleClient(server), await browser(server)
    client.origin = "https://localhost"
    client.cookie = neighbour.cookie
    assert await client.status(origin=client.origin) == 401
    assert await client.status("/console/session", origin=client.origin) == 401
    async with client.stream("/v1/sandboxes/x/terminals/y/connect", **WEBSOCKET, origin=client.origin) as connection:
        assert (await connection.head()).status == 401
    assert await client.log_in(server.key) == 204
    client.cookie = f"{neighbour.cookie}; {client.cookie}"
    assert await client.status(origin=client.origin) == 200
    assert await client.status() == 401  # who does not say that it comes by TLS has two


@pytest.mark.parametrize("key", ["", "wrong", "cove_" + "a" * 12 + "_" + "b" * 43, "ключ"])
async def test_a_wrong_key_is_refused(server: Server, key: str) -> None:
    assert await ConsoleClient(server).log_in(key) == 401


async def test_a_session_is_no_key_to_log_in_with(server: Server) -> None:
    client = await browser(server)
    assert await ConsoleClient(server).log_in(client.cookie.partition("=")[2]) == 401


async def test_the_cookie_alone_is_no_right(server: Server) -> None:
    client = await browser(server)
    assert (await client.ask("/v1/sandboxes")).status == 401
    assert (await client.ask("/v1/sandboxes", method="POST", body=b"{}")).status == 401
    assert await client.status() == 200
    assert await client.status("/metrics") == 200
    assert await ConsoleClient(server).status() == 401


@pytest.mark.parametrize(
    "header",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://localhost:8788"},
        {"origin": "null"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "cross-site"},
    ],
)
async def test_other_origins_are_refused_with_cookie_and_header(server: Server, header: dict[str, str]) -> None:
    client = await browser(server)
    assert await client.status(**header) == 403
    for path in ("/console/login", "/console/logout"):
        body = json.dumps({"key": server.key}).encode()
        assert (await client.ask(path, method="POST", body=body, **header)).status == 403
    assert await client.status("/console/session", **header) == 403
    assert await client.status(origin="http://localhost") == 200


async def test_two_cookies_of_one_name_are_no_session(server: Server) -> None:
    client, other = await browser(server), await browser(server)
    client.cookie = f"{client.cookie}; {other.cookie}"
    assert await client.status() == 401


async def test_a_key_in_the_header_wins_over_the_cookie(server: Server) -> None:
    made = await make_key(server, "a")
    client = await browser(server, made.key)
    assert await client.status("/v1/keys") == 403
    assert await client.status("/v1/keys", authorization=f"Bearer {server.key}") == 200


async def test_a_socket_needs_the_cookie_and_the_own_origin(server: Server) -> None:
    client = await browser(server)
    sandbox = await server.create("socket")
    terminal = await sandbox.terminal()
    path = f"/v1/sandboxes/socket/terminals/{terminal.id}/connect"
    for headers, expected in (
        ({"origin": "http://localhost"}, 101),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({}, 403),
    ):
        async with client.stream(path, **WEBSOCKET, **headers) as connection:
            assert (await connection.head()).status == expected
    async with ConsoleClient(server).stream(path, **WEBSOCKET, origin="http://localhost") as connection:
        assert (await connection.head()).status == 401
    await sandbox.destroy()


async def test_a_tenant_sees_its_own_and_an_admin_names_whose(server: Server) -> None:
    made, other = await make_key(server, "a"), await make_key(server, "b")
    client, admin = await browser(server, made.key), await browser(server)
    found = await client.session()
    assert (found["name"], found["tenant"], found["is_admin"]) == ("a", "a", False)
    sandbox = await AsyncSandbox.create(id="mine", url=server.url, api_key=made.key)
    theirs = await AsyncSandbox.create(id="theirs", url=server.url, api_key=other.key)
    terminal = await sandbox.terminal()
    assert [row["id"] for row in json.loads((await client.ask("/v1/sandboxes", cove_console="1")).body)] == ["mine"]
    assert await client.status("/v1/sandboxes/theirs", cove_tenant="b") == 404
    assert await client.status("/v1/keys") == 403
    assert await admin.status("/v1/sandboxes/mine") == 404
    assert await admin.status("/v1/sandboxes/mine", cove_tenant="a") == 200
    path = f"/v1/sandboxes/mine/terminals/{terminal.id}/connect?cove-tenant=a"
    async with admin.stream(path, **WEBSOCKET, origin="http://localhost") as connection:
        assert (await connection.head()).status == 101
    await sandbox.destroy()
    await theirs.destroy()


@pytest.mark.parametrize("how", ["delete", "rotate"])
async def test_with_its_key_a_session_and_its_streams_end_at_once(server: Server, how: str) -> None:
    made = await make_key(server, "a")
    client, other = await browser(server, made.key), await browser(server)
    async with client.stream(EVENTS, cove_console="1") as connection, other.stream(EVENTS, cove_console="1") as stays:
        assert (await connection.head()).status == (await stays.head()).status == 200
        await next_event(connection)
        await next_event(stays)
        await getattr(AsyncApiKey, how)("a", url=server.url, api_key=server.key)
        assert await client.status() == 401
        assert (await client.ask("/console/session", cove_console="1")).status == 401
        await connection.rest()
        assert await other.status() == 200
        assert not stays.reader.at_eof()


async def test_a_log_out_ends_the_session_and_its_streams(server: Server) -> None:
    client = await browser(server)
    async with client.stream(EVENTS, cove_console="1") as connection:
        assert (await connection.head()).status == 200
        reply = await client.ask("/console/logout", method="POST")
        assert reply.status == 204
        assert "Max-Age=0" in reply.headers["set-cookie"]
        assert await client.status() == 401
        await connection.rest()


async def test_log_ins_are_limited(server: Server) -> None:
    client = ConsoleClient(server)
    found = [await asyncio.gather(*(client.try_to_log_in("x") for _ in range(20))) for _ in range(4)]
    assert {status for statuses in found for status in statuses} == {401, 429}
    assert await client.log_in(server.key) == 204


async def test_without_a_key_everybody_on_this_machine_is_in(other_home: Path) -> None:
    with serving(other_home, "--insecure-no-key") as server:
        client = ConsoleClient(server)
        assert (await client.session())["is_admin"] is True
        assert await client.status() == 200
        assert await client.log_in("") == 204
        assert await client.status() == 200
        assert await client.status(origin="http://evil.example") == 403


async def test_api_clients_at_the_root_are_not_disturbed(server: Server) -> None:
    client = ConsoleClient(server)
    assert (await client.ask("/")).status == 401
    assert (await client.ask("/", authorization=f"Bearer {server.key}")).status == 404
    assert (await client.ask("/", method="POST", accept="text/html")).status == 401
    inside = await client.ask("/", accept="text/html", host="8000-nothing.e2b.localhost")
    assert b"<html" not in inside.body


async def test_the_page_runs_no_script_but_its_own(server: Server) -> None:
    reply = await ConsoleClient(server).ask("/", accept="text/html,*/*")
    assert reply.status in (200, 503)
    policy = dict(part.strip().split(" ", 1) for part in reply.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert all(
        source == "'self'" or ":8" in source or "localhost:" in source or "127.0.0.1:" in source
        for source in policy["frame-src"].split()
    )
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"
    if reply.status == 503:
        assert b"make console" in reply.body


async def test_the_frame_of_results_has_an_opaque_origin_and_no_connections(server: Server) -> None:
    reply = await ConsoleClient(server).ask("/console/frame")
    policy = dict((part.strip() + " ").split(" ", 1) for part in reply.headers["content-security-policy"].split(";"))
    assert reply.status == 200
    assert policy["sandbox"].split() == ["allow-scripts"]
    assert policy["default-src"].strip() == policy["connect-src"].strip() == "'none'"
    assert "set-cookie" not in reply.headers


@pytest.mark.parametrize("name", ["nothing.js", "../gate.py", "..%2fgate.py", "", ".", "a/b.js", "../../__init__.py"])
async def test_assets_are_files_of_one_directory(server: Server, name: str) -> None:
    assert (await ConsoleClient(server).ask(f"/console/assets/{name}")).status == 404


async def test_a_strange_host_is_not_served(server: Server) -> None:
    for path in ("/", "/console/frame", "/console/session"):
        async with ConsoleClient(server).stream(path, accept="text/html", host="evil.example") as connection:
            assert (await connection.reply()).status == 403


async def test_the_list_is_told_and_what_changes(server: Server) -> None:
    client = await browser(server)
    first = await server.create("first", labels={"task": "one"})
    async with viewing(client) as view:
        await view.until(lambda rows: rows.get("first", {}).get("memory_bytes"))
        assert view.rows["first"]["labels"] == {"task": "one"}
        second = await server.create("second")
        await view.until(lambda rows: "second" in rows)
        await second.destroy()
        await view.until(lambda rows: "second" not in rows)
        assert view.names[0] == "snapshot"
        assert set(view.names[1:]) == {"changes"}
    await first.destroy()


async def test_to_look_at_the_list_wakes_nothing(server: Server) -> None:
    client = await browser(server)
    sandbox = await server.create("asleep")
    await sandbox.stop()
    awake = await server.create("awake")
    async with viewing(client) as view:
        await view.until(lambda rows: rows.get("asleep", {}).get("status") == "stopped")
        await awake.destroy()
        await view.until(lambda rows: "awake" not in rows)
        assert view.rows["asleep"]["status"] == "stopped"
        assert view.rows["asleep"]["memory_bytes"] is None
    assert await server.status("asleep") == "stopped"
    await sandbox.destroy()


async def test_the_list_is_a_tenants_own(server: Server) -> None:
    made = await make_key(server, "a")
    mine = await AsyncSandbox.create(id="mine", url=server.url, api_key=made.key)
    other = await server.create("not-mine")
    client, admin = await browser(server, made.key), await browser(server)
    async with viewing(client) as own, viewing(admin) as all:
        await all.until(lambda rows: {"mine", "not-mine"} <= set(rows))
        assert all.rows["mine"]["owner"] == "a"
        await own.until(lambda rows: "mine" in rows)
        assert set(own.rows) == {"mine"}
    await mine.destroy()
    await other.destroy()


class View:
    """The list as a page would have it."""

    def __init__(self, connection: Client) -> None:
        self.connection = connection
        self.names: list[str] = []
        self.rows: dict[str, dict[str, object]] = {}

    async def until(self, is_it: Callable[[dict[str, dict[str, object]]], object]) -> None:
        async with asyncio.timeout(30):
            while not is_it(self.rows):
                name, event = await next_event(self.connection)
                self.names.append(name)
                for row in event.get("removed", []):  # type: ignore[attr-defined]
                    del self.rows[row["id"]]
                for row in event.get("sandboxes", event.get("changed")):  # type: ignore[attr-defined]
                    self.rows[row["id"]] = row


@asynccontextmanager
async def viewing(client: ConsoleClient) -> AsyncIterator[View]:
    async with client.stream(EVENTS, cove_console="1") as connection:
        assert (await connection.head()).status == 200
        yield View(connection)
