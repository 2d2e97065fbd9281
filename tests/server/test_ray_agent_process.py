"""The socket of the agent: what workers ask on an engine in memory, its bounds, and how it ends."""

import asyncio
import os
import signal
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.fake_engine import FakeCluster, FakeEngine

from cove.errors import NoCapacity, PlacementUnavailable, ValidationFailed
from cove.local.threads import in_thread
from cove.model.cluster import Claim, Member, Members
from cove.server.cluster.agent_protocol import LEFT, MOST_BYTES, AgentSettings, Drain, Leave, Report, agent_socket
from cove.server.cluster.engine_placement import EnginePlacement, call_agent
from cove.server.ray_agent.agent import Agent
from cove.server.ray_agent.agent_process import AgentProcess
from cove.server.sandboxes.directory import Directory
from cove.tasks import Tasks

pytestmark = [pytest.mark.anyio, pytest.mark.pure]

MEMBERS = Members(node="a", members=(Member(name="a", address="http://10.0.0.1:8787", code="aaaa"),))


class Served:
    def __init__(self, cluster: FakeCluster, server: Path, task: "asyncio.Task[int]") -> None:
        self.cluster, self.server, self.task = cluster, server, task
        self.placement = EnginePlacement(server, lambda: MEMBERS, grant_timeout=20)

    def take_all(self) -> None:
        """Let others of the engine's work have all room."""
        FakeEngine(self.cluster, "a-1").make_block("of-others", 64, None)

    def free_all(self) -> None:
        """Let them give it back."""
        FakeEngine(self.cluster, "a-1").remove_block("of-others")


@asynccontextmanager
async def served(home: Path) -> AsyncIterator[Served]:
    cluster = FakeCluster()
    cluster.start_node("a-1", "a")
    directory = Directory(home)
    await in_thread(directory.open)
    await in_thread((home / "sandboxes").mkdir)
    settings = AgentSettings(home=str(home), node="a", port=8787, refresh_seconds=0.02)
    agent = await in_thread(Agent, settings, FakeEngine(cluster, "a-1"))
    service = AgentProcess(agent, agent_socket(directory.server), 16)
    async with Tasks() as tasks:
        task = tasks.start(service.run())
        await until(agent_socket(directory.server).exists, task)
        yield Served(cluster, directory.server, task)


async def until(is_so: Callable[[], bool], task: "asyncio.Task[int]") -> None:
    async with asyncio.timeout(20):
        while not await in_thread(is_so) and not task.done():
            await asyncio.sleep(0.01)


@pytest.fixture
def tmp_path(other_home: Path) -> Path:
    """A directory whose path is short enough for sockets."""
    path = other_home / "x"
    path.mkdir()
    return path


async def test_room_and_names_are_had_over_the_socket(tmp_path: Path) -> None:
    async with served(tmp_path) as agent:
        assert agent.placement.members() == MEMBERS
        assert await agent.placement.grant(1) == "a"
        claim = await agent.placement.claim("x", "a")
        assert await agent.placement.claim("x", "b") == claim
        assert await agent.placement.find("x") == claim
        await agent.placement.unclaim(claim)
        assert await agent.placement.find("x") is None
        await agent.placement.release("a", 16)
        assert not agent.cluster.blocks


async def test_those_who_ask_at_once_share_a_block(tmp_path: Path) -> None:
    async with served(tmp_path) as agent, Tasks() as tasks:
        agent.take_all()
        asked = [tasks.start(agent.placement.grant(1)) for _ in range(17)]
        await until(lambda: len(agent.cluster.blocks) == 3, agent.task)
        agent.free_all()
        assert [await task for task in asked] == ["a"] * 17
        assert len(agent.cluster.blocks) == 2


async def test_no_room_is_no_capacity(tmp_path: Path) -> None:
    async with served(tmp_path) as agent:
        agent.take_all()
        with pytest.raises(NoCapacity):
            await replace(agent.placement, grant_timeout=0.05).grant(1)


async def test_only_this_user_can_open_the_socket(tmp_path: Path) -> None:
    async with served(tmp_path) as agent:
        assert stat.S_IMODE(agent_socket(agent.server).stat().st_mode) == 0o600


@pytest.mark.parametrize("line", [b"{}\n", b"no JSON\n", b'{"type":"claim"}\n', b'{"type":"other"}\n'])
async def test_a_call_that_is_none_is_refused_and_the_agent_lives(tmp_path: Path, line: bytes) -> None:
    async with served(tmp_path) as agent:
        reader, writer = await asyncio.open_unix_connection(agent_socket(agent.server))
        writer.write(line)
        assert b"VALIDATION_FAILED" in await reader.readline()
        writer.close()
        assert await agent.placement.find("x") is None


async def test_a_line_that_never_ends_is_not_read_on(tmp_path: Path) -> None:
    async with served(tmp_path) as agent:
        reader, writer = await asyncio.open_unix_connection(agent_socket(agent.server))
        writer.write(b"x" * (MOST_BYTES + 2))
        assert await reader.read() == b""
        writer.close()
        assert await agent.placement.find("x") is None


async def test_what_is_said_wrong_of_a_node_is_told(tmp_path: Path) -> None:
    async with served(tmp_path) as agent:
        with pytest.raises(ValidationFailed, match="the nodes are a"):
            await call_agent(agent.server, Drain(node="z"))
        report = (await call_agent(agent.server, Report())).report
        assert report is not None
        assert [each.member.name for each in report.nodes] == ["a"]


async def test_without_an_agent_placement_is_unavailable_at_once(tmp_path: Path) -> None:
    placement = EnginePlacement(tmp_path, lambda: MEMBERS)
    with pytest.raises(PlacementUnavailable, match="does not answer"):
        await placement.claim("x", "a")


async def test_a_head_that_does_not_answer_is_placement_unavailable_and_three_times_the_end(tmp_path: Path) -> None:
    async with served(tmp_path) as agent:
        agent.cluster.is_down = True
        with pytest.raises(PlacementUnavailable):
            await agent.placement.unclaim(Claim(name="x", node="a", epoch=1))
        assert await agent.task == 1
        assert not agent_socket(agent.server).exists()


async def test_a_machine_that_is_not_alive_any_more_ends_the_agent(tmp_path: Path) -> None:
    async with served(tmp_path) as agent:
        agent.cluster.end_node("a-1")
        assert await agent.task == 1


async def test_leaving_ends_the_agent_for_good(tmp_path: Path) -> None:
    async with served(tmp_path) as agent:
        await call_agent(agent.server, Leave())
        assert await agent.task == LEFT
        assert agent.cluster.store.keys() == {"life"}


async def test_told_to_stop_it_ends_and_leaves_no_socket(tmp_path: Path) -> None:
    async with served(tmp_path) as agent:
        os.kill(os.getpid(), signal.SIGTERM)
        assert await agent.task == 0
        assert not agent_socket(agent.server).exists()
