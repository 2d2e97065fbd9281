"""Find which node has a sandbox, a snapshot, an image or a volume: by the id itself, by memory, by asking all nodes."""

import os
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from cove.core.cluster import birth_code
from cove.core.identifier import check_sandbox_id
from cove.errors import CoveError, NotFound, PlacementUnavailable, ValidationFailed
from cove.local.threads import in_thread
from cove.model.cluster import Member
from cove.model.mount import check_volume_name
from cove.runtime.home import Home
from cove.runtime.volumes import Volumes
from cove.server.cluster.nodes import Nodes
from cove.server.cluster.peer import PeerClient
from cove.server.cluster.placement import Placement
from cove.server.cluster.shipment import IMAGE, SNAPSHOT, find_record
from cove.server.sandboxes.directory import Directory
from cove.tasks import together

HAS_PATH: Final = "/v1/cluster/has/"
_MOST_REMEMBERED: Final = 10_000
_SECONDS: Final = 3.0


class Whereabouts:
    """Remembers on which other nodes sandboxes were found that their ids do not lead to; what is here is looked up."""

    def __init__(self, directory: Directory, nodes: Nodes, client: PeerClient, placement: Placement) -> None:
        self._directory = directory
        self._nodes = nodes
        self._client = client
        self._placement = placement
        self._remembered: dict[str, str] = {}

    def is_here(self, id: str) -> bool:
        """Return whether the id is taken on this node. Blocks, for microseconds."""
        return os.path.exists(self._directory.entry(id))

    def recall(self, id: str) -> str | None:
        """Return the node of a sandbox, as far as is known without asking."""
        remembered = self._remembered.get(id)
        if remembered is not None:
            return remembered
        born = self.birthplace(id)
        if born is not None and born != self._nodes.node:
            return born
        return self._nodes.node if self.is_here(id) else None

    def birthplace(self, id: str) -> str | None:
        """Return the node that an id was made on, if it is one that was made."""
        return self._nodes.by_code.get(birth_code(id) or "")

    async def search(self, id: str) -> str | None:
        """Return the node that says it has a sandbox; None if no node does.

        While a node does not answer, the claim on the name says whether it is there.
        """
        self._remembered.pop(id, None)
        holders, is_complete = await self.holders("sandbox", id)
        node = holders[0] if holders else None if is_complete else await self._claimant(id)
        if node is not None and node != self._nodes.node:
            if len(self._remembered) >= _MOST_REMEMBERED:
                self._remembered.clear()
            self._remembered[id] = node
        return node

    async def _claimant(self, id: str) -> str | None:
        try:
            claim = await self._placement.find(id)
        except PlacementUnavailable:
            return None
        return None if claim is None else claim.node

    async def holders(self, noun: str, name: str) -> tuple[list[str], bool]:
        """Return the nodes that have a thing, this one first, and whether all nodes have said so."""
        others = self._nodes.others()
        answers = await together([self._ask_here(noun, name), *(self._ask(each, noun, name) for each in others)])
        names = [self._nodes.node, *(each.name for each in others)]
        is_complete = len(names) == len(self._nodes.members) and None not in answers
        return [node for node, has in zip(names, answers, strict=True) if has], is_complete

    async def _ask_here(self, noun: str, name: str) -> bool | None:
        return await in_thread(has, self._directory, noun, name)

    async def _ask(self, member: Member, noun: str, name: str) -> bool | None:
        try:
            target = f"{HAS_PATH}{noun}/{quote(name, safe='')}"
            reply = await self._client.call(member, "GET", target, seconds=_SECONDS)
        except CoveError:
            return None
        return msgspec.json.decode(reply.body, type=bool) if reply.status == 200 else None


def has(directory: Directory, noun: str, name: str) -> bool:
    """Return whether this node has a thing of that name. Blocks."""
    try:
        _find(directory, directory.home, noun, name)
    except (NotFound, ValidationFailed):
        return False
    return True


def _find(directory: Directory, home: Path, noun: str, name: str) -> None:
    if noun == "sandbox":
        if not directory.entry(check_sandbox_id(name)).exists():
            raise NotFound(name)
    elif noun in (SNAPSHOT, IMAGE):
        find_record(home, noun, name, "")
    elif noun == "volume":
        Volumes(Home(home)).get(check_volume_name(name))
    else:
        raise ValidationFailed(f"no node is asked for a {noun}")
