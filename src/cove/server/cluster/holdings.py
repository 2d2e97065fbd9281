"""Find which nodes have an image or a snapshot: all are asked at once, and each for a bounded time.

A copy is as good as what it is a copy of while that node does not answer. One whose origin answers, and has it no more,
or something else under its name, is nothing.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from cove.errors import CoveError
from cove.local.threads import in_thread
from cove.model.cluster import Member
from cove.server.cluster.nodes import Nodes
from cove.server.cluster.peer import PeerClient, Reply
from cove.server.cluster.shipment import Holding, find_holding, forget_copy
from cove.server.cluster.shipping import THINGS
from cove.tasks import together

_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Found:
    """The answers of nodes: None for one that has nothing. Those that did not answer are `silent`."""

    answers: dict[str, Holding | None]
    silent: tuple[str, ...]

    @property
    def originals(self) -> list[str]:
        """Return the nodes that have the thing itself, the asking one first."""
        return [node for node, held in self.answers.items() if held is not None and not held.origin]

    @property
    def copies(self) -> list[str]:
        """Return the nodes that have a copy that holds."""
        return [node for node, held in self.answers.items() if held is not None and held.origin and self._holds(held)]

    def _holds(self, copy: Holding) -> bool:
        return copy.origin not in self.answers or self.answers[copy.origin] == Holding(id=copy.id)


class Holdings:
    """Asks this node and all others."""

    def __init__(self, home: Path, nodes: Nodes, client: PeerClient) -> None:
        self._home = home
        self._nodes = nodes
        self._client = client

    async def here(self, noun: str, name: str, tenant: str = "") -> Holding | None:
        """Return what this node has."""
        return await in_thread(find_holding, self._home, noun, name, tenant)

    async def find(self, noun: str, name: str, tenant: str = "") -> Found:
        """Ask all nodes; this one comes first."""
        others = self._nodes.others()
        here = await self.here(noun, name, tenant)
        replies = await together(self._call(each, "GET", noun, name, tenant) for each in others)
        answers = {self._nodes.node: here}
        for member, reply in zip(others, replies, strict=True):
            if reply is not None and reply.status == 200:
                answers[member.name] = msgspec.json.decode(reply.body, type=Holding | None)
        return Found(answers, tuple(sorted(set(self._nodes.members) - set(answers))))

    async def is_current(self, copy: Holding, noun: str, name: str, tenant: str = "") -> bool:
        """Return whether a copy here holds: its origin has just that, or does not answer."""
        origin = self._nodes.members.get(copy.origin)
        if origin is None or origin.name == self._nodes.node or not self._nodes.is_up(origin.name):
            return origin is None or origin.name != self._nodes.node
        reply = await self._call(origin, "GET", noun, name, tenant)
        if reply is None or reply.status != 200:
            return True
        return msgspec.json.decode(reply.body, type=Holding | None) == Holding(id=copy.id)

    async def forget_copies(self, noun: str, name: str, tenant: str = "", *, but: str) -> None:
        """Remove all copies but that of one node. A node that does not answer finds out when it next uses its own."""
        if but != self._nodes.node:
            await asyncio.to_thread(forget_copy, self._home, noun, name, tenant)
        others = [each for each in self._nodes.others() if each.name != but]
        await together(self._call(each, "DELETE", noun, name, tenant) for each in others)

    async def _call(self, member: Member, method: str, noun: str, name: str, tenant: str) -> Reply | None:
        target = target_of(THINGS, noun, name, tenant)
        try:
            return await self._client.call(member, method, target, seconds=_SECONDS)
        except CoveError:
            return None


def target_of(prefix: str, noun: str, name: str, tenant: str) -> str:
    """Return the path and query of a thing at another node."""
    return f"{prefix}{noun}/{quote(name, safe='')}" + (f"?tenant={quote(tenant)}" if tenant else "")
