"""Sessions in snapshots, copies and transactions, whatever way the sandbox is reached."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from support.serving import MakeSandbox, Where

from cove import AsyncSandbox, AsyncSnapshot, SessionNotFound, SessionTerminated, ValidationFailed

pytestmark = pytest.mark.anyio

STATE = "x='a b'; f() { echo \"f $x\"; }; alias l='echo alias'; set -u; shopt -s nullglob; list=(1 2); export E=e"
TELL = 'f; l; echo "$E ${list[1]} $- $(pwd)"; shopt nullglob'


def told(cwd: str, flags: str = "hBu") -> str:
    return f"f a b\nalias\ne 2 {flags} {cwd}\nnullglob       \ton\n"


async def flags_of(sandbox: AsyncSandbox) -> str:
    """Return what `$-` says in a shell with STATE."""
    session = await sandbox.create_session()
    result = await session.exec("set -u; echo $-")
    await session.delete()
    return result.stdout.strip()


@pytest.fixture(autouse=True)
async def no_snapshots_left() -> AsyncGenerator[None, None]:
    """Delete what a test has left: at a runtime's own socket nothing can be deleted."""
    yield
    for info in await AsyncSnapshot.list():
        await (await AsyncSnapshot.get(info.id)).delete()


async def test_restored_sessions_are_as_they_were_and_handles_go_on(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        flags = await flags_of(sandbox)
        session = await sandbox.create_session(id="s", env={"BORN": "1"}, timeout=50)
        await session.exec(f"mkdir -p a/b; cd a/b; {STATE}")
        snapshot = await sandbox.snapshot()
        assert (await session.exec("echo $x $BORN")).stdout == "a b 1\n", "it goes on after a snapshot"
        await session.exec("x=later; unset -f f; cd /; rm -r /workspace/a; set +u; unset E")
        gone = await sandbox.create_session(id="gone")
        await sandbox.restore(snapshot)
        (info,) = await sandbox.list_sessions()
        assert (info.id, info.cwd, info.restored, info.status) == ("s", "/workspace/a/b", True, "running")
        result = await session.exec(TELL)
        assert result.stdout == told("/workspace/a/b", flags), result.stderr
        assert not result.session_restarted
        assert (await (await sandbox.get_session("s")).exec("echo $BORN; echo new > f")).stdout == "1\n"
        assert (await sandbox.exec("cat a/b/f")).stdout == "new\n"
        with pytest.raises(SessionNotFound):
            await gone.exec("true")
        with pytest.raises(SessionNotFound):
            await sandbox.get_session("gone")
        again = await sandbox.create_session(id="gone")
        assert (await again.exec("echo again")).stdout == "again\n"


async def test_a_session_that_has_ended_or_was_deleted_comes_back(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        ended, deleted = await sandbox.create_session(id="ended"), await sandbox.create_session(id="deleted")
        await ended.exec("x=1")
        await deleted.exec("x=2")
        snapshot = await sandbox.snapshot()
        await (await sandbox.start_process("sleep 1000")).kill()
        with pytest.raises(Exception, match="has ended"):
            await ended.exec("exit 3")
        await deleted.delete()
        await sandbox.restore(snapshot)
        assert (await ended.exec("echo $x")).stdout == "1\n"
        assert (await (await sandbox.get_session("deleted")).exec("echo $x")).stdout == "2\n"
        await sandbox.restore(snapshot)
        await sandbox.restore(snapshot)
        assert sorted(each.id for each in await sandbox.list_sessions()) == ["deleted", "ended"]
        assert (await ended.exec("echo $x")).stdout == "1\n"


async def test_a_busy_session_is_kept_as_it_was_and_says_so(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=before")
        await (await session.start_process("true")).wait()  # its state is known now
        await sandbox.exec("mkfifo /tmp/fifo")
        running = asyncio.ensure_future(session.exec("x=during; touch /workspace/begun; read y < /tmp/fifo; echo $y"))
        await sandbox.exec("until [ -e begun ]; do :; done")
        snapshot = await sandbox.snapshot()
        await sandbox.exec("echo more > /tmp/fifo")
        assert (await running).stdout == "more\n", "nothing has happened to it"
        await session.exec("x=after")
        running = asyncio.ensure_future(session.exec("touch /workspace/again; sleep 1000"))
        await sandbox.exec("until [ -e again ]; do :; done")
        waiting = asyncio.ensure_future(session.exec("echo ran > /workspace/ran"))
        await sandbox.restore(snapshot)
        with pytest.raises(SessionTerminated, match="has ended"):
            await running
        try:
            first = await waiting
        except SessionTerminated:
            first = await session.exec("! test -e ran")
        assert (first.exit_code, first.session_restarted, first.restored_command) == (0, True, "x=before")
        assert (await session.exec("echo $x; ls begun again")).stdout == "before\nbegun\n"


async def test_copies_have_the_sessions_and_each_its_own(where: Where) -> None:
    async with AsyncSandbox.create(**where) as sandbox:
        flags = await flags_of(sandbox)
        session = await sandbox.create_session(id="s")
        await session.exec(f"mkdir d; cd d; {STATE}")
        made = await sandbox.snapshot()
        copies = await sandbox.fork(count=2)
        try:
            copies.append(await AsyncSandbox.create(snapshot=made, **where))
            for number, copy in enumerate(copies):
                (info,) = await copy.list_sessions()
                assert (info.id, info.cwd, info.restored) == ("s", "/workspace/d", True)
                theirs = await copy.get_session("s")
                assert (await theirs.exec(TELL)).stdout == told("/workspace/d", flags)
                await theirs.exec(f"x={number}; touch {number}")
            assert (await session.exec("echo $x; ls")).stdout == "a b\n"
            assert [(await (await copy.get_session("s")).exec("echo $x *")).stdout for copy in copies] == [
                "0 0\n",
                "1 1\n",
                "2 2\n",
            ]
            await copies[0].stop()
            await copies[0].start()
            assert (await (await copies[0].get_session("s")).exec("echo $x")).stdout == "0\n"
            twice = await copies[2].snapshot()
            await copies[2].restore(twice)
            assert (await (await copies[2].get_session("s")).exec("echo $x")).stdout == "2\n"
            await twice.delete()
        finally:
            for copy in copies:
                await copy.destroy()
            await made.delete()


async def test_a_sleeping_session_is_in_the_next_snapshot(where: Where) -> None:
    async with AsyncSandbox.create(**where) as sandbox:
        await (await sandbox.create_session(id="s")).exec("x=1")
        await sandbox.restart()
        (copy,) = await sandbox.fork()
        try:
            (again,) = await copy.fork()
            assert (await (await again.get_session("s")).exec("echo $x")).stdout == "1\n"
            await again.destroy()
        finally:
            await copy.destroy()


async def test_sessions_stand_in_the_workspace_where_their_directory_is_gone(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await sandbox.exec("mkdir /dev/shm/d new")
        session, born = await sandbox.create_session(cwd="/dev/shm/d"), await sandbox.create_session(cwd="new")
        await session.exec("x=1")
        snapshot = await sandbox.snapshot()
        await sandbox.exec("rm -r /dev/shm/d")
        await sandbox.restore(snapshot)
        assert (await session.exec("pwd; echo $x")).stdout == "/workspace\n1\n"
        assert (await born.exec("pwd")).stdout == "/workspace/new\n"
        async with sandbox.transaction():
            await session.exec("mkdir deep; cd deep; x=2")
        assert (await session.exec("pwd; echo $x; touch here; ls")).stdout == "/workspace\n2\nhere\nnew\n"
        assert (await sandbox.exec("ls")).stdout == "here\nnew\n"


async def test_a_reset_sandbox_has_no_sessions(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=1")
        await sandbox.reset()
        assert await sandbox.list_sessions() == []
        with pytest.raises(SessionNotFound):
            await session.exec("true")


async def test_an_export_has_no_sessions(where: Where, tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("export") / "snapshot.tar"
    async with AsyncSandbox.create(**where) as sandbox:
        session = await sandbox.create_session(id="s")
        await session.exec("password=swordfish; echo file > f")
        made = await sandbox.snapshot()
    await made.export(place)
    assert b"sessions" not in place.read_bytes()
    loaded = await AsyncSnapshot.load(place, **where)
    async with AsyncSandbox.create(snapshot=loaded, **where) as copy:
        assert (await copy.exec("cat f")).stdout == "file\n"
        assert await copy.list_sessions() == []
    await made.delete()
    await loaded.delete()


@pytest.mark.parametrize("goes_back", ["restore", "reset"])
async def test_a_change_that_waits_does_not_hold_up_what_it_waits_for(where: Where, goes_back: str) -> None:
    """A session that goes away is no call of a user, which would wait for the change that waits for the restore."""
    async with AsyncSandbox.create(**where) as sandbox:
        snapshot = await sandbox.snapshot()
        session = await sandbox.create_session()
        await session.exec("x=1")
        going_back = sandbox.restore(snapshot) if goes_back == "restore" else sandbox.reset()
        async with asyncio.timeout(60):
            await asyncio.gather(going_back, *(sandbox.pause() for _ in range(3)))
            assert (await sandbox.exec("echo awake")).stdout == "awake\n"
            with pytest.raises(SessionNotFound):
                await session.exec("echo $x")


async def test_a_transaction_whose_lease_ends_while_it_is_paused_goes_back_when_it_is_resumed(where: Where) -> None:
    async with AsyncSandbox.create(**where) as sandbox, asyncio.timeout(60):
        await sandbox.files.write("file", "before")
        id = await sandbox.begin_transaction(lease=0.3)
        await sandbox.files.write("file", "within")
        await sandbox.pause(wake=False)
        await asyncio.sleep(0.6)
        await sandbox.resume()
        while await sandbox.files.read("file") != b"before":
            await asyncio.sleep(0.05)
        with pytest.raises(ValidationFailed, match="is over"):
            await sandbox.commit_transaction(id)
