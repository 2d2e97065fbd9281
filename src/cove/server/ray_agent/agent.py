"""The agent's decisions: what is done at each refresh, and how room, names and operators' wishes are answered.

All calls block, and are made in threads. Refreshes and calls that change blocks or records take turns (`_turn`).
"""

import platform
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from cove import __version__
from cove.core.cluster import birth_code, claim_name, code_of
from cove.errors import NoCapacity, PlacementUnavailable, ValidationFailed
from cove.model.cluster import Claim, Member, Members
from cove.server.cluster.agent_protocol import AgentReport, AgentSettings, NodeReport
from cove.server.ray_agent.blocks import Blocks, new_block_name
from cove.server.ray_agent.engine import Engine, EngineFailed, EngineNode
from cove.server.ray_agent.names import Names
from cove.server.ray_agent.registry import GrantRecord, MemberRecord, Registry
from cove.server.sandboxes.capacity import read_capacity, write_capacity
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.members import read_members, write_members
from cove.server.sandboxes.moves import find_out
from cove.server.sandboxes.slots import count_slots

_TURN_SECONDS = 10.0
_POLL_SECONDS = 0.05
_COLLECT_SECONDS = 0.2
# A node that is gone and had nothing is not a member any more after this time.
_GONE_SECONDS = 60.0
# An engine that has lost its memory knows a machine again when its raylet has given up and is started again.
_RETURN_SECONDS = 300.0


class NodeGone(Exception):
    """The machine of this agent is not alive for the engine: the agent must start again."""


@dataclass(slots=True)
class _View:
    """The findings of the last refresh."""

    nodes: dict[str, EngineNode] = field(default_factory=dict)
    records: dict[str, MemberRecord] = field(default_factory=dict)
    forgotten: str | None = None
    superseded: tuple[str, ...] = ()
    gone_since: dict[str, float] = field(default_factory=dict)
    life: str = ""
    returning: dict[str, Member] = field(default_factory=dict)
    return_until: float = 0.0


class Agent:
    """One node's part in the cluster."""

    def __init__(self, settings: AgentSettings, engine: Engine) -> None:
        self._settings = settings
        self._home = Path(settings.home)
        self._directory = Directory(self._home)
        self._engine = engine
        self._registry = Registry(engine)
        self._names = Names(engine)
        self._blocks = Blocks(
            self._directory.server,
            engine,
            settings.block_slots,
            count=partial(count_slots, self._directory),
            publish=self._publish_room,
        )
        self._view = _View()
        self._has_left = False
        self._turn = threading.Lock()

    @property
    def period(self) -> float:
        """Seconds between two refreshes: longer in a large cluster, where all of them ask one head."""
        return max(self._settings.refresh_seconds, len(self._view.nodes) / 100)

    @property
    def collecting_period(self) -> float:
        """Seconds between two looks at the grants on their way."""
        return max(_COLLECT_SECONDS, len(self._view.nodes) / 500)

    # Refreshing

    def collect(self) -> None:
        """Take over the grants that are for this node; EngineFailed."""
        with self._taking_turns():
            if self._view.forgotten is None and not self._has_left:
                self._take_over_grants()

    def refresh(self) -> None:
        """Bring this node's files and the shared records up to date; EngineFailed, or NodeGone."""
        with self._taking_turns():
            if self._has_left:
                return
            here = self._look()
            if self._view.forgotten is not None:
                self._withdraw()
                return
            self._follow_drain()
            self._take_over_grants()
            self._blocks.confirm(here)
            self._blocks.release_idle(self._settings.idle_seconds)
            self._register(here)
            self._forget_the_gone()
            self._write_members()

    def _look(self) -> EngineNode:
        self._view.nodes = {node.id: node for node in self._engine.nodes()}
        here = self._view.nodes.get(self._engine.node_id)
        if here is None:
            raise NodeGone
        if here.label not in ("", self._settings.node):
            raise ValidationFailed(f"Ray on this machine was started for node {here.label}")
        if here.slots < self._settings.block_slots:
            raise ValidationFailed(
                f"Ray on this machine offers {here.slots} slots, less than a block: "
                f"""start it with --resources='{{"cove": {4 * self._settings.block_slots}}}'"""
            )
        self._view.records = self._registry.members()
        self._view.forgotten = self._registry.forgotten(self._settings.node)
        self._expect_those_known_before()
        return here

    def _expect_those_known_before(self) -> None:
        """Keep as members, after the engine has lost its memory, who was one: they run, and come back by themselves."""
        view, life = self._view, self._registry.life()
        if view.life != life:
            view.life, view.return_until = life, time.monotonic() + _RETURN_SECONDS
            view.returning = self._others_known() if self._blocks.kept.life not in ("", life) else {}
        is_over = time.monotonic() >= view.return_until
        view.returning = {} if is_over else {n: m for n, m in view.returning.items() if n not in view.records}
        if not view.returning:
            self._blocks.set_life(life)

    def _others_known(self) -> dict[str, Member]:
        known = read_members(self._home)
        return {each.name: each for each in (known.members if known else ()) if each.name != self._settings.node}

    def _withdraw(self) -> None:
        """A forgotten node keeps what it runs, gets nothing new, and claims no name."""
        write_capacity(self._home, 0)
        self._view.records.pop(self._settings.node, None)
        self._write_members()

    def _follow_drain(self) -> None:
        name, said = self._settings.node, self._registry.draining(self._settings.node)
        if said is None and self._blocks.kept.is_draining:
            self._registry.set_draining(name, is_draining=True)
        elif said is not None:
            self._blocks.set_draining(said)

    def _take_over_grants(self) -> None:
        for block, record in self._registry.grants().items():
            if record.node != self._settings.node or record.is_refused:
                continue
            if self._blocks.kept.is_draining:
                self._registry.put_grant(block, msgspec.structs.replace(record, is_refused=True))
            else:
                self._blocks.adopt(block, record.slots)
                self._registry.drop_grant(block)

    def _register(self, here: EngineNode) -> None:
        record = MemberRecord(
            member=Member(
                name=self._settings.node,
                address=self._settings.address or f"http://{here.ip}:{self._settings.port}",
                code=code_of(self._settings.node),
                version=__version__,
                slots=self._most(self._blocks.room),
                is_draining=self._blocks.kept.is_draining,
            ),
            node_id=here.id,
            blocks=tuple(block.name for block in self._blocks.kept.blocks),
            python=platform.python_version(),
            engine=self._settings.engine_version,
        )
        self._refuse_twins(record)
        before = self._view.records.get(self._settings.node)
        if before is None or before.node_id != here.id:
            self._return()
        if before != record:
            self._registry.register(record)
            self._view.records[self._settings.node] = record

    def _refuse_twins(self, record: MemberRecord) -> None:
        """Two nodes of one name, or of names that give one code, would answer for one another's sandboxes."""
        own = record.member
        for name, other in self._view.records.items():
            is_elsewhere = other.node_id != record.node_id and other.node_id in self._view.nodes
            is_other = other.node_id == record.node_id or other.member.code == own.code
            if is_elsewhere if name == own.name else is_other:
                raise ValidationFailed(f"this node cannot be called {own.name}: {name} is there. Choose another name")

    def _return(self) -> None:
        """Claim the names of the sandboxes that are here, and undo grants that were asked for before the last end."""
        self._view.superseded = tuple(
            record.id
            for record in self._directory.list()
            if birth_code(record.id) != code_of(self._settings.node)
            and find_out(self._directory.of(record.tenant), record.id) is None  # whose it is, the move decides
            and self._names.ensure(claim_name(record.tenant, record.id), self._settings.node).node
            != self._settings.node
        )
        for block, grant in self._registry.grants().items():
            if grant.by == self._settings.node and not grant.node:
                self._undo_grant(block)

    def _forget_the_gone(self) -> None:
        """Drop the records of machines that are gone and had no room: as an autoscaler takes them."""
        now = time.monotonic()
        gone = {
            name
            for name, record in self._view.records.items()
            if record.node_id not in self._view.nodes and not record.blocks and name != self._settings.node
        }
        self._view.gone_since = {name: self._view.gone_since.get(name, now) for name in gone}
        for name, since in self._view.gone_since.items():
            if now - since >= _GONE_SECONDS:
                self._registry.unregister(name)
                self._view.records.pop(name)

    def _write_members(self) -> None:
        members = Members(node=self._settings.node, members=tuple(self._members()))
        if members != read_members(self._home):
            write_members(self._home, members)

    def _members(self) -> list[Member]:
        """Those whose machine is not alive, or not yet again, stay members, without room."""
        own = self._settings.node
        alive = {name for name, record in self._view.records.items() if record.node_id in self._view.nodes}
        found = self._view.returning | {name: record.member for name, record in self._view.records.items()}
        known = {
            name: member if name in alive else msgspec.structs.replace(member, slots=0)
            for name, member in found.items()
        }
        if own not in known:
            address = self._settings.address or f"http://127.0.0.1:{self._settings.port}"
            known[own] = Member(name=own, address=address, code=code_of(own), slots=0, is_draining=True)
        return [known[name] for name in sorted(known)]

    def _publish_room(self, room: int) -> None:
        most = self._most(room)
        if read_capacity(self._home) != most:
            write_capacity(self._home, most)

    def _most(self, room: int) -> int:
        most = self._settings.max_sandboxes
        return room if most is None else min(room, most)

    # Room

    def grant(self, slots: int, timeout: float) -> str:
        """Ask for a block that any machine may have, and return the node that has taken it over; NoCapacity."""
        until = time.monotonic() + timeout
        size = self._settings.block_slots * max(1, -(-slots // self._settings.block_slots))
        refused: list[str] = []
        try:
            while (left := until - time.monotonic()) > 0:
                block = new_block_name()
                node = self._granted(block, size, left)
                if node is not None:
                    return node
                refused.append(block)  # held until another machine is found: the engine would choose this one again
        finally:
            for block in refused:
                self._undo_grant(block)
        raise NoCapacity(f"no node had room within {timeout:g} s: try again later, or add a node")

    def _granted(self, block: str, size: int, timeout: float) -> str | None:
        """Return the node; None when the one that the engine chose takes no more, or none was found in time."""
        until = time.monotonic() + timeout
        grant = GrantRecord(by=self._settings.node, slots=size)
        self._registry.put_grant(block, grant)
        self._engine.make_block(block, size, None)
        state = self._engine.wait_for_block(block, timeout)
        while state is not None and state.node_id is not None and time.monotonic() < until:
            node = self._name_of(state.node_id)
            if node is not None:
                self._registry.put_grant(block, msgspec.structs.replace(grant, node=node))
                return node if self._was_taken_over(block, node, until) else None
            time.sleep(_POLL_SECONDS)  # the machine is new: its server has not registered itself yet
        return None

    def _was_taken_over(self, block: str, node: str, until: float) -> bool:
        if node == self._settings.node:
            with self._taking_turns():
                self._take_over_grants()
        while time.monotonic() < until:
            grant = self._registry.grant(block)
            if grant is None or grant.is_refused:
                return grant is None
            time.sleep(_POLL_SECONDS)
        return False

    def _undo_grant(self, block: str) -> None:
        self._engine.remove_block(block)
        self._registry.drop_grant(block)

    def _name_of(self, node_id: str) -> str | None:
        return next((name for name, record in self._registry.members().items() if record.node_id == node_id), None)

    def release(self, node: str, slots: int) -> None:
        """Give back whole blocks of this node that nothing needs; other nodes do it themselves when they are idle."""
        if node == self._settings.node:
            with self._taking_turns():
                self._blocks.release(slots // self._settings.block_slots)

    # Names

    def claim(self, name: str, node: str, epoch: int | None) -> Claim:
        """Claim a name; a forgotten node cannot."""
        if self._view.forgotten is not None:
            raise PlacementUnavailable(self._explain_forgotten())
        return self._names.claim(name, node, epoch)

    def find(self, name: str) -> Claim | None:
        """Return who has a name."""
        return self._names.find(name)

    def unclaim(self, claim: Claim) -> None:
        """Free a name."""
        self._names.unclaim(claim)

    # Operators

    def drain(self, node: str, *, undo: bool) -> None:
        """Let a node get no new sandboxes, or again."""
        self._known(node)
        self._registry.set_draining(node, is_draining=not undo)

    def forget(self, node: str, *, undo: bool) -> int:
        """Give up a node that is gone for good: its names are free; returns how many those were."""
        if undo:
            self._registry.set_forgotten(node, None)
            return 0
        record = self._known(node)
        if record.node_id in {each.id for each in self._engine.nodes()}:
            raise ValidationFailed(f"node {node} is alive: drain it, and run `cove cluster leave` there")
        self._registry.set_forgotten(node, datetime.now(UTC).isoformat(timespec="seconds"))
        for block in record.blocks:
            self._engine.remove_block(block)
        self._registry.unregister(node)
        return self._names.free_all_of(node)

    def leave(self) -> None:
        """Take this node out: its blocks, names and record are given back, its sandboxes stay."""
        with self._taking_turns():
            self._has_left = True
            self._blocks.drop_all()
            for record in self._directory.list():
                claim = self._names.find(claim_name(record.tenant, record.id))
                if claim is not None and claim.node == self._settings.node:
                    self._names.unclaim(claim)
            self._registry.unregister(self._settings.node)
            write_members(self._home, None)
            write_capacity(self._home, self._settings.max_sandboxes)

    def report(self) -> AgentReport:
        """Return what `cove cluster status` shows."""
        nodes = {node.id for node in self._engine.nodes()}
        return AgentReport(
            node=self._settings.node,
            nodes=tuple(
                NodeReport(
                    member=record.member, is_alive=record.node_id in nodes, python=record.python, engine=record.engine
                )
                for record in self._registry.members().values()
            ),
            sandboxes=self._directory.count(),
            is_overcommitted=self._blocks.is_overcommitted,
            superseded=self._view.superseded,
            forgotten=None if self._view.forgotten is None else self._explain_forgotten(),
            engine_address=self._settings.engine_address,
            token_file=self._settings.token_file,
        )

    def _explain_forgotten(self) -> str:
        node = self._settings.node
        return (
            f"node {node} was forgotten at {self._view.forgotten}: it keeps its sandboxes and gets no new ones. "
            f"`cove cluster forget {node} --undo` takes it back"
        )

    def _known(self, node: str) -> MemberRecord:
        records = self._registry.members()
        if node not in records:
            raise ValidationFailed(f"there is no node {node!r}: the nodes are {', '.join(sorted(records)) or 'none'}")
        return records[node]

    def _taking_turns(self) -> "_Turn":
        return _Turn(self._turn)


@dataclass(frozen=True, slots=True)
class _Turn:
    """A lock that is waited for no longer than a bound."""

    lock: threading.Lock

    def __enter__(self) -> None:
        if not self.lock.acquire(timeout=_TURN_SECONDS):
            raise EngineFailed("another call takes too long")

    def __exit__(self, *_: object) -> None:
        self.lock.release()
