"""A runtime that is killed anywhere in a change of life or state: the next one goes on with a whole sandbox."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Container
from contextlib import suppress
from pathlib import Path

import pytest
from support.crash import Death, crashing_runtimes
from support.programs import mounts_below, wait_until_gone
from support.servers import DEFAULT, Server, eventually, left_behind, serving

from cove import AsyncSandbox, AsyncSnapshot, AsyncVolume, VolumeMount
from cove.errors import CoveError, SandboxNotFound, SandboxPaused, SandboxUnavailable, VolumeNotFound
from cove.linux.file_lock import waiting_lock
from cove.model import SandboxStatus
from cove.server.sandboxes.warm_pool import WarmPool

pytestmark = pytest.mark.anyio

Change = Callable[[AsyncSandbox, Server], Awaitable[object]]


async def nothing(sandbox: AsyncSandbox, server: Server) -> None:
    """Prepare nothing."""


async def restore(sandbox: AsyncSandbox, server: Server) -> None:
    (first,) = [each for each in await AsyncSnapshot.list(url=server.url, api_key=server.key) if each.name == "1"]
    await sandbox.restore(first.id)


async def transaction(sandbox: AsyncSandbox, server: Server) -> None:
    async with sandbox.transaction() as change:
        await sandbox.exec("echo 3 > f")
        await change.commit()


async def add_a_mount(sandbox: AsyncSandbox, server: Server) -> None:
    await sandbox.mounts.add(VolumeMount(volume="v", target="/data", read_only=False))


async def fork(sandbox: AsyncSandbox, server: Server) -> None:
    copies = await sandbox.fork(2)
    try:
        for copy in copies:
            assert (await copy.exec("cat f")).stdout == "2\n"
    finally:
        for copy in copies:
            await copy.destroy()


# What is done before, the change, and what the file may hold after it.
CHANGES: dict[str, tuple[Change, Change, set[str]]] = {
    "snapshot": (nothing, lambda sandbox, _: sandbox.snapshot(name="2"), {"2"}),
    "restore": (nothing, restore, {"1", "2"}),
    "transaction": (nothing, transaction, {"2", "3"}),
    "stop": (nothing, lambda sandbox, _: sandbox.stop(), {"2"}),
    "pause": (nothing, lambda sandbox, _: sandbox.pause(), {"2"}),
    "resume": (lambda sandbox, _: sandbox.pause(), lambda sandbox, _: sandbox.resume(), {"2"}),
    "start": (lambda sandbox, _: sandbox.stop(), lambda sandbox, _: sandbox.start(), {"2"}),
    "add a mount": (nothing, add_a_mount, {"2"}),
    "remove a mount": (add_a_mount, lambda sandbox, _: sandbox.mounts.remove("/data"), {"2"}),
    "fork": (nothing, fork, {"2"}),
    "fork into a copy": (nothing, fork, {"2"}),
}


async def destroy_handed_over(server: Server, allowed: Container[str]) -> None:
    """Copies that were handed over before the one who forked died, and could tell nobody, are whole and listed."""
    for info in await AsyncSandbox.list(url=server.url, api_key=server.key):
        copy = await server.connect(info.id)
        assert (await copy.exec("cat f")).stdout.strip() in allowed
        await copy.destroy()


async def kill_at(change: str, step: int, server: Server, trigger: Path) -> bool:
    """Kill its runtime at that step; False when there are fewer."""
    prepare, call, allowed = CHANGES[change]
    sandbox = await server.create("x")
    await sandbox.exec("echo 1 > f")
    await sandbox.snapshot(name="1")
    await sandbox.exec("echo 2 > f")
    volume = await AsyncVolume.create("v", url=server.url, api_key=server.key)
    is_mounted = VolumeMount(volume="v", target="/data", read_only=False)
    await prepare(sandbox, server)
    runtime = await server.runtime("x") if change.startswith("fork") else 0
    Death(step, "cove-runtime" if runtime else "", runtime if change == "fork" else -runtime).write(trigger)
    with suppress(CoveError):
        async with asyncio.timeout(60):
            await call(sandbox, server)
    is_killed = not trigger.exists()
    trigger.unlink(missing_ok=True)
    assert await server.status("x") in SandboxStatus  # its record is whole
    await sandbox.start()
    assert (await sandbox.exec("cat f")).stdout.strip() in allowed
    session = await sandbox.create_session()
    assert (await session.exec("echo up")).stdout == "up\n"
    if is_mounted not in await sandbox.mounts.list():
        await volume.delete()  # nobody uses it
    await sandbox.destroy()
    with suppress(VolumeNotFound):
        await volume.delete()
    for each in await AsyncSnapshot.list(url=server.url, api_key=server.key):
        assert each.name is not None, "left by a fork"
        copy = await server.create(snapshot=each.id)
        assert (await copy.exec("cat f")).stdout.strip() == each.name
        await copy.destroy()
        await (await AsyncSnapshot.get(each.id, url=server.url, api_key=server.key)).delete()
    if change == "fork":
        await destroy_handed_over(server, allowed)
    await eventually(lambda: left_behind(server.home) == [])
    assert os.listdir(server.home / "volumes") == []
    await eventually(lambda: os.listdir(server.home / "layers") == [], 90)  # in use just then, it waits for a sweep
    await eventually(lambda: os.listdir(server.home / "snapshots") == [])
    assert mounts_below(server.home) == []
    return is_killed


QUICK = {
    "snapshot": 12,
    "restore": 8,
    "stop": 2,
    "start": 9,
    "add a mount": 3,
    "remove a mount": 3,
    "fork": 14,
    "fork into a copy": 12,
}


async def test_a_change_whose_runtime_is_killed_in_the_middle_is_recovered(other_home: Path, tmp_path: Path) -> None:
    with crashing_runtimes(tmp_path / "arms") as trigger, serving(other_home) as server:
        for change, step in QUICK.items():
            assert await kill_at(change, step, server, trigger), f"{change} has no step {step}"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_whose_runtime_is_killed_anywhere_is_recovered(
    change: str, other_home: Path, tmp_path: Path
) -> None:
    with crashing_runtimes(tmp_path / "arms") as trigger, serving(other_home) as server:
        step = 1
        while await kill_at(change, step, server, trigger):
            step += 1 + step // 6


async def kill_a_creation_at(death: Death, server: Server, trigger: Path) -> bool:
    """Kill the runtime of a sandbox that is created by its id; False when there are fewer steps."""
    death.write(trigger)
    created = None
    with suppress(SandboxUnavailable):
        async with asyncio.timeout(60):
            created = await server.create("x")
    is_killed = not trigger.exists()
    trigger.unlink(missing_ok=True)
    if created is None:
        assert is_killed
        assert await AsyncSandbox.list(url=server.url, api_key=server.key) == []
        with pytest.raises(SandboxNotFound):
            await server.connect("x")
        created = await server.create("x")
    assert (await created.exec("echo up")).stdout == "up\n"
    await created.destroy()
    await eventually(lambda: left_behind(server.home) == [])
    return is_killed


BEFORE_ITS_ANSWER = Death(1, "cove-runtime", kind="write")


async def test_an_id_whose_creation_was_killed_is_free_at_once(other_home: Path, tmp_path: Path) -> None:
    with crashing_runtimes(tmp_path / "arms") as trigger, serving(other_home) as server:
        assert await kill_a_creation_at(BEFORE_ITS_ANSWER, server, trigger)


async def test_a_warm_sandbox_that_is_killed_before_its_answer_is_replaced(other_home: Path, tmp_path: Path) -> None:
    with crashing_runtimes(tmp_path / "arms") as trigger, serving(other_home, "--warm", "1") as server:
        await eventually(lambda: WarmPool(server.directory).count(DEFAULT) == 1)
        BEFORE_ITS_ANSWER.write(trigger)
        sandbox = await server.create("x")
        assert not trigger.exists()
        assert (await sandbox.exec("echo up")).stdout == "up\n"
        await sandbox.destroy()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_creation_that_is_killed_anywhere_leaves_its_id_free(other_home: Path, tmp_path: Path) -> None:
    with crashing_runtimes(tmp_path / "arms") as trigger, serving(other_home) as server:
        step = 1
        while await kill_a_creation_at(Death(step, "cove-runtime"), server, trigger):
            step += 1
        assert step > 6


async def test_a_fork_whose_gateway_is_killed_leaves_nothing(other_home: Path) -> None:
    with serving(other_home) as server:
        sandbox = await server.create("x")
        await sandbox.exec("echo 1 > f")
        with waiting_lock(other_home / "places.lock"):  # no copy gets a directory meanwhile
            forking = asyncio.create_task(sandbox.fork(2))
            await eventually(lambda: len(os.listdir(other_home / "ids")) == 3)
            assert [path.suffix for path in (other_home / "snapshots").iterdir()] == [".json"]
            for pid, role in server.children().items():
                if role == "worker":
                    os.kill(pid, signal.SIGKILL)
            with pytest.raises(CoveError):
                await forking
        await eventually(lambda: os.listdir(other_home / "snapshots") == [])
        record = await server.record("x")
        await eventually(lambda: os.listdir(other_home / "sandboxes") == [record.key])
        await eventually(lambda: len(os.listdir(other_home / "ids")) == 1)
        (copy,) = await sandbox.fork()
        assert (await copy.exec("cat f")).stdout == "1\n"
        await copy.destroy()
        await sandbox.destroy()
        await eventually(lambda: os.listdir(other_home / "layers") == [])


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
async def test_a_pause_survives_a_restart_of_the_server(is_killed: bool, other_home: Path) -> None:
    with serving(other_home, "--on-stop", "leave") as server:
        sandbox = await server.create("x")
        process = await sandbox.start_process("while read x; do echo $x; done", stdin=True)
        await sandbox.pause(wake=False)
        runtime = await server.runtime("x")
        if is_killed:
            server.kill_all()
    with serving(other_home, "--on-stop", "destroy") as server:
        sandbox = await server.connect("x")
        assert (await sandbox.info()).status is SandboxStatus.PAUSED
        assert await server.runtime("x") == runtime
        with pytest.raises(SandboxPaused):
            await sandbox.exec("true")
        await sandbox.resume()
        process = await sandbox.get_process(process.id)
        await process.write_stdin(b"still here\n")
        await process.wait_for_log("still here")
        await sandbox.destroy()
        assert await asyncio.to_thread(wait_until_gone, [runtime]) == []
