"""Ports of a sandbox inside this program: exposed, connected to, and closed with it."""

import asyncio
import socket
from urllib.parse import urlsplit

import pytest
from support.services import COUNT, ECHO, HTTP, echo, start

from cove import AsyncSandbox, Sandbox, SandboxStatus
from cove.blocking.portal import get_portal
from cove.core.exposure import Exposure, Label, is_exposed, make_exposure, parse_label
from cove.errors import (
    ConnectionLost,
    PortAlreadyExposed,
    SandboxDestroyed,
    ServiceNotResponding,
    ValidationFailed,
)

pytestmark = pytest.mark.anyio

MEGABYTES = 50


@pytest.fixture(scope="module", autouse=True)
def running_portal() -> None:
    """Before any test: the loop's thread stays, and so does /dev/null, which libuv opens with its first stream."""

    async def listen() -> None:
        (await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)).close()

    get_portal().call(listen)


async def dial(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    where = urlsplit(url)
    return await asyncio.open_connection(where.hostname, where.port)


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


def test_a_token_is_made_that_nobody_can_guess() -> None:
    first, second = make_exposure(3000, None, None), make_exposure(3000, None, None)
    assert len(first.token) == 24
    assert first.token != second.token


@pytest.mark.parametrize("token", ["", "A", "a-b", "x" * 41, "ä", "a.b", 7])
def test_a_token_that_does_not_fit_in_a_host_name_is_refused(token: str) -> None:
    with pytest.raises(ValidationFailed):
        make_exposure(3000, None, token)


@pytest.mark.parametrize("name", ["", "x" * 129, 7])
def test_a_name_must_be_a_short_text(name: str) -> None:
    with pytest.raises(ValidationFailed):
        make_exposure(3000, name, None)


def test_a_label_is_read_as_it_was_written_and_fits_in_a_host_name() -> None:
    label = Exposure(port=65535, token="a_" * 20).label("abcdefghij27")
    assert len(label) <= 63
    assert parse_label(label) == Label(65535, "abcdefghij27", "a_" * 20)


@pytest.mark.parametrize(
    "text", ["", "www", "0-abcdefghij27-x", "3000-short-x", "3000-abcdefghij27-", "3000-abcdefghij27-X"]
)
def test_what_is_no_label_is_not_read_as_one(text: str) -> None:
    assert parse_label(text) is None


def test_only_the_token_of_that_port_opens_it() -> None:
    exposures = [Exposure(port=1, token="one"), Exposure(port=2, token="two")]
    assert is_exposed(exposures, 2, "two")
    assert not is_exposed(exposures, 1, "two")
    assert not is_exposed(exposures, 3, "")
    assert not is_exposed(exposures, 3, "-" * 24)


async def test_an_exposed_port_has_an_address_on_this_machine_as_long_as_it_is_exposed() -> None:
    async with AsyncSandbox.create() as sandbox:
        await start(sandbox, HTTP, 3000)
        exposed = await sandbox.ports.expose(3000, name="web", token="my_token")
        assert (exposed.port, exposed.name, exposed.token) == (3000, "web", "my_token")
        assert await sandbox.ports.list() == [exposed]

        reader, writer = await dial(exposed.url)
        writer.write(b"GET /hello HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b"you asked for /hello" in await reader.read()
        await hang_up(writer)

        await sandbox.ports.unexpose(3000)
        await sandbox.ports.unexpose(3000)
        assert await sandbox.ports.list() == []
        with pytest.raises(ConnectionRefusedError):
            await dial(exposed.url)


async def test_a_port_is_exposed_once_and_can_be_exposed_again_afterwards() -> None:
    async with AsyncSandbox.create() as sandbox:
        first = await sandbox.ports.expose(3000)
        with pytest.raises(PortAlreadyExposed):
            await sandbox.ports.expose(3000, token="other")
        await sandbox.ports.unexpose(3000)
        second = await sandbox.ports.expose(3000)
        assert first.token != second.token


async def test_of_two_that_expose_one_port_at_once_one_succeeds() -> None:
    async with AsyncSandbox.create() as sandbox:
        results = await asyncio.gather(*(sandbox.ports.expose(3000) for _ in range(5)), return_exceptions=True)
        assert sum(isinstance(result, PortAlreadyExposed) for result in results) == 4
        assert len(await sandbox.ports.list()) == 1


@pytest.mark.parametrize("port", [0, -1, 65536, "80", True])
async def test_a_port_is_a_number_from_1_to_65535(port: int) -> None:
    async with AsyncSandbox.create() as sandbox:
        for call in (sandbox.ports.expose, sandbox.ports.unexpose):
            with pytest.raises(ValidationFailed):
                await call(port)
        with pytest.raises(ValidationFailed):
            sandbox.ports.connect(port)


async def test_where_nothing_listens_an_exposed_port_closes_and_connecting_says_so() -> None:
    async with AsyncSandbox.create() as sandbox:
        exposed = await sandbox.ports.expose(3000)
        reader, writer = await dial(exposed.url)
        assert await reader.read() == b""
        await hang_up(writer)
        with pytest.raises(ServiceNotResponding):
            await sandbox.ports.connect(3000).open()


async def test_two_sandboxes_have_each_their_own_port_3000() -> None:
    async with AsyncSandbox.create() as one, AsyncSandbox.create() as other:
        for sandbox in (one, other):
            await sandbox.exec(f"echo this is {sandbox.id} > page")
            await start(sandbox, HTTP, 3000)
        for sandbox in (one, other):
            exposed = await sandbox.ports.expose(3000)
            reader, writer = await dial(exposed.url)
            writer.write(b"GET /file/page HTTP/1.0\r\n\r\n")
            assert f"this is {sandbox.id}".encode() in await reader.read()
            await hang_up(writer)


async def test_many_megabytes_go_through_a_connection_in_both_directions_unchanged() -> None:
    async with AsyncSandbox.create() as sandbox:
        await start(sandbox, ECHO, 4000)
        async with sandbox.ports.connect(4000) as connection:
            assert await echo(connection) == MEGABYTES << 20


async def test_many_megabytes_go_through_an_exposed_port_in_both_directions_unchanged() -> None:
    async with AsyncSandbox.create() as sandbox:
        await start(sandbox, ECHO, 4000)
        reader, writer = await dial((await sandbox.ports.expose(4000)).url)
        block = bytes(range(256)) * 4096

        async def send() -> None:
            for _ in range(MEGABYTES):
                writer.write(block)
                await writer.drain()
            writer.write_eof()

        sending = asyncio.create_task(send())
        received = await reader.read()
        await sending
        assert received == block * MEGABYTES
        await hang_up(writer)


async def test_a_service_that_has_seen_the_end_can_still_answer() -> None:
    async with AsyncSandbox.create() as sandbox:
        await start(sandbox, COUNT, 4000)
        async with sandbox.ports.connect(4000) as connection:
            await connection.write(b"x" * 100)
            await connection.write_eof()
            assert await connection.read() == b"100"
            assert await connection.read() == b""


async def test_connections_end_with_the_exposure_and_with_the_sandbox() -> None:
    sandbox = await AsyncSandbox.create()
    await start(sandbox, ECHO, 4000)
    exposed = await sandbox.ports.expose(4000)
    reader, writer = await dial(exposed.url)
    writer.write(b"x")
    assert await reader.read(1) == b"x"
    await sandbox.ports.unexpose(4000)
    assert await reader.read() == b""
    await hang_up(writer)

    exposed = await sandbox.ports.expose(4000)
    reader, writer = await dial(exposed.url)
    writer.write(b"x")
    assert await reader.read(1) == b"x"
    connection = sandbox.ports.connect(4000)
    await connection.open()
    await sandbox.destroy()
    assert await reader.read() == b""
    await hang_up(writer)
    with pytest.raises(ConnectionLost):
        await connection.write(b"x")
    await connection.close()
    with pytest.raises(SandboxDestroyed):
        await sandbox.ports.expose(5000)
    with pytest.raises(SandboxDestroyed):
        await sandbox.ports.connect(4000).open()


async def test_an_exposure_outlives_a_restart_of_its_sandbox() -> None:
    async with AsyncSandbox.create() as sandbox:
        exposed = await sandbox.ports.expose(3000)
        await sandbox.restart()
        await start(sandbox, HTTP, 3000)
        assert await sandbox.ports.list() == [exposed]
        reader, writer = await dial(exposed.url)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        assert b"200" in await reader.readline()
        await hang_up(writer)


async def test_a_client_that_does_not_read_holds_back_the_service_and_nothing_else() -> None:
    async with AsyncSandbox.create() as sandbox:
        await start(sandbox, HTTP, 3000)
        url = (await sandbox.ports.expose(3000)).url
        where = urlsplit(url)
        with socket.create_connection((where.hostname, where.port)) as slow:
            slow.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(slow, b"GET /endless HTTP/1.0\r\n\r\n")
            for _ in range(20):
                reader, writer = await dial(url)
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                assert b"200" in await reader.readline()
                await hang_up(writer)


async def test_a_connection_must_be_open_and_is_opened_once() -> None:
    async with AsyncSandbox.create() as sandbox:
        await start(sandbox, ECHO, 4000)
        connection = sandbox.ports.connect(4000)
        with pytest.raises(ValidationFailed):
            await connection.read()
        await connection.close()
        await connection.open()
        with pytest.raises(ValidationFailed):
            await connection.open()
        with pytest.raises(ValidationFailed):
            await connection.read(0)
        await connection.close()
        await connection.close()


def test_a_blocking_program_has_the_same_ports() -> None:
    with Sandbox.create() as sandbox:
        process = sandbox.start_process(["python3", "-c", ECHO, "4000"])
        process.wait_for_port(4000, mode="tcp")
        exposed = sandbox.ports.expose(4000, "echo")
        assert sandbox.ports.list() == [exposed]
        with sandbox.ports.connect(4000) as connection:
            connection.write(b"hello")
            assert connection.read(5) == b"hello"
            connection.write_eof()
            assert connection.read() == b""
        sandbox.ports.unexpose(4000)


async def test_who_connects_to_a_port_wakes_a_sandbox_that_was_idle() -> None:
    async with AsyncSandbox.create(idle_timeout=0.1) as sandbox:
        while (await sandbox.info()).status is not SandboxStatus.STOPPED:
            await asyncio.sleep(0.02)
        with pytest.raises(ServiceNotResponding):
            async with sandbox.ports.connect(9):
                pass
