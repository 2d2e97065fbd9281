"""Nodes of a cluster that are full, killed, silent or restarted: what callers are told, and when."""

import asyncio
import errno
import itertools
import json
import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
from support.clusters import API_KEY, NAMES, Cluster, cluster_of
from support.raw_http import connect
from support.servers import Server

from cove import (
    AsyncSandbox,
    ConnectionLost,
    NoCapacity,
    NodeLost,
    NodeUnavailable,
    PlacementUnavailable,
    SandboxNotFound,
    SandboxUnavailable,
)
from cove.core.cluster import claim_keepers, claim_name, code_of
from cove.model.cluster import Member, Members
from cove.server.cluster.claims import Claims
from cove.server.cluster.nodes import Health, Nodes, NodeState, Report, judge
from cove.server.cluster.peer import PeerClient, PeerKey
from cove.server.sandboxes.members import write_members
from cove.tasks import owned

pytestmark = pytest.mark.anyio

IN_TIME = 15.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cluster_of(*NAMES, settings="max_sandboxes = 3") as found:
        yield found


async def on_node(cluster: Cluster, node: str) -> AsyncSandbox:
    """A sandbox on that node: its own id says so, whoever makes it."""
    while True:
        made = await cluster[node].create()
        if cluster.node_of(made.id) == node:
            return made
        await made.destroy()


def port_of(server: Server) -> int:
    port = urlsplit(server.url).port
    assert port is not None
    return port


async def test_a_full_cluster_says_so_and_when_to_try_again(cluster: Cluster) -> None:
    made = [await cluster["a"].create() for _ in range(9)]
    assert sorted(cluster.node_of(each.id) for each in made) == sorted(NAMES * 3)
    with pytest.raises(NoCapacity):
        await cluster["b"].create()
    async with connect(port_of(cluster["b"])) as client:
        reply = await client.ask("/v1/sandboxes", method="POST", body=b"{}", Authorization=f"Bearer {API_KEY}")
    assert (reply.status, json.loads(reply.body)["code"]) == (503, "NO_CAPACITY")
    assert int(reply.headers["retry-after"]) > 0
    await made.pop().destroy()
    made.append(await cluster["c"].create())
    for each in made:
        await each.destroy()


async def test_a_name_that_was_on_a_node_which_is_full_now_is_made_elsewhere(cluster: Cluster) -> None:
    wanderer = await cluster["a"].create("wanderer")
    node = (await wanderer.info()).node
    assert node is not None
    through = cluster.another(node)
    await (await through.connect("wanderer")).destroy()
    made = [await cluster["a"].create() for _ in range(9)]
    for each in [each for each in made if cluster.node_of(each.id) != node]:
        await each.destroy()
    again = await through.create("wanderer")
    assert (await again.info()).node != node
    for each in (again, *(each for each in made if cluster.node_of(each.id) == node)):
        await each.destroy()


def name_kept_by(node: str, cluster: Cluster) -> str:
    """A name that nobody has, whose claim that node would keep."""
    members = [Member(name=name, address=cluster[name].url, code=code_of(name)) for name in cluster.servers]
    names = (f"nobody-{number}" for number in itertools.count())
    return next(each for each in names if claim_keepers(claim_name("", each), members)[0].name == node)


async def eventually_written(sandbox: AsyncSandbox, path: str) -> None:
    while not await sandbox.files.exists(path):
        await asyncio.sleep(0.02)


async def eventually_answering(server: Server, id: str) -> None:
    """Other workers of a node read what one of them has found."""
    while True:
        try:
            assert (await (await server.connect(id)).exec("echo back")).stdout == "back\n"
            return
        except SandboxUnavailable:
            await asyncio.sleep(0.1)


async def test_a_node_that_is_killed_ends_its_calls_alone_and_is_found_again() -> None:
    with cluster_of("a", "b") as cluster:
        there, here = await on_node(cluster, "b"), await on_node(cluster, "a")
        sandbox = await cluster["a"].connect(there.id)
        running = owned(sandbox.exec("echo begun > /workspace/begun; sleep 60"))
        await eventually_written(sandbox, "/workspace/begun")
        await asyncio.to_thread(cluster["b"].kill_all)
        with pytest.raises(NodeLost) as lost:
            await running
        assert isinstance(lost.value, ConnectionLost)
        assert lost.value.node == "b"
        with pytest.raises(SandboxNotFound):
            await cluster["a"].connect(name_kept_by("a", cluster))
        with pytest.raises(PlacementUnavailable, match="node b"):
            await cluster["a"].connect(name_kept_by("b", cluster))
        assert (await here.exec("echo unmoved")).stdout == "unmoved\n"
        cluster.stop("b")
        await asyncio.to_thread(cluster.start, "b")
        await eventually_answering(cluster["a"], there.id)


async def test_what_a_node_has_that_is_away_with_the_claim_on_it_is_not_said_to_be_destroyed() -> None:
    with cluster_of("a", "b") as cluster:
        members = [Member(name=name, address=cluster[name].url, code=code_of(name)) for name in ("a", "b")]
        for number in count():
            id = f"chosen-{number}"
            if claim_keepers(claim_name("", id), members)[0].name != "b":
                continue
            made = await cluster["b"].create(id)
            if (await made.info()).node == "b":
                break
        await asyncio.to_thread(cluster["b"].kill_all)
        with pytest.raises(SandboxUnavailable):
            await cluster["a"].connect(id)
        cluster.stop("b")
        await asyncio.to_thread(cluster.start, "b")
        await eventually_answering(cluster["a"], id)


@pytest.mark.cluster
async def test_a_silent_node_ends_calls_in_time_and_is_found_again(caplog: pytest.LogCaptureFixture) -> None:
    with cluster_of("a", "b") as cluster:
        there, another = await on_node(cluster, "b"), cluster["a"]
        sandbox = await another.connect(there.id)
        running = owned(sandbox.exec("echo begun > /workspace/begun; sleep 60"))
        await eventually_written(sandbox, "/workspace/begun")
        pids = [cluster["b"].process.pid, *cluster["b"].children()]
        begun = time.monotonic()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(NodeLost):
                await running
            with pytest.raises(NodeUnavailable) as refused:
                await another.connect(sandbox.id)
            assert time.monotonic() - begun < IN_TIME
            assert isinstance(refused.value, SandboxUnavailable)
            assert refused.value.node == "b"
            assert sandbox.id not in [each.id for each in await AsyncSandbox.list(url=another.url, api_key=API_KEY)]
            assert "which do not answer: 'b'" in caplog.text
            async with connect(port_of(another)) as client:
                reply = await client.ask("/v1/sandboxes", body=None, Authorization=f"Bearer {API_KEY}")
            assert (reply.status, reply.headers["cove-unreachable"]) == (200, "b")
            made = await another.create()
            assert cluster.node_of(made.id) == "a"
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        await eventually_answering(another, sandbox.id)


@pytest.mark.cluster
async def test_a_node_that_stays_away_is_unavailable_in_time() -> None:
    with cluster_of("a", "b") as cluster:
        made = await on_node(cluster, "b")
        await asyncio.to_thread(cluster["b"].kill_all)
        cluster.stop("b")
        begun = time.monotonic()
        with pytest.raises(NodeUnavailable):
            await cluster["a"].connect(made.id)
        assert time.monotonic() - begun < IN_TIME
        await asyncio.to_thread(cluster.start, "b")


@pytest.mark.pure
def test_a_node_is_down_after_three_misses_and_up_at_once() -> None:
    up = judge(Health(), report=Report(name="b", free=5))
    once = judge(up, problem="silent")
    twice = judge(once, problem="silent")
    assert (once.state, twice.state) == (NodeState.UP, NodeState.UP)
    down = judge(twice, problem="silent")
    assert down.state is NodeState.DOWN
    assert judge(down, problem="refused", is_refused=True).state is NodeState.DOWN
    assert judge(down, report=Report(name="b")).state is NodeState.UP


@pytest.mark.pure
def test_a_node_whose_machine_refuses_is_restarting_for_ten_seconds() -> None:
    refused = judge(judge(Health(), report=Report(name="b")), problem="refused", is_refused=True)
    for _ in range(5):
        refused = judge(refused, problem="refused", is_refused=True)
        assert refused.state is NodeState.RESTARTING
    assert refused.since is not None
    long_ago = Health(state=NodeState.RESTARTING, since=datetime.now(UTC) - timedelta(seconds=11))
    assert judge(long_ago, problem="refused", is_refused=True).state is NodeState.DOWN


@pytest.mark.pure
async def test_a_disk_that_is_full_for_a_moment_does_not_end_the_watch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "server").mkdir()
    first = Member(name="a", address="http://127.0.0.1:1", code=code_of("a"))
    await asyncio.to_thread(write_members, tmp_path, Members(node="a", members=(first,)))
    nodes = Nodes(tmp_path, PeerClient(PeerKey("key")), lambda _: None)
    written = tmp_path / "server" / "nodes.json"
    async with nodes, asyncio.timeout(IN_TIME):
        while not written.exists():
            await asyncio.sleep(0.05)
        written.unlink()
        written.mkdir()  # which no file takes the place of
        while "could not be looked at" not in caplog.text:
            await asyncio.sleep(0.05)
        written.rmdir()
        while not written.exists():
            await asyncio.sleep(0.05)
        assert nodes.is_elected
    assert not nodes.is_elected


@pytest.mark.pure
async def test_what_a_node_reports_and_cannot_be_taken_spoils_no_probe(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "server").mkdir()
    answers = {name: msgspec.json.encode(Report(name=name)) for name in ("a", "b")}

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = answers["a"]
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    async def refuse(member: Member, report: Report) -> bool:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        member = Member(name="a", address=f"http://127.0.0.1:{port}", code=code_of("a"))
        await asyncio.to_thread(write_members, tmp_path, Members(node="a", members=(member,)))
        nodes = Nodes(tmp_path, PeerClient(PeerKey("key")), lambda _: None)
        nodes.on_report = refuse
        async with nodes, asyncio.timeout(IN_TIME):
            while nodes.health.get("a", Health()).report is None:
                await asyncio.sleep(0.05)
            assert nodes.health["a"].state is NodeState.UP
            assert nodes.health["a"].keys_at is None
    assert "No space left" in caplog.text


@pytest.mark.pure
def test_the_claim_of_an_earlier_sandbox_never_frees_the_name_of_a_later_one(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    early = claims.claim("lab", "a")
    claims.unclaim(early)
    later = claims.claim("lab", "a")
    claims.unclaim(early)
    assert later.epoch > early.epoch
    assert claims.find("lab") == later


@pytest.mark.pure
async def test_a_node_that_missed_a_probe_is_the_last_to_get_a_sandbox(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, PeerClient(PeerKey("key")), lambda _: None)
    nodes.members = {name: Member(name=name, address="http://192.0.2.1", code=name) for name in NAMES}
    nodes.health = {
        name: judge(Health(), report=Report(name=name, free=free)) for name, free in zip(NAMES, (1, 9, 2), strict=True)
    }
    assert nodes.candidates() == ["b", "c", "a"]
    nodes.health["b"] = judge(nodes.health["b"], problem="silent")
    assert nodes.candidates() == ["c", "a", "b"]


@pytest.mark.pure
async def test_a_node_that_has_just_joined_is_waited_for_by_who_was_granted_room_there(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    first, second = (Member(name=name, address="http://192.0.2.1", code=code_of(name)) for name in ("a", "b"))
    await asyncio.to_thread(write_members, tmp_path, Members(node="a", members=(first,)))
    nodes = Nodes(tmp_path, PeerClient(PeerKey("key")), lambda _: None)
    meeting = owned(nodes.meet("b"))
    await asyncio.sleep(0)
    await asyncio.to_thread(write_members, tmp_path, Members(node="a", members=(first, second)))
    async with asyncio.timeout(IN_TIME):
        await meeting
    assert nodes.check("b") == second
