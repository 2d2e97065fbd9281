"""A caller that goes away takes its command with it, wherever the call was suspended."""

import asyncio

import pytest
from support.cancellation import cancel_after
from support.inside import commands_inside

from cove import AsyncSandbox

pytestmark = pytest.mark.anyio


async def test_a_call_cancelled_at_any_turn_leaves_nothing_running() -> None:
    async with AsyncSandbox.create() as sandbox:
        for turns in range(60):
            command = "echo x; setsid sleep 1000 & trap '' TERM; sleep 2000"
            assert await cancel_after(turns, sandbox.exec(command, stdin=b"x" * 100_000))
            if turns % 10 == 0:
                assert await commands_inside(sandbox) == []
        assert await commands_inside(sandbox) == []
        assert (await sandbox.exec("echo alive")).stdout == "alive\n"


async def test_a_cancelled_call_has_ended_its_tree_when_it_returns() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("mkfifo /tmp/f")
        call = asyncio.ensure_future(sandbox.exec("setsid sleep 1000 & echo > /tmp/f; sleep 2000"))
        await sandbox.exec("read < /tmp/f")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await commands_inside(sandbox) == []


async def test_a_call_cancelled_twice_ends_its_tree_all_the_same() -> None:
    async with AsyncSandbox.create() as sandbox:
        for turns in (0, 1, 3, 10, 40):
            await cancel_after(turns, sandbox.exec("trap '' TERM; sleep 1000"), times=2)
        await sandbox.exec("while pgrep -x sleep > /tmp/still; do :; done", timeout=30)
        assert await commands_inside(sandbox) == []


async def test_calls_cancelled_before_a_launcher_is_ready_run_nothing() -> None:
    async with AsyncSandbox.create() as sandbox:
        for turns in range(0, 40, 4):
            calls = [cancel_after(turns, sandbox.exec("sleep 1000")) for _ in range(12)]
            await asyncio.gather(*calls)
        assert await commands_inside(sandbox) == []
        results = await asyncio.gather(*(sandbox.exec("echo ok") for _ in range(12)))
        assert all(result.stdout == "ok\n" for result in results)


async def test_a_timeout_around_the_call_is_a_cancel() -> None:
    async with AsyncSandbox.create() as sandbox:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await sandbox.exec("sleep 1000")
        assert await commands_inside(sandbox) == []


async def test_a_call_cancelled_while_its_timeout_is_ending_it_leaves_nothing() -> None:
    async with AsyncSandbox.create() as sandbox:
        heedless = "trap 'echo > /tmp/term' TERM; while :; do sleep 0.01; done"
        call = asyncio.ensure_future(sandbox.exec(heedless, timeout=0.05))
        await sandbox.exec("until [ -e /tmp/term ]; do :; done", timeout=30)
        call.cancel()
        await asyncio.wait([call])
        assert await commands_inside(sandbox) == []


async def test_a_creation_cancelled_at_any_turn_leaves_nothing() -> None:
    turns = 0
    while await cancel_after(turns, make_and_destroy()):
        assert await AsyncSandbox.list() == []
        turns = turns + 1 if turns < 20 else turns * 5 // 4
        if turns > 20_000:
            break
    assert turns > 10
    async with AsyncSandbox.create(id="again") as sandbox:
        assert (await sandbox.exec("echo ok")).stdout == "ok\n"


async def make_and_destroy() -> None:
    sandbox = await AsyncSandbox.create(id="again")
    await asyncio.shield(sandbox.destroy())


async def test_a_creation_cancelled_twice_leaves_nothing() -> None:
    for turns in (0, 1, 5, 20):
        await cancel_after(turns, AsyncSandbox.create(id="twice").__aenter__(), times=2)
        assert await AsyncSandbox.list() == []


async def test_a_cancelled_destroy_goes_on_to_its_end() -> None:
    sandbox = await AsyncSandbox.create()
    await cancel_after(1, sandbox.destroy())
    await sandbox.destroy()
