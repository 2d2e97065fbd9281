"""Ports, whatever way the sandbox is reached."""

from contextlib import suppress

import pytest
from support.services import COUNT, ECHO, echo, start
from support.serving import MakeSandbox

from cove.errors import ConnectionLost, PortAlreadyExposed, ServiceNotResponding, ValidationFailed

pytestmark = pytest.mark.anyio


async def test_a_port_is_exposed_listed_and_unexposed(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        web = await sandbox.ports.expose(3000, "web", "my_token")
        assert (web.port, web.name, web.token) == (3000, "web", "my_token")
        other = await sandbox.ports.expose(2000)
        assert (other.name, len(other.token)) == (None, 24)
        with pytest.raises(PortAlreadyExposed):
            await sandbox.ports.expose(3000)
        assert await sandbox.ports.list() == [other, web]
        for _ in range(2):
            await sandbox.ports.unexpose(3000)
        assert await sandbox.ports.list() == [other]


async def test_what_cannot_be_exposed_is_refused(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        for port in (0, -1, 65536, "80", True):
            with pytest.raises(ValidationFailed):
                await sandbox.ports.expose(port)  # type: ignore[arg-type]  # on purpose
            with pytest.raises(ValidationFailed):
                await sandbox.ports.unexpose(port)  # type: ignore[arg-type]  # on purpose
        with pytest.raises(ValidationFailed):
            await sandbox.ports.expose(3000, token="No-Token")
        assert await sandbox.ports.list() == []


async def test_many_megabytes_go_both_ways_unchanged(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await start(sandbox, ECHO, 4000)
        async with sandbox.ports.connect(4000) as connection:
            assert await echo(connection) == 50 << 20


async def test_a_connection_can_be_ended_in_one_direction(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await start(sandbox, COUNT, 4000)
        async with sandbox.ports.connect(4000) as connection:
            await connection.write(b"x" * 100_000)
            await connection.write_eof()
            assert await connection.read() == b"100000"
            assert await connection.read() == b""


async def test_where_nothing_listens_connecting_says_so(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        with pytest.raises(ServiceNotResponding):
            await sandbox.ports.connect(3000).open()


async def test_a_connection_ends_with_what_listens(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        process = await start(sandbox, ECHO, 4000)
        async with sandbox.ports.connect(4000) as connection:
            await connection.write(b"x")
            assert await connection.read(1) == b"x"
            await process.kill("KILL")
            with suppress(ConnectionLost):  # the kernel may also reset it
                assert await connection.read() == b""
