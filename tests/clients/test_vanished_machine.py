"""What either end of a connection does when the other end's machine is gone, or lives and takes nothing."""

import asyncio
import re
import socket
from collections.abc import AsyncGenerator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from support.machines import needs_namespaces, two_machines
from support.servers import serving

from cove import AsyncSandbox
from cove.client.transport import Transport
from cove.errors import ConnectionLost, Unreachable
from cove.http import Answer, HttpServer, Request, Response, dead_peer
from cove.wire import operations, requests

pytestmark = [pytest.mark.anyio, pytest.mark.pure]

# The kernel's own patience is more than two minutes for an idle connection, and a quarter of an hour for a busy one.
NOTICED_SECONDS = 15.0


@needs_namespaces
async def test_every_use_of_a_connection_to_a_vanished_machine_ends_soon(other_home: Path) -> None:
    with two_machines() as (here, there), ExitStack() as stack:
        with there.inside():
            server = stack.enter_context(serving(other_home, "--host", there.address))
        stack.enter_context(here.inside())
        sandbox = await server.create("x")
        process = await sandbox.start_process("echo begun; sleep 1000", id="p")
        await process.wait_for_log("begun")
        async with (
            AsyncSandbox.connect("x", url=server.url, api_key=server.key) as same,
            same.ports.connect(await _listening(sandbox)) as port,
            (await sandbox.terminal(shell=["cat"])).connect() as viewer,
        ):
            transport = Transport(server.url, server.key)
            path = f"/v1/sandboxes/x{operations.PROCESS_LOGS.path}".replace("{process}", "p")
            log = transport.events(operations.PROCESS_LOGS, path, requests.Logs())
            await anext(log)
            await viewer.write("typed")
            there.set_link("down")
            await port.write(b"into the dark")
            async with asyncio.timeout(NOTICED_SECONDS):
                ends = await asyncio.gather(
                    sandbox.exec("true"),
                    anext(log),
                    port.read(),
                    sandbox.info(),
                    process.wait(),
                    viewer.write("more"),
                    return_exceptions=True,
                )
            assert [type(end) for end in ends[:3]] == [ConnectionLost] * 3
            assert all(isinstance(end, ConnectionLost | Unreachable) for end in ends[3:5]), ends
            there.set_link("up")
        await sandbox.destroy()


@needs_namespaces
async def test_a_server_notices_that_the_machine_of_a_client_is_gone(other_home: Path) -> None:
    ended: list[str] = []

    async def stream(name: str) -> AsyncGenerator[bytes, None]:
        try:
            yield b"begun"
            if name == "busy":
                while True:
                    yield b"x" * 1000
                    await asyncio.sleep(0.1)
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    def answer(request: Request) -> Answer:
        return Response(200, (), stream(request.path[1:]))

    with two_machines() as (here, there):
        with there.inside():
            listener = socket.create_server((there.address, 0))
        async with HttpServer(answer, [listener]):
            clients = []
            for name in ("busy", "idle"):
                with here.inside():
                    reader, writer = await asyncio.open_connection(*listener.getsockname())
                clients.append(writer)
                writer.write(f"GET /{name} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                await reader.readuntil(b"begun")
            here.set_link("down")
            async with asyncio.timeout(NOTICED_SECONDS):
                while len(ended) < 2:
                    await asyncio.sleep(0.1)
            for client in clients:
                client.transport.abort()
                with suppress(ConnectionError):
                    await client.wait_closed()


async def test_a_client_that_lives_and_takes_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_peer, "SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(dead_peer, "_LOOK_SECONDS", 0.05)
    body = bytes(20_000_000)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with HttpServer(lambda request: Response(200, (), body), [listener]):
            reader, writer = await asyncio.open_connection(*listener.getsockname(), limit=1)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await asyncio.sleep(2)  # ten times what a dead one would be given, with the kernel's buffers full
            received = 0
            async with asyncio.timeout(NOTICED_SECONDS):
                while received < len(body):
                    received += len(await reader.read(1 << 20)) or 1 << 30
            assert received < 1 << 30
            writer.close()
            await writer.wait_closed()


async def _listening(sandbox: AsyncSandbox) -> int:
    """A port inside where somebody takes what comes and says nothing."""
    code = (
        "import socket; made = socket.create_server(('127.0.0.1', 0)); print(made.getsockname()[1], flush=True);"
        "made.accept()[0].recv(1); input()"
    )
    process = await sandbox.start_process(["python3", "-c", code], stdin=True)
    found = await process.wait_for_log(re.compile(r"\d+"))
    return int(found.line)
