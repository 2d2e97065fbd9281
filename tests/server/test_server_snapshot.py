"""Sandboxes of a server on layers: stopped, killed and started again."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from support.programs import wait_until_gone
from support.servers import eventually, left_behind, serving

from cove import AsyncSandbox, AsyncSnapshot, Limits
from cove.errors import LimitExceeded

pytestmark = pytest.mark.anyio


async def test_a_sandbox_comes_back_on_its_layers_when_its_runtime_was_killed(other_home: Path) -> None:
    with serving(other_home) as server:
        sandbox = await server.create("x")
        await sandbox.exec("echo 1 > f; echo gone > g")
        snapshot = await sandbox.snapshot()
        await sandbox.exec("echo 2 > f; rm g; mkdir d")
        await sandbox.restart()
        assert (await sandbox.exec("cat f; ls")).stdout == "2\nd\nf\n"
        runtime = await server.runtime("x")
        os.kill(runtime, signal.SIGKILL)
        await asyncio.to_thread(wait_until_gone, [runtime])
        await sandbox.restart()
        assert (await sandbox.exec("cat f; ls; echo 3 > f")).stdout == "2\nd\nf\n"
        await sandbox.begin_transaction()
        await sandbox.exec("echo 4 > f; rm -r d")
        runtime = await server.runtime("x")
        os.kill(runtime, signal.SIGKILL)
        await asyncio.to_thread(wait_until_gone, [runtime])
        await sandbox.restart()
        assert (await sandbox.exec("cat f; ls")).stdout == "3\nd\nf\n"
        await sandbox.destroy()
        copy = await server.create("y", snapshot=snapshot.id)
        assert (await copy.exec("cat f g")).stdout == "1\ngone\n"
        await copy.destroy()
        await (await AsyncSnapshot.get(snapshot.id, url=server.url, api_key=server.key)).delete()
        await eventually(lambda: left_behind(other_home) == [])
        assert os.listdir(other_home / "layers") == []


async def test_more_copies_than_may_be_made_are_not_begun(other_home: Path) -> None:
    configuration = other_home.parent / f"{other_home.name}.toml"
    configuration.write_text("max_sandboxes = 3\n")
    with serving(other_home, "--config", str(configuration)) as server:
        sandbox = await server.create("x")
        with pytest.raises(LimitExceeded):
            await sandbox.fork(count=3)
        copies = await sandbox.fork(count=2)
        for each in (*copies, sandbox):
            await each.destroy()
        assert await AsyncSnapshot.list(url=server.url, api_key=server.key) == []
    configuration.unlink()


async def test_what_a_list_says_of_a_sandbox_is_what_it_says_itself(other_home: Path) -> None:
    """As root, one with a disk of its own has copies for snapshots."""
    with serving(other_home) as server:
        sandbox = await server.create("x", limits=Limits(disk=32 << 20))
        info = await sandbox.info()
        assert await AsyncSandbox.list(url=server.url, api_key=server.key) == [info]
        await sandbox.stop()
        assert (await sandbox.info()).snapshots == info.snapshots
        await sandbox.destroy()
