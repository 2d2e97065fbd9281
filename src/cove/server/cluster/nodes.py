"""Liveness of the other nodes: one worker probes them all, and every worker reads what it found.

Theory of operation. Whoever of the workers holds a lock in the state directory asks every other node once a second how
it is. A node that does not answer three times in a row, within two seconds each, is down. One whose machine refuses
the connection is being restarted, and is down only after ten seconds of that. The results are one small file, which
the other workers read twice a second. When the probing worker dies, the lock is free and another one goes on.

A node is only ever down by its own silence: what an engine thinks of it changes where new sandboxes go, not this.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

from cove.errors import CoveError, NodeUnavailable
from cove.linux.file_lock import try_lock
from cove.local.state import replace_file
from cove.local.threads import in_thread
from cove.model.cluster import Member, Members
from cove.server.cluster.peer import NotConnected, PeerClient
from cove.server.sandboxes.members import Stamp, members_path, read_members, stamp_of
from cove.tasks import Tasks, together

NODE_PATH: Final = "/v1/cluster/node"
OTHER_KEY: Final = "is its peer key the same?"
PATIENCE_SECONDS: Final = 10.0
_PROBE_SECONDS: Final = 1.0
_READ_SECONDS: Final = 0.5
_ANSWER_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 5.0
_MOST_MISSES: Final = 3
_MOST_AT_ONCE: Final = 64
_MEET_SECONDS: Final = 15.0
_MEET_AGAIN_SECONDS: Final = 0.1
# A full disk, a file that was spoilt, a node that says no: the next round may do better.
_PASSING: Final = (OSError, msgspec.MsgspecError, CoveError)

log = logging.getLogger("cove.server")


class NodeState(StrEnum):
    """The state of a node as the probes found it."""

    UP = "up"
    RESTARTING = "restarting"
    DOWN = "down"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a node to a probe: how many sandboxes more it takes is `free`, `keys` the digest of its keys."""

    name: str
    version: str = ""
    free: int = 0
    sandboxes: int = 0
    keys: str = ""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The health of a node; `since` is when its state began, `keys_at` when this node last knew all of its API keys."""

    state: NodeState = NodeState.UP
    since: datetime | None = None
    misses: int = 0
    report: Report | None = None
    problem: str = ""
    keys_at: datetime | None = None


class Nodes:
    """The members, and how they are. `on_down` is called with the name of each node that goes down."""

    def __init__(self, home: Path, client: PeerClient, on_down: Callable[[str], None]) -> None:
        self._home = home
        self._file = home / "server" / "nodes.json"
        self._lock_file = home / "server" / "probe.lock"
        self._client = client
        self._on_down = on_down
        self._tasks = Tasks(lambda error: log.error("the nodes are no longer watched", exc_info=error))
        self._lock: FileIO | None = None
        self._stamps: tuple[Stamp | None, Stamp | None] = None, None
        self._placed: dict[str, int] = {}
        self.on_elected: Callable[[], Coroutine[object, object, object]] | None = None
        self.on_report: Callable[[Member, Report], Coroutine[object, object, bool]] | None = None
        self._limit = asyncio.Semaphore(_MOST_AT_ONCE)
        self.members: dict[str, Member] = {}
        self.by_code: dict[str, str] = {}
        self.node = ""
        self.health: dict[str, Health] = {}

    async def __aenter__(self) -> "Nodes":
        await self._refresh()
        self._tasks.start(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._tasks.aclose()

    @property
    def here(self) -> Member:
        """Return this node."""
        return self.members[self.node]

    @property
    def known(self) -> Members:
        """All of them as a value."""
        return Members(node=self.node, members=tuple(self.members.values()))

    @property
    def is_elected(self) -> bool:
        """Return whether this worker does what one of a node does."""
        return self._lock is not None

    def others(self) -> list[Member]:
        """Return all other nodes that are not known to be down."""
        return [each for each in self.members.values() if each.name != self.node and self.is_up(each.name)]

    def is_up(self, name: str) -> bool:
        """Return whether it is worth asking."""
        return self.health.get(name, Health()).state is not NodeState.DOWN

    def check(self, name: str) -> Member:
        """Return a node that may be asked; NodeUnavailable for one that is down, or is none."""
        member = self.members.get(name)
        if member is None:
            raise NodeUnavailable(f"node {name} is no member of the cluster", node=name)
        health = self.health.get(name, Health())
        if health.state is NodeState.DOWN:
            since = None if health.since is None else health.since.isoformat()
            raise NodeUnavailable(
                f"node {name} has not answered since {since}: nothing was started; its sandboxes are kept there",
                node=name,
                since=since,
            )
        return member

    def candidates(self) -> list[str]:
        """Return where a sandbox can be made, most free room first; those that missed the last probe are last."""
        usable = [each for each in self.members.values() if not each.is_draining and self.is_up(each.name)]
        return sorted((each.name for each in usable), key=self._rank)

    def _rank(self, name: str) -> tuple[bool, int, str]:
        return self.health.get(name, Health()).misses > 0, -self._room(name), name

    async def meet(self, name: str) -> None:
        """Wait until a node that the engine has named is known here; one that stays unknown is refused by `check`."""
        until = time.monotonic() + _MEET_SECONDS
        while name not in self.members and time.monotonic() < until:
            await asyncio.sleep(_MEET_AGAIN_SECONDS)
            await self._refresh()

    def placed(self, name: str, slots: int = 1) -> None:
        """Count the slots of a sandbox that goes there until the next probe tells."""
        self._placed[name] = self._placed.get(name, 0) + slots

    def _room(self, name: str) -> int:
        report = self.health.get(name, Health()).report
        return (0 if report is None else report.free) - self._placed.get(name, 0)

    async def _watch(self) -> None:
        told = ""
        try:
            while True:
                begun = time.monotonic()
                try:
                    await self._look()
                    told = ""
                except _PASSING as error:
                    if told != (told := str(error)):
                        log.warning("the nodes could not be looked at: %s", error)
                seconds = _READ_SECONDS if self._lock is None else _PROBE_SECONDS
                await asyncio.sleep(max(0.0, seconds - (time.monotonic() - begun)))
        finally:
            if self._lock is not None:
                self._lock.close()  # another worker goes on
                self._lock = None

    async def _look(self) -> None:
        """Probe all nodes, or read what the worker found that does."""
        if self._lock is None and (lock := await in_thread(self._try_lock)) is not None:
            self._lock = lock
            self._tasks.start(self._begin())
        await self._refresh()
        if self._lock is not None:
            await self._probe_all()

    async def _begin(self) -> None:
        """Do what one worker of a node does when it begins; again while others cannot be asked."""
        while self.on_elected is not None:
            try:
                await self.on_elected()
                return
            except _PASSING:
                await asyncio.sleep(_AGAIN_SECONDS)

    def _try_lock(self) -> FileIO | None:
        self._lock_file.touch(mode=0o600)
        return try_lock(self._lock_file)

    async def _refresh(self) -> None:
        """Read what has changed on disk."""
        found = await in_thread(self._read)
        if found is None:
            return
        members, health = found
        if members is not None:
            self.members = {each.name: each for each in members.members}
            self.by_code = {each.code: each.name for each in members.members}
            self.node = members.node
        if self._lock is None:
            self._take(health)

    def _read(self) -> tuple[Members | None, dict[str, Health]] | None:
        stamps = stamp_of(members_path(self._home)), stamp_of(self._file)
        if stamps == self._stamps:
            return None
        self._stamps = stamps
        health: dict[str, Health] = {}
        with suppress(FileNotFoundError, msgspec.DecodeError):
            health = msgspec.json.decode(self._file.read_bytes(), type=dict[str, Health])
        return read_members(self._home), health

    def _take(self, health: dict[str, Health]) -> None:
        before, self.health = self.health, health
        self._placed.clear()
        for name, now in health.items():
            if now.state is NodeState.DOWN and before.get(name, Health()).state is not NodeState.DOWN:
                self._on_down(name)

    async def _probe_all(self) -> None:
        members = list(self.members.values())
        found = await together(self._probe(member) for member in members)
        self._take({member.name: health for member, health in zip(members, found, strict=True)})
        await in_thread(replace_file, self._file, msgspec.json.encode(self.health))

    async def _probe(self, member: Member) -> Health:
        before, begun = self.health.get(member.name, Health()), datetime.now(UTC)
        found = await self._ask(member, before)
        report = None if found.misses else found.report
        is_heard = report is not None and await self._hear(member, report)
        return msgspec.structs.replace(found, keys_at=begun if is_heard else before.keys_at)

    async def _hear(self, member: Member, report: Report) -> bool:
        """Take what a node reports; returns whether all its keys are known. Its health is known all the same."""
        try:
            return self.on_report is not None and await self.on_report(member, report)
        except _PASSING as error:
            log.warning("what node %s reports could not be taken: %s", member.name, error)
            return False

    async def _ask(self, member: Member, before: Health) -> Health:
        async with self._limit:
            try:
                reply = await self._client.call(member, "GET", NODE_PATH, seconds=_ANSWER_SECONDS)
                if reply.status != 200:
                    return judge(before, problem=f"it answers {reply.status}: {OTHER_KEY}")
                return judge(before, report=msgspec.json.decode(reply.body, type=Report))
            except NotConnected as error:
                return judge(before, problem=error.message, is_refused=error.is_refused)
            except (CoveError, msgspec.DecodeError) as error:
                return judge(before, problem=str(error))


def judge(before: Health, *, report: Report | None = None, problem: str = "", is_refused: bool = False) -> Health:
    """Return the health after one more probe."""
    now = datetime.now(UTC)
    if report is not None:
        is_new = before.state is not NodeState.UP or before.since is None
        return Health(state=NodeState.UP, since=now if is_new else before.since, report=report)
    misses = before.misses + 1
    if before.state is NodeState.DOWN:
        state = NodeState.DOWN
    elif is_refused:
        began = before.since if before.state is NodeState.RESTARTING and before.since is not None else now
        is_over = (now - began).total_seconds() >= PATIENCE_SECONDS
        state = NodeState.DOWN if is_over else NodeState.RESTARTING
    else:
        state = NodeState.DOWN if misses >= _MOST_MISSES else before.state
    since = before.since if state is before.state else now
    return Health(state=state, since=since, misses=misses, report=before.report, problem=problem)


def read_nodes(home: Path) -> dict[str, Health]:
    """Return what the last probes found. Blocks."""
    try:
        return msgspec.json.decode((home / "server" / "nodes.json").read_bytes(), type=dict[str, Health])
    except FileNotFoundError:
        return {}
