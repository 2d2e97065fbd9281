"""Stop, start, pause and resume sandboxes, in this program and on a server."""

import asyncio

import pytest
from support.serving import MakeSandbox, Where

from cove import (
    AsyncSandbox,
    Outcome,
    SandboxPaused,
    SandboxStatus,
    SandboxStopped,
    ValidationFailed,
)

pytestmark = pytest.mark.anyio


async def test_what_was_stopped_is_there_again_after_start(where: Where) -> None:
    async with AsyncSandbox.create(env={"A": "1"}, labels={"team": "a"}, **where) as sandbox:
        await sandbox.files.write("file", "kept")
        await sandbox.set_env({"B": "2", "LANG": None})
        session = await sandbox.create_session(id="s")
        await session.exec("cd /tmp; x='a b'; f() { echo $x; }; alias l='echo alias'; shopt -s expand_aliases nullglob")
        process = await sandbox.start_process("sleep 1000")
        waiting = asyncio.ensure_future(process.wait())
        running = asyncio.ensure_future(sandbox.exec("echo begun; touch begun; sleep 1000"))
        await sandbox.exec("until [ -e begun ]; do :; done")
        await sandbox.stop()
        await sandbox.stop()
        assert (await waiting).outcome is Outcome.STOPPED
        result = await running
        assert (result.outcome, result.stdout) == (Outcome.STOPPED, "begun\n")
        info = await sandbox.info()
        assert (info.status, info.spec.labels) == (SandboxStatus.STOPPED, {"team": "a"})
        for call in (sandbox.exec("true"), session.exec("true"), sandbox.files.read("file"), sandbox.list_sessions()):
            with pytest.raises(SandboxStopped, match=r"`start\(\)`"):
                await call
        await sandbox.start()
        await sandbox.start()
        assert (await sandbox.info()).status is SandboxStatus.RUNNING
        assert (await sandbox.exec("cat file; echo $A$B${LANG-}")).stdout == "kept12\n"
        (kept,) = await sandbox.list_sessions()
        assert (kept.id, kept.cwd, kept.restored) == ("s", "/tmp", True)
        assert await session.cwd() == "/tmp"
        result = await session.exec("f; pwd; l; shopt nullglob")
        assert result.stdout.split() == ["a", "b", "/tmp", "alias", "nullglob", "on"]
        assert not result.session_restarted
        assert await sandbox.list_processes() == []


async def test_a_session_stopped_in_a_command_says_so_with_its_next_result(where: Where) -> None:
    async with AsyncSandbox.create(**where) as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=kept", timeout=60)
        await (await session.start_process("true")).wait()  # it has a snapshot now
        running = asyncio.ensure_future(session.exec("x=lost; touch /workspace/begun; sleep 1000"))
        await sandbox.exec("until [ -e begun ]; do :; done")
        await sandbox.restart()
        assert (await running).outcome is Outcome.STOPPED
        result = await session.exec("echo $x")
        assert (result.stdout, result.session_restarted, result.restored_command) == ("kept\n", True, "x=kept")
        assert not (await session.exec("true")).session_restarted


async def test_a_deleted_session_does_not_come_back(where: Where) -> None:
    async with AsyncSandbox.create(**where) as sandbox:
        gone, kept = await sandbox.create_session(id="gone"), await sandbox.create_session(id="kept")
        await gone.delete()
        await sandbox.restart()
        assert [info.id for info in await sandbox.list_sessions()] == ["kept"]
        await kept.delete()
        await sandbox.restart()
        assert await sandbox.list_sessions() == []


async def test_an_exposed_port_is_exposed_after_start(where: Where) -> None:
    async with AsyncSandbox.create(**where) as sandbox:
        before = await sandbox.ports.expose(8000, name="web")
        await sandbox.stop()
        await sandbox.start()
        assert await sandbox.ports.list() == [before]


async def test_a_pause_keeps_everything_and_its_time_stands_still(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=1")
        context = await sandbox.create_code_context()
        await context.run("y = 2")
        counting = await sandbox.start_process("while :; do date +%s%N > now; done")
        running = asyncio.ensure_future(sandbox.exec("touch begun; read -t 0.2 < <(sleep 60); echo over", timeout=20))
        await sandbox.exec("until [ -e begun ] && [ -s now ]; do :; done")
        await sandbox.pause(wake=False)
        await sandbox.pause(wake=False)
        assert (await sandbox.info()).status is SandboxStatus.PAUSED
        for call in (sandbox.exec("true"), session.exec("true"), context.run("1"), sandbox.files.read("now")):
            with pytest.raises(SandboxPaused, match=r"`resume\(\)`"):
                await call
        await sandbox.resume()
        await sandbox.resume()
        assert (await running).stdout == "over\n"
        assert (await session.exec("echo $x")).stdout == "1\n"
        assert (await context.run("y")).text == "2"
        assert (await counting.refresh()).ended_at is None
        await sandbox.pause()
        assert (await sandbox.exec("echo woken")).stdout == "woken\n"
        assert (await sandbox.info()).status is SandboxStatus.RUNNING


async def test_the_timeout_of_a_command_does_not_count_while_it_is_paused(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await sandbox.exec("mkfifo fifo")
        running = asyncio.ensure_future(sandbox.exec("touch begun; read < fifo; echo read", timeout=2))
        await sandbox.exec("until [ -e begun ]; do :; done")
        await sandbox.pause(wake=False)
        await asyncio.sleep(2.2)  # longer than the command has
        await sandbox.resume()
        await sandbox.exec("echo > fifo", timeout=20)
        assert (await running).stdout == "read\n"


async def test_what_is_paused_can_be_stopped_and_restarted(where: Where) -> None:
    async with AsyncSandbox.create(**where) as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=1")
        await sandbox.pause(wake=False)
        await sandbox.stop()
        for call in (sandbox.exec("true"), sandbox.pause(), sandbox.resume()):
            with pytest.raises(SandboxStopped):
                await call
        await sandbox.start()
        assert (await session.exec("echo $x")).stdout == "1\n"
        await sandbox.pause(wake=False)
        await sandbox.start()
        assert (await session.exec("echo $x")).stdout == "1\n"
        await sandbox.pause(wake=False)
        await sandbox.restart()
        assert (await session.exec("echo $x")).stdout == "1\n"
        await sandbox.pause(wake=False)


async def test_an_idle_sandbox_stops_and_the_next_call_starts_it(where: Where) -> None:
    async with AsyncSandbox.create(**where) as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=1")
        await sandbox.set_idle_timeout(0.05)
        await _until(sandbox, SandboxStatus.STOPPED)
        assert (await session.exec("echo $x")).stdout == "1\n"
        await sandbox.set_idle_timeout(0.05, action="pause")
        await sandbox.exec("true")  # it may have stopped once more before it was told to pause
        await _until(sandbox, SandboxStatus.PAUSED)
        assert (await session.exec("echo $x")).stdout == "1\n"
        await sandbox.set_idle_timeout(None)
        await sandbox.stop()
        await sandbox.set_idle_timeout(1000)
        await sandbox.start()
        assert (await sandbox.info()).spec.idle_timeout == 1000


async def _until(sandbox: AsyncSandbox, status: SandboxStatus) -> None:
    async with asyncio.timeout(20):
        while (await sandbox.info()).status is not status:
            await asyncio.sleep(0.01)


async def test_an_idle_timeout_that_is_set_overrides_keep_alive(where: Where) -> None:
    async with AsyncSandbox.create(idle_timeout=1000, keep_alive=True, **where) as sandbox:
        await sandbox.set_idle_timeout(0.05)
        await _until(sandbox, SandboxStatus.STOPPED)


async def test_one_that_idleness_stopped_and_then_stop_stays_stopped(where: Where) -> None:
    async with AsyncSandbox.create(idle_timeout=0.05, **where) as sandbox:
        await _until(sandbox, SandboxStatus.STOPPED)
        await sandbox.stop()
        with pytest.raises(SandboxStopped):
            await sandbox.exec("true")
        await sandbox.start()
        assert (await sandbox.exec("echo up")).stdout == "up\n"


async def test_a_running_process_and_an_open_stream_keep_it_awake(where: Where) -> None:
    async with AsyncSandbox.create(idle_timeout=0.05, **where) as sandbox:
        process = await sandbox.start_process("read; echo read", stdin=True)
        await asyncio.sleep(0.3)
        assert (await sandbox.info()).status is SandboxStatus.RUNNING
        await process.write_stdin("x\n")
        assert (await process.wait()).exit_code == 0
        await _until(sandbox, SandboxStatus.STOPPED)


async def test_sandboxes_are_found_by_labels_and_status(where: Where) -> None:
    async with (
        AsyncSandbox.create(id="one", labels={"team": "a", "kind": "x,y=z"}, **where) as one,
        AsyncSandbox.create(id="two", labels={"team": "b"}, **where) as two,
    ):

        async def ids(labels: dict[str, str] | None = None, status: str | None = None) -> list[str]:
            return sorted(info.id for info in await AsyncSandbox.list(labels=labels, status=status, **where))

        assert await ids() == ["one", "two"]
        assert await ids({"team": "a"}) == await ids({"kind": "x,y=z", "team": "a"}) == ["one"]
        assert await ids({"team": "c"}) == []
        await two.set_labels({"team": "a"})
        assert await ids({"team": "a"}) == ["one", "two"]
        await one.pause()
        await two.stop()
        await two.set_labels({"team": "c"})
        assert await ids(status="paused") == ["one"]
        assert await ids({"team": "c"}, "stopped") == ["two"]
        for wrong in ({"": "x"}, {"a b": "x"}, {"a": "x" * 257}, {"a": "\n"}, {f"n{n}": "" for n in range(65)}):
            with pytest.raises(ValidationFailed, match="label"):
                await one.set_labels(wrong)
        with pytest.raises(ValidationFailed):
            await ids(status="asleep")


async def test_a_lifetime_counts_from_when_it_was_set(where: Where) -> None:
    async with AsyncSandbox.create(lifetime=1000, **where) as sandbox:
        assert (await sandbox.info()).ends_at is not None
        await sandbox.set_lifetime(None)
        assert (await sandbox.info()).ends_at is None
        await sandbox.stop()
        await sandbox.set_lifetime(2000)
        await sandbox.start()
        info = await sandbox.info()
        assert info.ends_at is not None
        assert 1900 < (info.ends_at - info.created_at).total_seconds() < 2100
        with pytest.raises(ValidationFailed):
            await sandbox.set_lifetime(0)


async def test_a_sandbox_without_isolation_cannot_be_paused(where: Where) -> None:
    if where:
        pytest.skip("the server of these tests allows no such sandbox")
    async with AsyncSandbox.create(isolation="none", **where) as sandbox:
        with pytest.raises(ValidationFailed, match="isolation"):
            await sandbox.pause()
        assert (await sandbox.exec("echo up")).stdout == "up\n"


async def test_any_number_of_changes_can_be_asked_for_at_once(where: Where) -> None:
    async with AsyncSandbox.create(**where) as sandbox:
        await sandbox.create_session(id="s")
        changes = (sandbox.stop, sandbox.start, sandbox.start, sandbox.restart, sandbox.restart, sandbox.start)
        await asyncio.gather(*(change() for change in changes), return_exceptions=True)
        await sandbox.start()
        assert (await sandbox.exec("echo up")).stdout == "up\n"
        assert [info.id for info in await sandbox.list_sessions()] == ["s"]


async def test_a_sandbox_that_is_in_no_cluster_has_nowhere_to_go(where: Where) -> None:
    async with AsyncSandbox.create(**where) as sandbox:
        await sandbox.stop()
        with pytest.raises(ValidationFailed, match="cluster"):
            await sandbox.move("b")
        await sandbox.start()
