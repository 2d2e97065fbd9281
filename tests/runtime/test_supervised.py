"""One process between its launcher and init, both played by the test: what may come at the same time does."""

import asyncio
import os
import socket

import pytest
from support.fake_agent import Peer
from support.stage import Stage, turns

from cove.linux.packets import socket_pair
from cove.model import Outcome
from cove.runtime import launcher
from cove.runtime.launcher import LauncherPool
from cove.runtime.link import Link
from cove.tasks import Tasks

pytestmark = pytest.mark.anyio


async def test_a_launcher_that_is_being_killed_is_not_handed_to_the_next_command() -> None:
    async with Stage() as stage:
        stage.process.end(Outcome.KILLED, 0)
        tag = await stage.end_request()
        stage.peer.send(b"exit", b"0", b"0", b"0", b"0", b"1")
        await turns()
        assert stage.pool.acquire_nowait() is None
        assert not stage.process.ended.done()
        stage.agent.send(b"ok", tag)
        end = await asyncio.wait_for(stage.process.ended, 30)
        assert (end.outcome, end.exit_code) == (Outcome.EXITED, 0)
        assert stage.launcher.closed
        assert stage.lost == []


async def test_a_tree_that_becomes_empty_while_it_is_killed_is_let_go_once() -> None:
    async with Stage() as stage:
        stage.peer.send(b"exit", b"9", b"0", b"0", b"0", b"0")
        await turns()
        assert (await stage.process.ended).outcome is Outcome.SIGNALED
        stage.peer.send(b"empty")
        await turns()
        assert stage.pool.acquire_nowait() is stage.launcher
        assert stage.lost == []


async def test_what_the_command_wrote_before_its_exit_is_in_the_output() -> None:
    async with Stage() as stage:
        os.write(stage.descriptors[0], b"last words")
        stage.peer.send(b"exit", b"0", b"0", b"0", b"0", b"0")
        await turns()
        assert (await stage.process.ended).exit_code == 0
        os.write(stage.descriptors[0], b"later")
        await turns()
        assert b"".join(stage.output) == b"last words"


async def test_a_launcher_that_vanishes_takes_its_command_with_it() -> None:
    async with Stage() as stage:
        stage.sockets.pop().close()
        tag = await stage.end_request()
        stage.agent.send(b"ok", tag)
        end = await asyncio.wait_for(stage.process.ended, 30)
        assert (end.outcome, end.exit_code, end.signal) == (Outcome.SIGNALED, 137, 9)
        assert stage.lost == []


async def test_what_a_launcher_said_before_it_vanished_counts_also_when_it_left_something_unread() -> None:
    async with Stage() as stage:
        stage.process.signal(1)
        stage.peer.send(b"exit", b"1792", b"0", b"0", b"0", b"0")
        stage.sockets.pop().close()
        end = await asyncio.wait_for(stage.process.ended, 30)
        assert (end.outcome, end.exit_code, stage.process.never_started) == (Outcome.EXITED, 7, False)
        assert stage.lost == []


async def test_a_launcher_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "ANSWER_SECONDS", 0.1)
    async with Stage() as stage:
        assert await asyncio.wait_for(stage.launcher.signal(0), 30) == 0
        stage.agent.send(b"ok", await stage.end_request())
        assert (await asyncio.wait_for(stage.process.ended, 30)).outcome is Outcome.SIGNALED
        assert stage.lost == []


async def test_a_call_cancelled_while_its_launcher_starts_does_not_lose_the_sandbox() -> None:
    control, agent = socket_pair()
    agent.settimeout(30)
    lost: list[str] = []
    link = Link(control, lost.append)
    background = Tasks(lambda error: lost.append(repr(error)))
    pool = LauncherPool(link, None, background, lost.append)
    acquiring = asyncio.ensure_future(pool.acquire())
    await turns()
    peer = Peer(agent)
    fields, (descriptor,) = peer.receive()
    with socket.socket(fileno=descriptor) as theirs:
        peer.send(b"ok", fields[1], b"7")
        await turns()
        # Cancelled in the very turn of the loop in which the launcher's word is read, before it is read.
        theirs.send(b"ready")
        asyncio.get_running_loop().call_soon(acquiring.cancel)
        await asyncio.wait([acquiring])
        await turns()
        assert acquiring.cancelled()
        assert lost == []
    await background.aclose()
    pool.close()
    link.close()
    agent.close()
