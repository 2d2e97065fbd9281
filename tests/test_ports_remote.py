"""Ports of a sandbox on a server, as its clients see them."""

from pathlib import Path

import pytest
from servers import Server, serving
from services import COUNT, ECHO, echo, start

from cove import AsyncSandbox
from cove.api import Opening
from cove.errors import PortAlreadyExposed, ServiceNotResponding

pytestmark = pytest.mark.anyio


def on(server: Server, id: str | None = None) -> Opening[AsyncSandbox]:
    return AsyncSandbox.create(id=id, url=server.url, api_key=server.key)


async def test_a_port_on_a_server_is_exposed_listed_and_unexposed(other_home: Path) -> None:
    with serving(other_home) as server:
        async with on(server, "web") as sandbox:
            exposed = await sandbox.ports.expose(3000, "web", "my_token")
            key = (await server.record("web")).key
            assert f"://3000-{key}-my_token.localhost:" in exposed.url
            assert exposed.path_url.endswith(f"/3000-{key}-my_token/")
            with pytest.raises(PortAlreadyExposed):
                await sandbox.ports.expose(3000)
            assert await sandbox.ports.list() == [exposed]
            await sandbox.ports.unexpose(3000)
            await sandbox.ports.unexpose(3000)
            assert await sandbox.ports.list() == []


async def test_many_megabytes_go_both_ways_through_a_server_unchanged(other_home: Path) -> None:
    with serving(other_home) as server:
        async with on(server) as sandbox:
            await start(sandbox, ECHO, 4000)
            async with sandbox.ports.connect(4000) as connection:
                assert await echo(connection) == 50 << 20


async def test_a_connection_through_a_server_can_be_ended_in_one_direction(other_home: Path) -> None:
    with serving(other_home) as server:
        async with on(server) as sandbox:
            await start(sandbox, COUNT, 4000)
            async with sandbox.ports.connect(4000) as connection:
                await connection.write(b"x" * 100_000)
                await connection.write_eof()
                assert await connection.read() == b"100000"
                assert await connection.read() == b""


async def test_where_nothing_listens_connecting_through_a_server_says_so(other_home: Path) -> None:
    with serving(other_home) as server:
        async with on(server) as sandbox:
            with pytest.raises(ServiceNotResponding):
                await sandbox.ports.connect(3000).open()


async def test_a_connection_ends_with_its_sandbox(other_home: Path) -> None:
    with serving(other_home) as server:
        sandbox = await on(server)
        await start(sandbox, ECHO, 4000)
        async with sandbox.ports.connect(4000) as connection:
            await connection.write(b"x")
            assert await connection.read(1) == b"x"
            await sandbox.destroy()
            assert await connection.read() == b""
