"""The sessions in a snapshot are hostile text: bounded, opaque, and gone with their snapshot or its maker."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.cancellation import cancel_after
from support.crash import run_to_its_death
from support.programs import run_program

from cove import AsyncSandbox, AsyncSnapshot
from cove.api import Session
from cove.local.threads import in_thread
from cove.runtime.sandbox import Sandbox
from cove.runtime.session_shell import SessionShell
from cove.runtime.shell_snapshot import ShellSnapshot
from cove.runtime.state import SandboxState

pytestmark = pytest.mark.anyio

# Takes the shell's place, and never says its state.
SILENT = """
import os, sys
place, first = sys.argv[1:]
go, done = os.open(f"{place}/go", os.O_RDONLY), os.open(f"{place}/done", os.O_WRONLY)
os.write(done, first.encode() + b"\\0000\\0/tmp\\0")
while os.read(go, 3):
    pass
"""
PROGRAM = """
import asyncio, sys
from support.crash import arm_step
from cove import AsyncSandbox

async def main():
    sandbox = await AsyncSandbox.create()
    session = await sandbox.create_session(id="s")
    await session.exec("x=1")
    first = await sandbox.snapshot(name="1")
    await session.exec("x=2")
    arm_step({step!r}, {moment!r})
    await sandbox.snapshot(name="2")
    await first.delete()

print("ready", flush=True)
sys.stdin.readline()
asyncio.run(main())
"""
NEXT = """
import asyncio
from cove import AsyncSandbox, AsyncSnapshot

async def main():
    for info in await AsyncSnapshot.list():
        async with AsyncSandbox.create(snapshot=info.id) as sandbox:
            session = await sandbox.get_session("s")
            print(info.name, (await session.exec("echo $x")).stdout.strip())
        await (await AsyncSnapshot.get(info.id)).delete()

asyncio.run(main())
"""
STEPS = [
    "cove.layers.store LayerStore.keep before",
    pytest.param("cove.runtime.kept_sessions _write after", marks=pytest.mark.slow),
    pytest.param("cove.runtime.state keep_sessions after", marks=pytest.mark.slow),
    pytest.param("cove.layers.store LayerStore.keep after", marks=pytest.mark.slow),
    pytest.param("cove.layers.store LayerStore.forget after", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_program_leaves_whole_sessions_or_none(step: str, other_home: Path) -> None:
    where, _, moment = step.rpartition(" ")
    run_to_its_death(PROGRAM.format(step=where, moment=moment), other_home)
    found = run_program(NEXT, other_home).split("\n")
    assert all(line in ("1 1", "2 2") for line in found)
    assert found[0] == ("2 2" if "forget" in step else "1 1")
    assert os.listdir(other_home / "snapshots") == []


async def test_a_shell_that_does_not_say_its_state_delays_a_snapshot_and_no_more() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("/tmp/silent.py", SILENT)
        session, other = await sandbox.create_session(), await sandbox.create_session()
        await session.exec("x=1")
        await (await session.start_process("true")).wait()
        await session.exec('exec python3 /tmp/silent.py "$__cove" "$__cove_id"')
        await other.exec("x=2")
        snapshot = await sandbox.snapshot()
        await sandbox.restore(snapshot)
        assert (await other.exec("echo $x")).stdout == "2\n"
        result = await session.exec("echo $x")
        assert (result.stdout, result.session_restarted) == ("1\n", True)
        await snapshot.delete()


async def test_what_is_too_large_comes_back_as_it_was_known_last() -> None:
    async with AsyncSandbox.create() as sandbox:
        assert isinstance(sandbox, Sandbox)
        session, born = await sandbox.create_session(), await sandbox.create_session(env={"A": "1"})
        await session.exec("x=small")
        await (await session.start_process("true")).wait()
        for each in (session, born):
            await each.exec("printf -v y '%17000000s' x; x=large; A=2")
        snapshot = await sandbox.snapshot()

        def sizes() -> list[int]:
            return [path.stat().st_size for path in sandbox.layers.store.sessions(snapshot.id).iterdir()]

        assert sum(await in_thread(sizes)) < 1 << 20
        await sandbox.restore(snapshot)
        result = await session.exec("echo $x ${#y}")
        assert (result.stdout, result.session_restarted) == ("small 0\n", True)
        result = await born.exec("echo $A ${x-unset}")
        assert (result.stdout, result.session_restarted) == ("1 unset\n", True)
        await snapshot.delete()


async def test_sessions_lie_where_nobody_else_reads_them_and_go_with_their_snapshot() -> None:
    async with AsyncSandbox.create() as sandbox:
        assert isinstance(sandbox, Sandbox)
        await (await sandbox.create_session()).exec("x=1")
        snapshot = await sandbox.snapshot()
        directory = sandbox.layers.store.sessions(snapshot.id)

        def modes() -> set[int]:
            return {path.stat().st_mode & 0o77 for path in (directory, *directory.iterdir())}

        assert await in_thread(modes) == {0}
        await snapshot.delete()
        assert not await in_thread(directory.exists)
        (await sandbox.exec("true")).check()


async def test_a_cancelled_snapshot_of_sessions_that_sleep_leaves_nothing_open() -> None:
    async with AsyncSandbox.create() as sandbox:
        for _ in range(3):
            await (await sandbox.create_session()).exec("x=1")
        await sandbox.restart()
        await (await sandbox.snapshot()).delete()
        before = open_states()
        for turns in (*range(1, 20), 30, 50, 100):
            await cancel_after(turns, sandbox.snapshot())
        assert open_states() == before
        for info in await AsyncSnapshot.list():
            await (await AsyncSnapshot.get(info.id)).delete()


def open_states() -> int:
    """The descriptors of this program that are of states of shells."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += "memfd:cove" in os.readlink(f"/proc/self/fd/{number}")
    return found


@asynccontextmanager
async def _slow_saving(session: Session, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[None, None]:
    """While its state is being saved, as in a pause between two commands."""
    begun, save = asyncio.Event(), SessionShell.snapshot

    async def save_slowly(shell: SessionShell) -> ShellSnapshot:
        begun.set()
        await asyncio.sleep(0.5)
        return await save(shell)

    with monkeypatch.context() as patched:
        patched.setattr(SessionShell, "snapshot", save_slowly)
        saving = asyncio.ensure_future(session._idle.snapshot_when_free())  # type: ignore[attr-defined]
        async with asyncio.timeout(30):
            await begun.wait()
        yield
        await saving


async def test_a_session_whose_state_is_just_being_saved_outlives_a_rollback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody uses it: it stands still for the change, and goes on."""
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        id = await sandbox.begin_transaction()
        await session.exec("x=1; touch file")
        async with _slow_saving(session, monkeypatch):
            await sandbox.rollback_transaction(id)
        assert not await sandbox.files.exists("file")
        assert (await session.exec("echo $x")).stdout == "1\n"


async def test_a_session_whose_state_is_just_being_saved_loses_nothing_by_a_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=1")
        async with _slow_saving(session, monkeypatch):
            await sandbox.stop()
        await sandbox.start()
        process = await session.start_process("echo $x")
        assert (await process.output(timeout=30)).stdout == "1\n"
        result = await session.exec("echo $x")
        assert result.stdout == "1\n"
        assert not result.session_restarted


async def test_a_session_that_sleeps_can_be_deleted_while_a_snapshot_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    keep, loop = SandboxState._keep, asyncio.get_running_loop()
    async with AsyncSandbox.create() as sandbox:
        await sandbox.create_session(id="sleeper")
        first = await sandbox.snapshot()
    async with AsyncSandbox.create(snapshot=first.id) as sandbox:
        session = await sandbox.get_session("sleeper")

        def keep_slowly(state: SandboxState, *arguments: Any) -> Any:
            asyncio.run_coroutine_threadsafe(session.delete(), loop).result(30)
            return keep(state, *arguments)

        monkeypatch.setattr(SandboxState, "_keep", keep_slowly)
        second = await sandbox.snapshot()
    for snapshot in (first, second):
        await snapshot.delete()
