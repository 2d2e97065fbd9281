"""The sandboxes of a server from creation to destruction, idle, stopped and started again."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from support.executors import needs_python
from support.leaks import control_groups, processes_below
from support.programs import places, wait_until_gone
from support.servers import CONFIGURATION, DEFAULT, eventually, left_behind, serving

from cove import AsyncSandbox, Limits, SandboxSpec, SandboxStatus
from cove.errors import (
    LimitExceeded,
    PermissionDenied,
    SandboxAlreadyExists,
    SandboxDestroyed,
    SandboxNotFound,
    SandboxUnavailable,
    ValidationFailed,
)
from cove.runtime.disk import try_disk
from cove.server.sandboxes.directory import Record
from cove.server.sandboxes.warm_pool import WarmPool

pytestmark = pytest.mark.anyio


async def test_a_sandbox_is_made_used_and_destroyed_and_leaves_nothing(other_home: Path) -> None:
    with serving(other_home) as server:
        before = set(processes_below(server.process.pid))
        sandbox = await server.create("mine", labels={"a": "b"})
        assert (await sandbox.exec("echo hello")).stdout == "hello\n"
        await sandbox.start_process("sleep 1000")
        (await sandbox.exec("mkdir -p a/b/c; chmod 000 a/b; setsid sleep 1000 &")).check()
        info = await sandbox.info()
        assert (info.id, info.status, info.spec.labels) == ("mine", "running", {"a": "b"})
        key = (await server.record("mine")).key
        inside = [pid for pid in processes_below(server.process.pid) if pid not in before]
        assert len(inside) > 3
        await sandbox.destroy()
        assert wait_until_gone(inside) == []
        assert left_behind(other_home) == []
        assert not [group for group in control_groups() if os.path.basename(group) == key]
        await server.starter.destroy("mine")
        with pytest.raises(SandboxNotFound):
            await server.connect("mine")


async def test_of_many_creations_of_one_id_exactly_one_wins(other_home: Path) -> None:
    with serving(other_home) as server:
        made = await asyncio.gather(*(server.starter.create("x", DEFAULT) for _ in range(20)), return_exceptions=True)
        assert len([each for each in made if isinstance(each, Record)]) == 1
        assert len([each for each in made if isinstance(each, SandboxAlreadyExists)]) == 19
        assert len(places(other_home)) == 1
        await server.starter.destroy("x")
        got = await asyncio.gather(*(server.starter.create("x", DEFAULT, exist_ok=True) for _ in range(20)))
        assert len({record.key for record in got}) == 1
        assert places(other_home) == [got[0].key]
        await server.starter.destroy("x")
        assert left_behind(other_home) == []


async def test_ids_are_checked_and_those_that_are_made_cannot_be_guessed(other_home: Path) -> None:
    with serving(other_home) as server:
        with pytest.raises(ValidationFailed):
            await server.starter.create("../x", DEFAULT)
        one, other = [await server.starter.create(None, DEFAULT) for _ in range(2)]
        assert len(one.id) == 26
        assert one.id != other.id
        for record in (one, other):
            await server.starter.destroy(record.id)


@pytest.mark.parametrize("moment", [0.0, 0.002, 0.01, 0.02, 0.04])
async def test_a_creation_that_nobody_waits_for_leaves_nothing(moment: float, other_home: Path) -> None:
    with serving(other_home) as server:
        creating = [asyncio.ensure_future(server.starter.create(f"x{number}", DEFAULT)) for number in range(3)]
        await asyncio.sleep(moment)
        made = [not each.cancel() for each in creating]
        await asyncio.wait(creating)
        for number, is_made in enumerate(made):
            if is_made:
                await server.starter.destroy(f"x{number}")
        await eventually(lambda: left_behind(other_home) == [])
        assert (await server.starter.create("x0", DEFAULT)).id == "x0"
        await server.starter.destroy("x0")


async def test_a_creation_that_fails_says_why_and_leaves_nothing(other_home: Path) -> None:
    with serving(other_home) as server:
        with pytest.raises(PermissionDenied):
            await server.create("x", isolation="none")
        assert left_behind(other_home) == []


@pytest.mark.parametrize("moment", [0.0, 0.005, 0.01, 0.02, 0.03, 0.05])
async def test_a_sandbox_that_is_destroyed_while_it_is_made_is_gone(moment: float, other_home: Path) -> None:
    with serving(other_home) as server:
        creating = asyncio.ensure_future(server.starter.create("x", DEFAULT))
        await asyncio.sleep(moment)
        await server.starter.destroy("x")
        try:
            await creating
        except SandboxDestroyed:
            pass
        except SandboxUnavailable:
            pass  # the process that made it was ended
        else:
            await server.starter.destroy("x")  # it was made after it was destroyed, or is gone
        await eventually(lambda: left_behind(other_home) == [])


async def test_an_idle_sandbox_stops_and_the_next_call_starts_it_with_its_files(other_home: Path) -> None:
    with serving(other_home) as server:
        sandbox = await server.create("x", idle_timeout=0.5)
        await sandbox.exec("echo kept > file")
        await sandbox.create_session(id="s")
        runtime = await server.runtime("x")
        assert await asyncio.to_thread(wait_until_gone, [runtime]) == []
        assert (await sandbox.info()).status is SandboxStatus.STOPPED
        assert [info.status for info in await AsyncSandbox.list(url=server.url, api_key=server.key)] == ["stopped"]
        assert await server.status("x") is SandboxStatus.STOPPED
        results = await asyncio.gather(*(sandbox.exec("cat file") for _ in range(5)))
        assert {result.stdout for result in results} == {"kept\n"}
        assert [info.restored for info in await sandbox.list_sessions()] == [True]
        await sandbox.destroy()
        assert left_behind(other_home) == []


async def test_calls_streams_and_processes_are_activity_and_looking_is_not(other_home: Path) -> None:
    with serving(other_home) as server:
        sandbox = await server.create("x", idle_timeout=0.4)
        assert (await sandbox.exec("sleep 1; echo done")).stdout == "done\n"
        process = await sandbox.start_process("sleep 1")
        await asyncio.sleep(0.8)
        assert await server.status("x") is SandboxStatus.RUNNING
        await process.wait()
        terminal = await sandbox.terminal(id="t")
        async with terminal.connect():
            await asyncio.sleep(0.8)
            assert await server.status("x") is SandboxStatus.RUNNING
        runtime = await server.runtime("x")
        looking = asyncio.ensure_future(asyncio.to_thread(wait_until_gone, [runtime]))
        while not looking.done():
            await sandbox.info()
            await asyncio.sleep(0.05)
        assert await looking == []
        assert await server.status("x") is SandboxStatus.STOPPED
        await sandbox.destroy()


async def test_a_sandbox_that_is_kept_alive_does_not_stop(other_home: Path) -> None:
    with serving(other_home) as server:
        sandbox = await server.create("x", idle_timeout=0.1, keep_alive=True)
        await asyncio.sleep(0.6)
        assert await server.status("x") is SandboxStatus.RUNNING
        await sandbox.destroy()


async def test_a_lifetime_ends_a_sandbox_that_runs(other_home: Path) -> None:
    with serving(other_home) as server:
        sandbox = await server.create("x", lifetime=5.0)
        await sandbox.start_process("sleep 1000")
        await eventually(lambda: left_behind(other_home) == [])
        with pytest.raises(SandboxDestroyed):
            await sandbox.exec("true")
        await sandbox.destroy()


async def test_a_lifetime_counts_over_restarts_and_ends_a_sandbox_that_is_stopped(other_home: Path) -> None:
    with serving(other_home) as server:
        sandbox = await server.create("x", lifetime=8.0, idle_timeout=0.2)
        created_at = (await server.record("x")).created_at
        assert await asyncio.to_thread(wait_until_gone, [await server.runtime("x")]) == []
        await sandbox.exec("true")
        assert (await server.record("x")).created_at == created_at
        assert await asyncio.to_thread(wait_until_gone, [await server.runtime("x")]) == []
        await eventually(lambda: server.directory.find("x") is None)
        with pytest.raises(SandboxDestroyed):
            await sandbox.exec("true")
        await sandbox.destroy()
        again = await server.create("x")
        assert (await again.exec("ls -A")).stdout == ""
        await again.destroy()
        await eventually(lambda: left_behind(other_home) == [])


@pytest.mark.parametrize("state", ["stopped", "lost", "hung"])
async def test_destroy_succeeds_whatever_the_runtime_does(state: str, other_home: Path) -> None:
    with serving(other_home) as server:
        sandbox = await server.create("x", idle_timeout=0.2 if state == "stopped" else None)
        runtime = await server.runtime("x")
        if state == "stopped":
            assert await asyncio.to_thread(wait_until_gone, [runtime]) == []
        else:
            os.kill(runtime, signal.SIGKILL if state == "lost" else signal.SIGSTOP)
        destroying = asyncio.ensure_future(sandbox.destroy())
        if state == "hung":
            await eventually(lambda: server.directory.find("x") is None)
            again = await server.create("x")
            assert (await again.exec("echo new")).stdout == "new\n"
            await destroying
            await again.destroy()
        await destroying
        assert await asyncio.to_thread(wait_until_gone, [runtime]) == []
        await eventually(lambda: left_behind(other_home) == [])


async def test_a_start_that_the_disk_refuses_says_why_and_can_be_tried_again(other_home: Path) -> None:
    with serving(other_home) as server:
        sandbox = await server.create("x")
        await sandbox.exec("echo kept > file")
        await sandbox.stop()
        log = server.directory.place((await server.record("x")).key) / "runtime.log"
        log.rename(log.with_suffix(".before"))
        log.mkdir()
        with pytest.raises(SandboxUnavailable, match="cannot be started: Is a directory"):
            await sandbox.start()
        log.rmdir()
        await sandbox.start()
        assert await sandbox.files.read("file") == b"kept\n"
        await sandbox.destroy()


FILL_BYTES = "dd if=/dev/zero of=big bs=4096; dd if=/dev/zero of=last bs=1"
FILL_INODES = "mkdir many; i=0; while : > many/$i; do i=$((i+1)); done; while : > last-$i; do i=$((i+1)); done"


@pytest.mark.parametrize("fill", [FILL_BYTES, FILL_INODES], ids=["bytes", "inodes"])
@pytest.mark.parametrize("state", ["plain", "snapshot", "transaction"])
async def test_a_sandbox_whose_disk_is_full_starts_again_after_its_runtime_was_killed(
    state: str, fill: str, other_home: Path
) -> None:
    if reason := await asyncio.to_thread(try_disk, other_home):
        pytest.skip(f"needs file systems in images: {reason}")
    with serving(other_home) as server:
        sandbox = await server.create("x", limits=Limits(disk=8 << 20))
        await sandbox.exec("echo kept > file")
        if state == "snapshot":
            await sandbox.snapshot()
        elif state == "transaction":
            await sandbox.begin_transaction(lease=300)
        filled = await sandbox.exec(fill)
        assert "No space left on device" in filled.stderr
        os.kill(await server.runtime("x"), signal.SIGKILL)
        await sandbox.restart()
        assert (await sandbox.exec("rm -rf big last* many; cat file")).stdout == "kept\n"
        await sandbox.destroy()


async def test_a_sandbox_that_runs_can_be_restarted(other_home: Path) -> None:
    with serving(other_home) as server:
        sandbox = await server.create("x")
        await sandbox.exec("echo kept > file")
        await sandbox.start_process("sleep 1000", id="p")
        await sandbox.restart()
        assert (await sandbox.exec("cat file")).stdout == "kept\n"
        assert await sandbox.list_processes() == []
        await sandbox.destroy()
        for gone in (sandbox.restart, sandbox.info):
            with pytest.raises(SandboxDestroyed):
                await gone()


async def test_warm_sandboxes_are_taken_once_and_replaced(other_home: Path) -> None:
    pool = None
    with serving(other_home, "--warm", "3") as server:
        pool = WarmPool(server.directory)
        await eventually(lambda: pool.count(DEFAULT) == 3)
        warm = set(places(other_home))
        spec = SandboxSpec(labels={"a": "b"}, env={"A": "1"}, workdir="/tmp")
        first = await server.starter.create("first", spec)
        assert first.key in warm
        sandbox = await server.connect("first")
        assert (await sandbox.exec("echo $A; pwd; ls -A /workspace")).stdout == "1\n/tmp\n"
        assert (await sandbox.info()).spec == CONFIGURATION.admit(spec)
        await sandbox.destroy()
        limited = await server.starter.create("limited", SandboxSpec(limits=Limits(pids=100)))
        assert limited.key not in warm
        await eventually(lambda: pool.count(DEFAULT) == 3)
        others = await asyncio.gather(*(server.starter.create(None, DEFAULT) for _ in range(8)))
        assert len({record.key for record in others}) == 8
        for record in (limited, *others):
            await server.starter.destroy(record.id)
        await eventually(lambda: pool.count(DEFAULT) == 3)
    await eventually(lambda: left_behind(other_home) == [])


@needs_python
async def test_a_warm_sandbox_has_its_python_started(other_home: Path) -> None:
    with serving(other_home, "--warm", "1") as server:
        pool = WarmPool(server.directory)
        await eventually(lambda: pool.count(DEFAULT) == 1)
        sandbox = await server.create("x", env={"A": "1"})
        started = await sandbox.exec("until pgrep -f [e]xecutor/server.py; do sleep 0.1; done", timeout=20)
        assert started.ok
        assert (await sandbox.run_code("import os; os.environ['A']")).text == "'1'"
        await sandbox.destroy()
        await eventually(lambda: pool.count(DEFAULT) == 1)
    await eventually(lambda: left_behind(other_home) == [])


async def test_a_warm_sandbox_that_has_died_is_not_given_out(other_home: Path) -> None:
    with serving(other_home, "--warm", "1") as server:
        pool = WarmPool(server.directory)
        await eventually(lambda: pool.count(DEFAULT) == 1)
        (key,) = places(other_home)
        holder = await asyncio.to_thread(server.directory.holder, key)
        assert holder is not None
        os.kill(holder[0], signal.SIGKILL)
        assert wait_until_gone([holder[0]]) == []
        sandbox = await server.create("x")
        assert (await sandbox.exec("echo fine")).stdout == "fine\n"
        assert (await server.record("x")).key != key
        await sandbox.destroy()
    with serving(other_home):
        await eventually(lambda: left_behind(other_home) == [])


async def test_a_server_has_at_most_as_many_sandboxes_as_it_may(other_home: Path) -> None:
    (other_home / "server.toml").write_text("max_sandboxes = 2\n[maximum_limits]\npids = 50\n")
    with serving(other_home, "--config", str(other_home / "server.toml")) as server:
        one, two = await server.create("one"), await server.create("two")
        assert (await one.info()).spec.limits.pids == 50
        with pytest.raises(LimitExceeded):
            await server.create("three")
        with pytest.raises(PermissionDenied, match=r"limits\.pids"):
            await server.create("three", limits=Limits(pids=51))
        await one.destroy()
        three = await server.create("three")
        for sandbox in (two, three):
            await sandbox.destroy()
        assert left_behind(other_home) == []
