"""Sandboxes from creation to destruction, in this program and on a server."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from support.servers import Server, eventually, left_behind
from support.serving import MakeSandbox, Where, address

from cove import (
    AsyncSandbox,
    Exit,
    Limits,
    Outcome,
    Sandbox,
    SandboxAlreadyExists,
    SandboxDestroyed,
    SandboxNotFound,
    SandboxSpec,
    SandboxStatus,
    ValidationFailed,
)
from cove.api import Process


@pytest.mark.anyio
async def test_info_tells_what_the_sandbox_is(make_sandbox: MakeSandbox) -> None:
    spec = SandboxSpec(env={"A": "1"}, labels={"owner": "ü"}, workdir="/tmp")
    async with make_sandbox(spec=spec) as sandbox:
        info = await sandbox.info()
        assert (info.id, info.status) == (sandbox.id, SandboxStatus.RUNNING)
        # A server has limits of its own for what a spec does not say.
        said = msgspec.structs.replace(info.spec, limits=spec.limits, lifetime=spec.lifetime)
        assert said == spec
        assert (info.isolation, info.created_at.tzinfo is not None) == ("bubblewrap", True)
        assert (await sandbox.exec("echo $A; pwd")).stdout == "1\n/tmp\n"


@pytest.mark.anyio
async def test_usage_is_told(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await sandbox.files.write("file", bytes(1 << 20))
        usage = await sandbox.usage()
        assert usage.disk_bytes is not None
        assert usage.disk_bytes >= 1 << 20


@pytest.mark.anyio
async def test_sandboxes_share_nothing(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as one, make_sandbox() as two:
        await one.files.write("file", "one")
        await one.start_process("sleep 1000", id="p")
        assert not await two.files.exists("file")
        assert await two.list_processes() == []
        assert (await two.exec("pgrep sleep; ls /tmp /workspace")).stdout == "/tmp:\n\n/workspace:\n"


FORK = """
import os, signal
children = []
try:
    for _ in range(60):
        if not (child := os.fork()):
            signal.pause()
        children.append(child)
except BlockingIOError:
    print("refused")
for child in children:
    os.kill(child, signal.SIGKILL)
"""


@pytest.mark.anyio
async def test_limits_hold(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox(limits=Limits(pids=30)) as sandbox:
        info = await sandbox.info()
        assert info.spec.limits.pids == 30
        if "pids" in info.limits_enforced:
            assert (await sandbox.exec(["python3", "-c", FORK])).stdout == "refused\n"


@pytest.mark.anyio
async def test_an_id_is_taken_until_the_sandbox_is_destroyed(where: Where) -> None:
    async with AsyncSandbox.create(id="taken", **where) as sandbox:
        assert sandbox.id == "taken"
        with pytest.raises(SandboxAlreadyExists):
            await AsyncSandbox.create(id="taken", **where)
        await sandbox.files.write("file", "kept")
        again = await AsyncSandbox.create(id="taken", exist_ok=True, **where)
        assert await again.files.read("file") == b"kept"
        await again.detach()
    with pytest.raises(SandboxNotFound):
        await AsyncSandbox.connect("taken", **where)
    async with AsyncSandbox.create(id="taken", **where) as fresh:
        assert not await fresh.files.exists("file")


@pytest.mark.anyio
async def test_of_many_creations_with_one_id_exactly_one_wins(where: Where) -> None:
    made = await asyncio.gather(*(AsyncSandbox.create(id="x", **where) for _ in range(6)), return_exceptions=True)
    (winner,) = [each for each in made if isinstance(each, AsyncSandbox)]
    assert sum(isinstance(each, SandboxAlreadyExists) for each in made) == 5
    await winner.destroy()


@pytest.mark.anyio
async def test_sandboxes_are_listed_and_found(where: Where) -> None:
    assert await AsyncSandbox.list(**where) == []
    async with AsyncSandbox.create(id="one", **where) as one, AsyncSandbox.create(**where) as two:
        assert [info.id for info in await AsyncSandbox.list(**where)] == ["one", two.id]
        async with AsyncSandbox.connect("one", **where) as found:
            await found.files.write("file", "x")
        assert await one.files.read("file") == b"x"


@pytest.mark.anyio
async def test_bad_ids_and_specs_are_refused(where: Where) -> None:
    for id in ("", "A", "a_b", "-a", "a-", ".", "../x", "ü", "x" * 129, 7):
        with pytest.raises(ValidationFailed):
            await AsyncSandbox.create(id=id, **where)  # type: ignore[arg-type]  # on purpose
        with pytest.raises((ValidationFailed, SandboxNotFound)):
            await AsyncSandbox.connect(id, **where)  # type: ignore[arg-type]  # on purpose
    wrong: list[dict[str, object]] = [{"env": {"1": "x"}}, {"lifetime": -1}, {"nosuch": 1}]
    for fields in wrong:
        with pytest.raises((ValidationFailed, TypeError)):
            await AsyncSandbox.create(**where, **fields)  # type: ignore[arg-type]  # on purpose
    assert await AsyncSandbox.list(**where) == []


@pytest.mark.anyio
async def test_destroy_can_be_called_any_number_of_times_and_at_once(where: Where) -> None:
    sandbox = await AsyncSandbox.create(**where)
    (await sandbox.exec("mkdir -p a/b/c; chmod 000 a/b; setsid sleep 1000 &")).check()
    await asyncio.gather(*(sandbox.destroy() for _ in range(5)))
    await sandbox.destroy()


@pytest.mark.anyio
async def test_a_destroyed_sandbox_says_so_to_every_call(where: Where) -> None:
    sandbox = await AsyncSandbox.create(**where)
    session = await sandbox.create_session()
    await sandbox.destroy()
    for call in (
        sandbox.exec("true"),
        sandbox.start_process("true"),
        sandbox.files.read("x"),
        sandbox.create_session(),
        sandbox.terminal(),
        sandbox.run_code("1"),
        session.exec("true"),
    ):
        with pytest.raises(SandboxDestroyed):
            await call
    await sandbox.detach()


@pytest.mark.anyio
async def test_destroy_ends_running_calls_and_streams(where: Where) -> None:
    sandbox = await AsyncSandbox.create(**where)
    process = await sandbox.start_process("echo up; trap '' TERM; while :; do sleep 1000; done")
    await process.wait_for_log("up")
    calls = [asyncio.ensure_future(sandbox.exec("trap '' TERM; sleep 1000")) for _ in range(5)]
    watching = asyncio.ensure_future(_end_of(process))
    await sandbox.exec("until [ $(pgrep -c sleep) = 6 ]; do sleep 0.01; done", timeout=20)
    other = await AsyncSandbox.connect(sandbox.id, **where)
    await other.destroy()
    for result in await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30):
        assert isinstance(result, SandboxDestroyed), result
    assert (await asyncio.wait_for(watching, 30)).outcome is Outcome.KILLED
    await sandbox.destroy()


async def _end_of(process: Process) -> Exit:
    *_, last = [event async for event in process.logs()]
    assert isinstance(last, Exit)
    return last


@pytest.mark.anyio
async def test_a_restart_ends_everything_and_keeps_the_files(where: Where) -> None:
    async with AsyncSandbox.create(env={"A": "1"}, **where) as sandbox:
        await sandbox.files.write("file", "kept")
        await sandbox.create_session(id="s")
        await sandbox.start_process("sleep 1000", id="p")
        await sandbox.terminal(id="t")
        await sandbox.restart()
        assert not [*await sandbox.list_terminals(), *await sandbox.list_processes()]
        assert [info.id for info in await sandbox.list_sessions()] == ["s"]
        assert (await sandbox.exec("cat file; pgrep sleep; echo $A")).stdout == "kept1\n"


@pytest.mark.anyio
async def test_a_cancelled_creation_leaves_nothing(where: Where, shared_server: Server) -> None:
    for moment in (0.0, 0.01, 0.03, 0.06):
        creating = asyncio.ensure_future(AsyncSandbox.create(id="x", **where))
        await asyncio.sleep(moment)
        creating.cancel()
        await asyncio.wait([creating])
        if not creating.cancelled():
            await creating.result().destroy()
        async with AsyncSandbox.create(id="later", **where):
            pass  # a server has begun the one before it, if it ever does
        await eventually(lambda: not shared_server.runtimes())
        assert left_behind(shared_server.home) == []
        assert await AsyncSandbox.list(**where) == []


@pytest.fixture(scope="module")
def portal(shared_server: Server) -> None:
    """The loop of a blocking program lives as long as the program; so does what libuv opens for its first stream."""
    Sandbox.list(**address(shared_server))


def test_the_same_without_asyncio(portal: None, shared_server: Server, tmp_path: Path) -> None:
    with Sandbox.create(id="blocking", **address(shared_server)) as sandbox:
        assert sandbox.exec("echo hello").stdout == "hello\n"
        session = sandbox.create_session()
        session.exec("x=1")
        assert session.exec("echo $x").stdout == "1\n"
        process = sandbox.start_process("echo line; cat", stdin=True)
        process.write_stdin("typed")
        process.close_stdin()
        events = list(process.logs())
        assert b"".join(event.data for event in events[:-1]) == b"line\ntyped"  # type: ignore[union-attr]
        sandbox.files.write("file", b"\xff")
        sandbox.files.download("file", tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == b"\xff"
        with sandbox.terminal(shell=["cat"]).connect() as terminal:
            terminal.write("x\n")
            seen = b""
            for event in terminal:
                seen += getattr(event, "data", b"")
                if seen == b"x\r\nx\r\n":
                    break
        assert [info.id for info in Sandbox.list(**address(shared_server))] == ["blocking"]
        with Sandbox.connect("blocking", **address(shared_server)) as other:
            assert other.files.read("file") == b"\xff"
    with pytest.raises(SandboxNotFound):
        Sandbox.connect("blocking", **address(shared_server))


@pytest.mark.anyio
async def test_a_handle_is_shown_by_its_id(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox(env={"TOKEN": "hidden"}) as sandbox:
        session = await sandbox.create_session()
        process = await sandbox.start_process("sleep 60")
        assert repr(sandbox) == f"<AsyncSandbox {sandbox.id}>"
        assert repr(session) == f"<Session {session.id}>"
        assert repr(process) == f"<Process {process.id}>"
        assert "hidden" not in repr([sandbox.files, sandbox.git, sandbox.mounts, sandbox.ports, sandbox.backups])
