"""The agent of a cluster on an engine in memory: blocks, names, members, drain, forget, return. No Ray is needed."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.fake_engine import FakeCluster, FakeEngine

from cove.core.cluster import code_of, new_id
from cove.core.identifier import new_identifier
from cove.errors import LimitExceeded, NoCapacity, PlacementUnavailable, ValidationFailed
from cove.model import Limits, SandboxSpec
from cove.model.cluster import Claim
from cove.server.cluster.agent_protocol import AgentSettings
from cove.server.cluster.kept import read_kept
from cove.server.ray_agent import agent, blocks
from cove.server.ray_agent.agent import Agent, NodeGone
from cove.server.ray_agent.engine import EngineFailed
from cove.server.ray_agent.names import Names
from cove.server.sandboxes.capacity import check_room
from cove.server.sandboxes.directory import Directory, Record
from cove.server.sandboxes.members import read_members
from cove.server.sandboxes.moves import Move, begin_out
from cove.server.sandboxes.slots import Slot, take_slots, write_slot

pytestmark = pytest.mark.pure


class Node:
    """A node with a state directory; its agent can be ended and started again."""

    def __init__(self, cluster: FakeCluster, home: Path, name: str, **settings: object) -> None:
        self.cluster, self.name = cluster, name
        self.directory = Directory(home)
        self.directory.open()
        (home / "sandboxes").mkdir(exist_ok=True)
        self.settings = AgentSettings(
            home=str(home),
            node=name,
            port=8787,
            idle_seconds=0.0,
            **settings,  # type: ignore[arg-type]  # a test's
        )
        self.start(f"{name}-1")

    def start(self, node_id: str) -> None:
        if node_id not in self.cluster.nodes:
            self.cluster.start_node(node_id, self.name)
        self.node_id = node_id
        self.agent = Agent(self.settings, FakeEngine(self.cluster, node_id))
        self.agent.refresh()

    def add_sandbox(self, id: str) -> None:
        key = new_identifier()
        (self.directory.home / "sandboxes" / key).mkdir()
        self.directory.write(Record(id=id, key=key, spec=SandboxSpec(), created_at=datetime.now(UTC)))
        self.directory.entry(id).write_text(key)

    @property
    def room(self) -> int | None:
        found: int | None = json.loads((self.directory.home / "capacity.json").read_bytes())["most"]
        return found

    @property
    def held(self) -> list[int]:
        """The slots of the blocks that the engine has on this machine."""
        return [block.slots for block in self.cluster.blocks.values() if block.node_id == self.node_id]


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def take_all(node: Node) -> None:
    """Let others of the engine's work have all room of a machine."""
    here = node.cluster.nodes[node.node_id]
    FakeEngine(node.cluster, node.node_id).make_block("of-others", here.slots, here)


def granted_while_others_refresh(asking: Node, others: list[Node]) -> str:
    """Ask for room, while the agents of the others do what they do all the time."""
    is_over = threading.Event()

    def keep_collecting(node: Node) -> None:
        while not is_over.wait(0.01):
            node.agent.collect()

    with ThreadPoolExecutor() as threads:
        for node in others:
            threads.submit(keep_collecting, node)
        try:
            return asking.agent.grant(1, 5.0)
        finally:
            is_over.set()


@pytest.fixture
def tmp_path(other_home: Path) -> Path:
    """A directory whose path is short enough for sockets."""
    path = other_home / "x"
    path.mkdir()
    return path


def test_a_node_without_blocks_has_no_room_and_one_that_was_granted_has_its_slots(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    node = Node(cluster, tmp_path, "a")
    assert node.room == 0
    assert node.agent.grant(1, 5.0) == "a"
    assert node.room == 16
    assert node.held == [16]
    assert cluster.store.keys() == {"life", "member/a"}


def test_a_grant_on_another_machine_is_taken_over_by_the_node_there(cluster: FakeCluster, tmp_path: Path) -> None:
    here, there = Node(cluster, tmp_path / "a", "a"), Node(cluster, tmp_path / "b", "b")
    assert {granted_while_others_refresh(here, [there]) for _ in range(2)} == {"a", "b"}
    assert (here.room, there.room) == (16, 16)


def test_no_room_is_no_capacity_after_the_time_and_nothing_waits_on(cluster: FakeCluster, tmp_path: Path) -> None:
    node = Node(cluster, tmp_path, "a")
    take_all(node)
    with pytest.raises(NoCapacity, match="add a node"):
        node.agent.grant(1, 0.05)
    assert list(cluster.blocks) == ["of-others"]
    assert cluster.store.keys() == {"life", "member/a"}


def test_room_comes_with_a_new_machine_while_somebody_waits(cluster: FakeCluster, tmp_path: Path) -> None:
    full = Node(cluster, tmp_path / "a", "a")
    take_all(full)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(full.agent.grant, 1, 20.0)
        fresh = Node(cluster, tmp_path / "b", "b")
        while not waiting.done():
            fresh.agent.collect()
        assert waiting.result() == "b"
    assert fresh.room == 16


def test_a_machine_that_offers_no_room_or_was_started_for_another_node_is_refused(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.start_node("a-1", "a", slots=8)
    with pytest.raises(ValidationFailed, match="--resources"):
        Node(cluster, tmp_path / "a", "a")
    cluster.start_node("b-1", "c")
    with pytest.raises(ValidationFailed, match="for node c"):
        Node(cluster, tmp_path / "b", "b")


def test_blocks_are_kept_and_asked_for_again_when_the_head_has_lost_its_memory(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    node = Node(cluster, tmp_path, "a")
    node.agent.grant(1, 5.0)
    node.add_sandbox("chosen")
    cluster.lose_memory()
    node.start("a-1")
    assert node.room == 16
    assert node.held == [16]
    assert Names(FakeEngine(cluster, "a-1")).find("chosen") is not None
    assert [block.pin for block in cluster.blocks.values()] == ["a"]


def test_a_machine_that_returns_has_its_blocks_though_they_were_moved(cluster: FakeCluster, tmp_path: Path) -> None:
    node, other = Node(cluster, tmp_path / "a", "a"), Node(cluster, tmp_path / "b", "b")
    while granted_while_others_refresh(node, [other]) != "a":
        pass
    node.add_sandbox("chosen")
    cluster.end_node("a-1")
    other.agent.refresh()
    members = read_members(tmp_path / "b")
    assert members is not None
    assert {member.name: member.slots for member in members.members}["a"] == 0
    node.start("a-2")
    assert node.held == [16]
    assert node.room == 16


def test_a_node_whose_room_others_took_accepts_nothing_new_until_it_is_free(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "WAIT_SECONDS", 0.01)
    node = Node(cluster, tmp_path, "a")
    node.agent.grant(1, 5.0)
    node.add_sandbox("chosen")
    cluster.end_node("a-1")
    engine = FakeEngine(cluster, "a-2")
    cluster.start_node("a-2", "a", slots=16)
    cluster.blocks.clear()
    engine.make_block("of-others", 16, cluster.nodes["a-2"])
    node.start("a-2")
    assert node.agent.report().is_overcommitted
    with pytest.raises(LimitExceeded):
        check_room(node.directory)
    engine.remove_block("of-others")
    node.agent.refresh()
    assert not node.agent.report().is_overcommitted
    check_room(node.directory)


def test_blocks_that_nothing_needs_are_given_back_and_those_in_use_are_not(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    node = Node(cluster, tmp_path, "a")
    node.add_sandbox("chosen")
    node.agent.refresh()
    node.agent.grant(1, 5.0)
    assert node.room == 32
    node.agent.refresh()
    node.agent.refresh()
    assert (node.room, node.held) == (16, [16])
    node.directory.entry("chosen").unlink()
    node.agent.refresh()
    assert (node.room, node.held) == (0, [])
    assert not read_kept(node.directory.server).blocks


def test_a_node_that_drains_gets_nothing_new_and_says_so_also_after_the_head_forgot(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    node, other = Node(cluster, tmp_path / "a", "a"), Node(cluster, tmp_path / "b", "b")
    other.agent.drain("a", undo=False)
    node.agent.refresh()
    assert node.room == 0
    assert [granted_while_others_refresh(other, [node]) for _ in range(3)] == ["b", "b", "b"]
    cluster.lose_memory()
    node.start("a-1")
    other.agent.refresh()
    members = read_members(tmp_path / "b")
    assert members is not None
    assert {member.name: member.is_draining for member in members.members} == {"a": True, "b": False}
    other.agent.drain("a", undo=True)
    node.agent.refresh()
    assert not read_kept(node.directory.server).is_draining


def test_a_node_that_was_forgotten_is_told_so_and_keeps_its_sandboxes(cluster: FakeCluster, tmp_path: Path) -> None:
    node, other = Node(cluster, tmp_path / "a", "a"), Node(cluster, tmp_path / "b", "b")
    node.add_sandbox("chosen")
    node.agent.refresh()
    assert node.agent.claim("chosen", "a", None).node == "a"
    with pytest.raises(ValidationFailed, match="alive"):
        other.agent.forget("a", undo=False)
    cluster.end_node("a-1")
    assert other.agent.forget("a", undo=False) == 1
    assert not [block for block in cluster.blocks.values() if block.pin == "a"]
    assert other.agent.claim("chosen", "b", None).node == "b"
    node.start("a-2")
    assert node.room == 0
    assert "forgotten at" in (node.agent.report().forgotten or "")
    with pytest.raises(PlacementUnavailable, match="forgotten"):
        node.agent.claim("another", "a", None)
    assert node.directory.find("chosen") is not None
    other.agent.forget("a", undo=True)
    node.start("a-2")
    assert node.room == 16
    assert node.agent.report().superseded == ("chosen",)


def test_only_names_that_others_could_claim_are_claimed(cluster: FakeCluster, tmp_path: Path) -> None:
    node = Node(cluster, tmp_path, "a")
    node.add_sandbox("chosen")
    node.add_sandbox(new_id(code_of("a")))
    moved = new_id(code_of("b"))
    node.add_sandbox(moved)
    node.add_sandbox("leaving")
    begin_out(node.directory, Move(id="leaving", key="k" * 12, source="a", target="b", epoch=1)).close()
    cluster.lose_memory()
    node.start("a-1")
    assert {key.split("/")[1] for key in cluster.store if key.startswith("name/")} == {"chosen", moved}


def test_two_nodes_of_one_name_or_code_are_refused(cluster: FakeCluster, tmp_path: Path) -> None:
    Node(cluster, tmp_path / "a", "a")
    cluster.start_node("other", "a")
    agent = Agent(AgentSettings(home=str(tmp_path / "a"), node="a", port=1), FakeEngine(cluster, "other"))
    with pytest.raises(ValidationFailed, match="another name"):
        agent.refresh()


def test_a_machine_that_is_not_alive_and_a_head_that_does_not_answer_are_told_apart(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    node = Node(cluster, tmp_path, "a")
    node.agent.grant(1, 5.0)
    cluster.is_down = True
    with pytest.raises(EngineFailed):
        node.agent.refresh()
    assert node.room == 16
    cluster.is_down = False
    cluster.end_node("a-1")
    with pytest.raises(NodeGone):
        node.agent.refresh()


def test_a_node_that_leaves_gives_everything_back(cluster: FakeCluster, tmp_path: Path) -> None:
    node = Node(cluster, tmp_path, "a", max_sandboxes=5)
    node.agent.grant(1, 5.0)
    assert node.room == 5
    node.agent.leave()
    assert not cluster.blocks
    assert cluster.store.keys() == {"life"}
    assert read_members(tmp_path) is None


def test_of_many_who_claim_one_name_one_wins_and_all_see_it(cluster: FakeCluster) -> None:
    names = [Names(FakeEngine(cluster, str(number))) for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        for name in ("x", "y", "z"):
            claims = list(threads.map(lambda each, name=name: each[1].claim(name, str(each[0])), enumerate(names)))
            assert len({(claim.node, claim.epoch) for claim in claims}) == 1


def test_a_claim_is_taken_over_by_its_epoch_once_and_freed_by_itself_only(cluster: FakeCluster) -> None:
    names = Names(FakeEngine(cluster, "any"))
    first = names.claim("x", "a")
    assert names.claim("x", "b") == first
    second = names.claim("x", "b", first.epoch)
    assert second.node == "b"
    assert second.epoch == first.epoch + 1  # by which the target of a move knows that it has the claim
    assert names.claim("x", "c", first.epoch) == second
    names.unclaim(first)
    assert names.find("x") == second
    assert names.claim("x", "b").epoch > second.epoch
    names.unclaim(Claim(name="x", node="b", epoch=names.claim("x", "b").epoch))
    assert names.find("x") is None
    assert not cluster.store


def known_to(node: Node) -> dict[str, int | None]:
    """The room of each member, as the node knows them."""
    found = read_members(node.directory.home)
    assert found is not None
    return {member.name: member.slots for member in found.members}


def test_who_was_a_member_stays_one_while_an_engine_that_lost_its_memory_learns_of_it_again(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, two = Node(cluster, tmp_path / "a", "a"), Node(cluster, tmp_path / "b", "b")
    two.add_sandbox("named")
    two.agent.refresh()
    one.agent.refresh()
    assert known_to(one) == {"a": 0, "b": 16}
    cluster.lose_memory()
    cluster.end_node("b-1")
    for _ in range(2):
        one.start("a-1")
        assert known_to(one) == {"a": 0, "b": 0}
    two.start("b-2")
    one.agent.refresh()
    assert known_to(one) == {"a": 0, "b": 16}
    two.agent.leave()
    one.agent.refresh()
    assert known_to(one) == {"a": 0}


def test_who_does_not_come_back_to_an_engine_that_lost_its_memory_is_no_member_after_a_while(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, _ = Node(cluster, tmp_path / "a", "a"), Node(cluster, tmp_path / "b", "b")
    one.agent.refresh()
    assert set(known_to(one)) == {"a", "b"}
    cluster.lose_memory()
    monkeypatch.setattr(agent, "_RETURN_SECONDS", 0.0)
    one.agent.refresh()
    assert set(known_to(one)) == {"a"}


def test_a_large_sandbox_takes_the_room_of_several(cluster: FakeCluster, tmp_path: Path) -> None:
    node = Node(cluster, tmp_path, "a", block_slots=16)
    write_slot(tmp_path, Slot(memory=1 << 30))
    assert node.agent.grant(20, 1.0) == "a"
    node.agent.collect()
    assert node.held == [32]
    for id in ("one", "two"):
        node.add_sandbox(id)
    take_slots(node.directory, "one", Limits(memory=20 << 30))
    check_room(node.directory, 11)
    with pytest.raises(LimitExceeded, match="21 are taken"):
        check_room(node.directory, 12)
    node.agent.refresh()
    node.agent.refresh()
    assert sum(node.held) == 32, "a block that a large sandbox needs was given back"
