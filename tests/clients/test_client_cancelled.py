"""What a client that is cancelled has made on a server, and will never hear of."""

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager, suppress
from urllib.parse import urlsplit

import pytest
from support.cancellation import cancel_after
from support.inside import commands_inside
from support.servers import Server, left_behind

from cove import AsyncSandbox
from cove.client.connection_pool import Pool, parse_address
from cove.client.transport import _CANCEL_SECONDS, Transport

pytestmark = [pytest.mark.anyio, pytest.mark.pure]

Made = Callable[[AsyncSandbox], Awaitable[object]]


class Relay:
    """Passes on what a client asks at once, and what a server answers while `is_open` is set."""

    def __init__(self, server: Server) -> None:
        address = urlsplit(server.url)
        self._address = address.hostname, address.port
        self.is_open = asyncio.Event()
        self.is_open.set()
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """The address for the client."""
        listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        finally:
            listener.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.ensure_future(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(*self._address)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, requests))
                group.create_task(self._pass_on(answers, writer, self.is_open))
        finally:
            for each in (writer, requests):
                each.close()
                with suppress(ConnectionError):
                    await each.wait_closed()

    async def _pass_on(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, gate: asyncio.Event | None = None
    ) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                if gate is not None:
                    await gate.wait()
                sink.write(data)
                await sink.drain()
        sink.close()


@asynccontextmanager
async def late(server: Server) -> AsyncIterator[tuple[AsyncSandbox, AsyncSandbox, Relay]]:
    """The same sandbox directly, and by way of a relay."""
    relay = Relay(server)
    async with (
        AsyncSandbox.create(url=server.url, api_key=server.key) as direct,
        relay.listening() as url,
        AsyncSandbox.connect(direct.id, url=url, api_key=server.key) as sandbox,
    ):
        yield direct, sandbox, relay
        relay.is_open.set()


async def something_runs(sandbox: AsyncSandbox) -> bool:
    return bool(await commands_inside(sandbox))


async def something_was_made(sandbox: AsyncSandbox) -> bool:
    return bool(await sandbox.list_sessions() or await sandbox.list_terminals() or await sandbox.list_code_contexts())


MAKING: dict[str, tuple[Made, Callable[[AsyncSandbox], Awaitable[bool]]]] = {
    "process": (lambda sandbox: sandbox.start_process("sleep 1000"), something_runs),
    "process with an id": (lambda sandbox: sandbox.start_process("sleep 1000", id="p"), something_runs),
    "session": (lambda sandbox: sandbox.create_session(id="s"), something_was_made),
    "terminal": (lambda sandbox: sandbox.terminal(shell=["cat"]), something_was_made),
    "context": (lambda sandbox: sandbox.create_code_context(), something_was_made),
}


@pytest.mark.parametrize("what", MAKING)
async def test_what_a_cancelled_call_has_made_is_removed(shared_server: Server, what: str) -> None:
    make, is_there = MAKING[what]
    async with late(shared_server) as (direct, sandbox, relay):
        relay.is_open.clear()
        call = asyncio.ensure_future(make(sandbox))
        while not await is_there(direct):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.sleep(0)
        call.cancel()
        relay.is_open.set()
        await asyncio.wait([call])
        assert call.cancelled()
        assert not await is_there(direct)


async def test_a_process_that_a_cancelled_call_started_from_a_session_is_ended(shared_server: Server) -> None:
    async with late(shared_server) as (direct, sandbox, relay):
        session = await sandbox.create_session()
        relay.is_open.clear()
        call = asyncio.ensure_future(session.start_process("sleep 1000"))
        while "sleep 1000" not in await commands_inside(direct):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.sleep(0)
        relay.is_open.set()
        await asyncio.wait([call])
        assert await commands_inside(direct) == ["/bin/bash -s"]


WORKING: dict[str, Callable[[AsyncSandbox], Coroutine[object, object, object]]] = {
    "exec": lambda sandbox: sandbox.exec("sleep 1000"),
    "exec with a tree": lambda sandbox: sandbox.exec("setsid sleep 1000 & sleep 1000"),
    "code": lambda sandbox: sandbox.run_code("import subprocess; subprocess.run(['sleep', '1000'])"),
    "streamed code": lambda sandbox: _stream(sandbox, "import subprocess; subprocess.run(['sleep', '1000'])"),
}


async def _stream(sandbox: AsyncSandbox, code: str) -> None:
    async with aclosing(sandbox.stream_code(code)) as events:
        async for _ in events:
            pass


@pytest.mark.parametrize("what", WORKING)
async def test_nothing_of_a_cancelled_call_runs_when_it_has_been_cancelled(shared_server: Server, what: str) -> None:
    async with AsyncSandbox.create(url=shared_server.url, api_key=shared_server.key) as sandbox:
        call = asyncio.ensure_future(WORKING[what](sandbox))
        while "sleep 1000" not in await commands_inside(sandbox):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        assert "sleep 1000" not in await commands_inside(sandbox)


async def test_a_cancelled_call_whose_answer_is_large_is_not_waited_for(shared_server: Server) -> None:
    async with late(shared_server) as (direct, sandbox, relay):
        relay.is_open.clear()
        call = asyncio.ensure_future(sandbox.exec("head -c 20000000 /dev/zero; touch done", max_output=30_000_000))
        while not await direct.files.exists("done"):
            await asyncio.sleep(0)
        call.cancel()
        relay.is_open.set()
        async with asyncio.timeout(_CANCEL_SECONDS):
            await asyncio.wait([call])
        assert call.cancelled()


async def test_a_cancelled_upload_writes_nothing_afterwards(shared_server: Server) -> None:
    taken = asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"half"
        taken.set()
        await asyncio.Event().wait()

    async with AsyncSandbox.create(url=shared_server.url, api_key=shared_server.key) as sandbox:
        call = asyncio.ensure_future(sandbox.files.write_stream("file", chunks()))
        await taken.wait()
        call.cancel()
        await asyncio.wait([call])
        assert (await sandbox.exec("ls -A")).stdout == ""


async def test_a_sandbox_whose_creation_was_cancelled_is_gone(shared_server: Server) -> None:
    for steps in range(12):
        call = asyncio.ensure_future(
            AsyncSandbox.create(id="cancelled", url=shared_server.url, api_key=shared_server.key)
        )
        await asyncio.wait([call], timeout=steps * 0.005)
        call.cancel()
        await asyncio.wait([call])
        if not call.cancelled():
            await call.result().destroy()
        assert left_behind(shared_server.home) == [], steps


async def test_a_sandbox_whose_caller_goes_while_the_last_connection_closes_is_gone(
    shared_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_closing, close = asyncio.Event(), Transport._close_unused

    async def close_late(transport: Transport) -> None:
        is_closing.set()
        for _ in range(20):
            await asyncio.sleep(0)
        await close(transport)

    monkeypatch.setattr(Transport, "_close_unused", close_late)
    call = asyncio.ensure_future(AsyncSandbox.create(url=shared_server.url, api_key=shared_server.key))
    await is_closing.wait()
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    assert left_behind(shared_server.home) == []


async def test_a_connection_that_is_cancelled_while_it_is_made_is_closed() -> None:
    listener = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    pool = Pool(parse_address(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"))
    async with listener:
        with warnings.catch_warnings(record=True, action="always", category=ResourceWarning) as caught:
            turns = 0
            while await cancel_after(turns, pool.connect(10)):
                turns += 1
            gc.collect()
        await pool.aclose()
    assert turns > 1
    assert not caught


async def test_a_terminal_that_others_may_use_is_left_to_them(shared_server: Server) -> None:
    async with late(shared_server) as (direct, sandbox, relay):
        await direct.terminal(id="t", shell=["cat"])
        relay.is_open.clear()
        call = asyncio.ensure_future(sandbox.terminal(id="t"))
        await direct.exec("true")
        call.cancel()
        relay.is_open.set()
        await asyncio.wait([call])
        assert [info.is_running for info in await direct.list_terminals()] == [True]


async def test_a_sandbox_that_a_cancelled_call_has_made_is_destroyed(shared_server: Server) -> None:
    async with late(shared_server) as (direct, _, relay), relay.listening() as url:
        relay.is_open.clear()
        call = asyncio.ensure_future(AsyncSandbox.create(id="unseen", url=url, api_key=shared_server.key))
        while "unseen" not in [
            info.id for info in await AsyncSandbox.list(url=shared_server.url, api_key=shared_server.key)
        ]:
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.sleep(0)
        relay.is_open.set()
        await asyncio.wait([call])
        assert [info.id for info in await AsyncSandbox.list(url=shared_server.url, api_key=shared_server.key)] == [
            direct.id
        ]


async def test_a_cancelled_call_does_not_wait_for_ever_for_its_answer(shared_server: Server) -> None:
    async with late(shared_server) as (direct, sandbox, relay):
        relay.is_open.clear()
        call = asyncio.ensure_future(sandbox.create_session())
        await direct.exec("true")
        call.cancel()
        async with asyncio.timeout(20):
            await asyncio.wait([call])
        assert call.cancelled()
