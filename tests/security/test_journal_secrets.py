"""Secrets stay out of journals, logs and records: a canary in each place where one is given is looked for on disk."""

import asyncio
import os

import pytest
from support.canaries import canary, found_in
from support.raw_http import connect
from support.servers import Server
from support.serving import address

from cove import AsyncSandbox

pytestmark = pytest.mark.anyio

CANARIES = SPEC, CHANGED, CALL, PROCESS, SESSION, STDIN, TYPED, FILE, APPENDED, HEADER = [
    canary(name)
    for name in ("spec", "changed", "call", "process", "session", "stdin", "typed", "file", "appended", "header")
]


async def use_everything(sandbox: AsyncSandbox, server: Server) -> None:
    await sandbox.set_env({"CHANGED": CHANGED})
    assert (await sandbox.exec("cat; echo $SECRET", stdin=STDIN, env={"SECRET": CALL})).ok
    process = await sandbox.start_process("read x; echo $x $SECRET", stdin=True, env={"SECRET": PROCESS})
    await process.write_stdin(f"{TYPED}\n")
    await process.wait()
    session = await sandbox.create_session(env={"SECRET": SESSION})
    assert (await session.exec("cat >/dev/null; env", stdin=STDIN, env={"MORE": CALL})).ok
    await session.delete()
    terminal = await sandbox.terminal(id="t")
    async with terminal.connect() as keyboard:
        await keyboard.write(f"{TYPED}\r")
    await terminal.destroy()
    await sandbox.files.write("file", FILE)
    await sandbox.files.append("file", APPENDED)
    await sandbox.files.replace("file", FILE, f"{FILE}2")
    await sandbox.run_code("import os; x = input() if False else os.environ.get('SECRET')")
    async with connect(int(server.url.rpartition(":")[2])) as client:
        reply = await client.ask(
            f"/v1/sandboxes/{sandbox.id}/exec",
            method="POST",
            body=b'{"command":"true"}',
            authorization=f"Bearer {server.key}",
            x_secret=HEADER,
            cookie=HEADER,
            user_agent=f"robot/1 {HEADER}",
            traceparent=HEADER,
        )
        assert reply.status == 200


async def test_a_secret_is_found_nowhere_but_where_it_has_to_be(shared_server: Server) -> None:
    where = address(shared_server)
    async with AsyncSandbox.create(**where, env={"SECRET": SPEC}) as sandbox:
        await use_everything(sandbox, shared_server)
        events = [event async for event in sandbox.journal()]
        assert len(events) > 10
        # What a sandbox has to have when it is started again is in its record, which only the server's user can read.
        assert await asyncio.to_thread(found_in, shared_server.home, CANARIES) <= {
            ("sandbox.json", SPEC),
            ("sandbox.json", CHANGED),
        }
    assert await asyncio.to_thread(found_in, shared_server.home, CANARIES) == set()
    (kept,) = [each for each in await AsyncSandbox.list_destroyed(**where) if each.id == sandbox.id]
    assert "canary" not in repr([event async for event in AsyncSandbox.destroyed_journal(kept.key, **where)])


async def test_the_search_finds_what_is_there(shared_server: Server) -> None:
    where = address(shared_server)
    async with AsyncSandbox.create(**where) as sandbox:
        await sandbox.exec(["true", SPEC])
        assert [event.text async for event in sandbox.journal()][-1] == f"true {SPEC}"
        found = await asyncio.to_thread(found_in, shared_server.home, CANARIES)
        assert {text for _, text in found} == {SPEC}


async def test_only_the_servers_user_can_read_a_journal(shared_server: Server) -> None:
    async with AsyncSandbox.create(url=shared_server.url, api_key=shared_server.key) as sandbox:
        assert [event async for event in sandbox.journal()] != []
        record = await shared_server.record(sandbox.id)
        journal = shared_server.directory.place(record.key) / "journal"
        assert journal.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in journal.iterdir()} == {0o600}
        assert journal.stat().st_uid == os.geteuid()
