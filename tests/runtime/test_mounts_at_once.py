"""A mount that is added while the layers below it are replaced is seen inside, or not at all."""

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
from support.cancellation import cancel_after
from support.servers import eventually

from cove import AsyncSandbox, AsyncVolume, VolumeMount
from cove.attach import Action
from cove.errors import CoveError, SandboxUnavailable
from cove.runtime.jail import Jail
from cove.runtime.sandbox import Sandbox

pytestmark = pytest.mark.anyio

MOUNT = VolumeMount(volume="shared", target="/workspace/data")
SEEN = "cat /workspace/data/mark 2>/dev/null; grep -c ' /workspace/data ' /proc/self/mountinfo"


@pytest.fixture
async def volume(cove_home: Path) -> AsyncIterator[AsyncVolume]:
    made = await AsyncVolume.create("shared")
    async with AsyncSandbox.create(mounts=[VolumeMount(volume="shared", target="/v", read_only=False)]) as sandbox:
        await sandbox.exec("echo seen > /v/mark")
    yield made
    await made.delete()


async def snapshot(sandbox: AsyncSandbox) -> None:
    await (await sandbox.snapshot()).delete()


async def restore(sandbox: AsyncSandbox) -> None:
    kept = await sandbox.snapshot()
    await sandbox.restore(kept)
    await kept.delete()


async def roll_back(sandbox: AsyncSandbox) -> None:
    await sandbox.rollback_transaction(await sandbox.begin_transaction())


async def check(sandbox: AsyncSandbox, *, is_there: bool) -> None:
    """What is listed and what is seen are one, also after the next change."""
    for _ in range(2):
        assert await sandbox.mounts.list() == ([MOUNT] if is_there else [])
        assert (await sandbox.exec(SEEN)).stdout == ("seen\n1\n" if is_there else "0\n")
        await snapshot(sandbox)


@pytest.mark.parametrize("change", [snapshot, restore, roll_back])
async def test_a_mount_and_new_layers_at_once_hide_nothing(
    change: Callable[[AsyncSandbox], Awaitable[None]], volume: AsyncVolume
) -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("echo 1 > f")
        for _ in range(2):
            await asyncio.gather(sandbox.mounts.add(MOUNT), change(sandbox))
            await check(sandbox, is_there=True)
            await asyncio.gather(sandbox.mounts.remove(MOUNT.target), change(sandbox))
            await check(sandbox, is_there=False)


async def test_a_mount_that_is_cancelled_beside_new_layers_is_there_or_not(volume: AsyncVolume) -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("echo 1 > f")
        for number in itertools.count():
            changing = asyncio.ensure_future(snapshot(sandbox))
            was_running = await cancel_after(2**number, sandbox.mounts.add(MOUNT), times=2)
            await changing
            is_there = bool(await sandbox.mounts.list())
            await check(sandbox, is_there=is_there)
            if not was_running:
                assert is_there
                return
            if is_there:
                await sandbox.mounts.remove(MOUNT.target)


async def test_a_mount_waits_for_its_turn_and_ends_with_its_sandbox(volume: AsyncVolume, cove_home: Path) -> None:
    sandbox = await AsyncSandbox.create()
    assert isinstance(sandbox, Sandbox)
    users = cove_home / "volumes" / "shared" / "users"
    async with sandbox.life.turn:
        adding = asyncio.ensure_future(sandbox.mounts.add(MOUNT))
        await eventually(lambda: any(users.iterdir()))
        assert (await sandbox.exec(SEEN)).stdout == "0\n"
        assert not adding.done()
        ending = asyncio.ensure_future(sandbox.destroy())
        await eventually(lambda: sandbox.life.is_closed)
    await ending
    with pytest.raises(CoveError):
        await adding
    assert list(users.iterdir()) == []


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_mount_whose_helper_dies_is_there_and_listed_or_neither(
    is_done: bool, volume: AsyncVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach = Jail.attach

    async def dies(jail: Jail, actions: Sequence[Action]) -> list[socket.socket]:
        if is_done:
            await attach(jail, actions)
        raise SandboxUnavailable("the helper that attaches to the sandbox has ended: try again")

    async with AsyncSandbox.create() as sandbox:
        changes: list[Callable[[], Awaitable[object]]] = [
            partial(sandbox.mounts.add, MOUNT),
            partial(sandbox.mounts.remove, MOUNT.target),
        ]
        for change in changes:
            was_there = bool(await sandbox.mounts.list())
            with monkeypatch.context() as patch, nullcontext() if is_done else pytest.raises(SandboxUnavailable):
                patch.setattr(Jail, "attach", dies)
                await change()
            await check(sandbox, is_there=was_there is not is_done)
            if not is_done:
                await change()
                await check(sandbox, is_there=not was_there)
