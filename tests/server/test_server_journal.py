"""The journal on a server: who asked, kill -9 of runtime and gateway, restarts, and what is kept after the end."""

import asyncio
import os
import signal
from contextlib import aclosing
from pathlib import Path

import pytest
from support.programs import wait_until_gone
from support.raw_http import connect
from support.servers import Server, serving
from support.serving import address

from cove import AsyncSandbox, CoveError, JournalEvent, JournalKind, SandboxNotFound, SandboxStatus
from soak.server import free_port

pytestmark = pytest.mark.anyio

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


async def read(sandbox: AsyncSandbox, since: str | None = None) -> list[JournalEvent]:
    found = [event async for event in sandbox.journal(since=since)]
    return [event for event in found if event.kind is not JournalKind.WARNING]


def port_of(server: Server) -> int:
    return int(server.url.rpartition(":")[2])


async def read_destroyed(server: Server, id: str) -> list[JournalEvent]:
    where = address(server)
    (found,) = [each for each in await AsyncSandbox.list_destroyed(**where) if each.id == id]
    return await read_kept(server, found.key)


async def read_kept(server: Server, key: str) -> list[JournalEvent]:
    return [event async for event in AsyncSandbox.destroyed_journal(key, **address(server))]


async def test_who_asked_by_which_client_in_which_trace(shared_server: Server) -> None:
    async with AsyncSandbox.create(url=shared_server.url, api_key=shared_server.key) as sandbox:
        async with connect(port_of(shared_server)) as client:
            reply = await client.ask(
                f"/v1/sandboxes/{sandbox.id}/exec",
                method="POST",
                body=b'{"command":"true"}',
                authorization=f"Bearer {shared_server.key}",
                user_agent="robot/1.2 (of a person)",
                traceparent=f"00-{TRACE}-00f067aa0ba902b7-01",
            )
            assert reply.status == 200
        created, run = await read(sandbox)
    assert (created.kind, created.key) == (JournalKind.CREATED, "server key")
    assert created.client is not None
    assert created.client.startswith("cove/")
    assert (run.key, run.client, run.trace) == ("server key", "robot/1.2", TRACE)


async def test_a_runtime_that_is_killed_loses_its_tail_and_says_so(shared_server: Server) -> None:
    async with AsyncSandbox.create(url=shared_server.url, api_key=shared_server.key) as sandbox:
        for number in range(20):
            await sandbox.exec(["true", str(number)])
        before = await read(sandbox)
        running = asyncio.ensure_future(sandbox.exec("sleep 1000"))
        await sandbox.exec("until pgrep -x sleep; do sleep 0.01; done", timeout=20)
        pid = await shared_server.runtime(sandbox.id)
        os.kill(pid, signal.SIGKILL)
        assert await asyncio.to_thread(wait_until_gone, [pid]) == []
        with pytest.raises(CoveError, match=r"sandbox|answer"):
            await running
        assert (await read(sandbox))[: len(before)] == before
        await sandbox.restart()
        await sandbox.exec("echo back")
        events = await read(sandbox)
    assert [event.text for event in events[1:21]] == [f"true {number}" for number in range(20)]
    gap = next(number for number, event in enumerate(events) if event.kind is JournalKind.GAP)
    assert gap >= len(before)
    assert events[gap].lost is None
    assert [event.kind.value for event in events[gap + 1 :]] == ["started", "exec"]
    cursors = [int(event.cursor) for event in events]
    assert cursors == sorted(set(cursors))


async def test_who_follows_loses_and_doubles_nothing_when_the_gateway_is_killed(other_home: Path) -> None:
    port = free_port()
    with serving(other_home, "--port", str(port)) as first:
        sandbox = await first.create()
        runtime = f"unix://{first.directory.socket(await first.record(sandbox.id))}"
        begun = asyncio.Event()

        async def follow() -> list[str | None]:
            seen: list[str | None] = []
            async with aclosing(sandbox.journal(follow=True)) as events:
                async for event in events:
                    assert event.kind is not JournalKind.GAP
                    if event.kind is JournalKind.EXEC:
                        seen.append(event.text)
                        begun.set()
                    if event.text == "true last":
                        return seen
            raise AssertionError("the journal has no end")

        following = asyncio.ensure_future(follow())
        async with AsyncSandbox.connect(sandbox.id, url=runtime) as inside:
            for number in range(30):
                await inside.exec(["true", str(number)])
                if number == 10:
                    await begun.wait()
                    await asyncio.to_thread(first.kill_all)
            with serving(other_home, "--port", str(port)) as second:
                await inside.exec(["true", "last"])
                async with asyncio.timeout(60):
                    assert await following == [*(f"true {number}" for number in range(30)), "true last"]
                again = await second.connect(sandbox.id)
                assert len(await read(again)) == 32
                await again.destroy()
        await sandbox.detach()


async def test_a_journal_is_kept_after_the_end(shared_server: Server) -> None:
    async with AsyncSandbox.create(url=shared_server.url, api_key=shared_server.key) as sandbox:
        await sandbox.exec("echo last words")
        async with aclosing(sandbox.journal(follow=True)) as events, asyncio.timeout(60):
            assert (await anext(events)).kind is JournalKind.CREATED
            await sandbox.destroy()
            kinds = [event.kind.value async for event in events if event.kind is not JournalKind.WARNING]
        assert kinds == ["exec", "destroyed"]
    events_kept = await read_destroyed(shared_server, sandbox.id)
    assert events_kept[-2].text == "echo last words"
    assert (events_kept[-1].kind, events_kept[-1].key) == (JournalKind.DESTROYED, "server key")
    with pytest.raises(SandboxNotFound, match="no journal"):
        await read_kept(shared_server, "../ids")


async def test_the_journal_of_a_stopped_sandbox_is_read_without_starting_it(shared_server: Server) -> None:
    async with AsyncSandbox.create(url=shared_server.url, api_key=shared_server.key) as sandbox:
        await sandbox.exec("true")
        await sandbox.stop()
        assert [event.kind.value for event in await read(sandbox)] == ["created", "exec", "stopped"]
        async with aclosing(sandbox.journal(follow=True)) as events, asyncio.timeout(60):
            async for event in events:
                if event.kind is JournalKind.STOPPED:
                    break
            assert (await sandbox.info()).status is SandboxStatus.STOPPED
            await sandbox.start()
            assert (await anext(events)).kind is JournalKind.STARTED
    assert (await read_destroyed(shared_server, sandbox.id))[-1].kind is JournalKind.DESTROYED
