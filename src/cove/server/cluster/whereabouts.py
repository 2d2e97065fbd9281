"""Find which node has a sandbox, a snapshot, an image or a volume: by the id itself, by memory, by asking all nodes."""

import asyncio
import os
import re
from typing import Final
from urllib.parse import quote

import msgspec

from cove.core.cluster import birth_code, claim_name
from cove.core.exposure import Label
from cove.core.identifier import KEY_LENGTH, check_sandbox_id
from cove.errors import CoveError, NotFound, PlacementUnavailable, ValidationFailed
from cove.local.threads import in_thread
from cove.model.cluster import Member
from cove.model.mount import check_volume_name
from cove.runtime.home import RECORD, Home
from cove.runtime.kept_journals import find_kept
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
_MOST_SEARCHES: Final = 4
_ABSENT_SECONDS: Final = 5.0
_KEY: Final = re.compile(rf"[a-z2-7]{{{KEY_LENGTH}}}")


class Whereabouts:
    """Remembers on which other nodes sandboxes were found that their ids do not lead to; what is here is looked up."""

    def __init__(self, directory: Directory, nodes: Nodes, client: PeerClient, placement: Placement) -> None:
        self._directory = directory
        self._nodes = nodes
        self._client = client
        self._placement = placement
        self._remembered: dict[tuple[str | None, str], str] = {}
        self._places: dict[str, str] = {}
        self._absent: dict[str, float] = {}
        self._searching = asyncio.Semaphore(_MOST_SEARCHES)

    def is_here(self, id: str, tenant: str | None) -> bool:
        """Return whether a tenant's id is taken on this node; None stands for any tenant. Blocks, for microseconds."""
        return is_taken(self._directory, id, tenant)

    def recall(self, id: str, tenant: str | None) -> str | None:
        """Return the node of a sandbox, as far as is known without asking: it may have left where it was made."""
        if self.is_here(id, tenant):
            return self._nodes.node
        remembered = self._remembered.get((tenant, id))
        if remembered is not None:
            return remembered
        born = self.birthplace(id)
        return born if born is not None and born != self._nodes.node and self._nodes.is_up(born) else None

    def birthplace(self, id: str) -> str | None:
        """Return the node that an id was made on, if it is one that was made."""
        return self._nodes.by_code.get(birth_code(id) or "")

    async def search(self, id: str, tenant: str | None) -> str | None:
        """Return the node that says it has a sandbox; None if no node does.

        While a node does not answer, the claim on the name says whether it is there; raises PlacementUnavailable when
        that cannot be had either.
        """
        self._remembered.pop((tenant, id), None)
        holders, is_complete = await self.holders("sandbox", id, tenant)
        node = holders[0] if holders else None if is_complete else await self._claimant(id, tenant)
        if node is not None and node != self._nodes.node:
            if len(self._remembered) >= _MOST_REMEMBERED:
                self._remembered.clear()
            self._remembered[tenant, id] = node
        return node

    async def search_for_stranger(self, id: str, tenant: str | None) -> str | None:
        """Search for whoever may have made the id up: few at a time, and not soon again for what is nowhere."""
        async with self._searching:
            if self._was_absent(id):
                return None
            node = await self.search(id, tenant)
            if node is None:
                self._note_absent(id)
            return node

    def recall_place(self, label: Label) -> str | None:
        """Return the node of the sandbox that a preview's label names, as far as is known without asking."""
        remembered = self._places.get(label.key)
        if remembered is not None:
            return remembered
        made = self.birthplace_of(label)
        if made == self._nodes.node:
            return made if is_place(self._directory, label.key) else None
        return made if made is not None and self._nodes.is_up(made) else None

    def birthplace_of(self, label: Label) -> str | None:
        """Return the node where a preview was first made, if it is one of the cluster."""
        return self._nodes.by_code.get(label.code) if label.code else self._nodes.node

    async def search_place(self, key: str) -> str | None:
        """Return the node that has the place of a sandbox, which may have moved; None if no node says so.

        Whoever makes labels up is not to keep all nodes busy: few are searched at a time, and none soon again.
        """
        self._places.pop(key, None)
        async with self._searching:
            if self._was_absent(key):
                return None
            holders, _ = await self.holders("place", key, None)
            if not holders:
                self._note_absent(key)
                return None
            if holders[0] != self._nodes.node:
                if len(self._places) >= _MOST_REMEMBERED:
                    self._places.clear()
                self._places[key] = holders[0]
            return holders[0]

    def _was_absent(self, key: str) -> bool:
        """Return whether all nodes have just said that they do not have it."""
        found = self._absent.get(key)
        return found is not None and asyncio.get_running_loop().time() - found < _ABSENT_SECONDS

    def _note_absent(self, key: str) -> None:
        if len(self._absent) >= _MOST_REMEMBERED:
            self._absent.clear()
        self._absent[key] = asyncio.get_running_loop().time()

    async def _claimant(self, id: str, tenant: str | None) -> str | None:
        """Return the node that has claimed a name; where it was made, if nobody has: it has not left then."""
        born = self.birthplace(id)
        try:
            claim = await self._placement.find(claim_name(tenant or "", id))
        except PlacementUnavailable:
            if born is None:
                raise
            return born
        return born if claim is None else claim.node

    async def holders(self, noun: str, name: str, tenant: str | None) -> tuple[list[str], bool]:
        """Return the nodes that have a thing of a tenant's, this one first, and whether all nodes have said so."""
        others = self._nodes.others()
        here = in_thread(has, self._directory, noun, name, tenant)
        answers = await together([here, *(self._ask(each, noun, name, tenant) for each in others)])
        names = [self._nodes.node, *(each.name for each in others)]
        is_complete = len(names) == len(self._nodes.members) and None not in answers
        return [node for node, has in zip(names, answers, strict=True) if has], is_complete

    async def _ask(self, member: Member, noun: str, name: str, tenant: str | None) -> bool | None:
        try:
            target = f"{HAS_PATH}{noun}/{quote(name, safe='')}" + (
                "" if tenant is None else f"?tenant={quote(tenant, safe='')}"
            )
            reply = await self._client.call(member, "GET", target, seconds=_SECONDS)
        except CoveError:
            return None
        return msgspec.json.decode(reply.body, type=bool) if reply.status == 200 else None


def is_taken(directory: Directory, id: str, tenant: str | None) -> bool:
    """Return whether an id is taken by a tenant; None stands for any. Blocks, for microseconds."""
    places = directory.of_all() if tenant is None else [directory.of(tenant)]
    return any(os.path.exists(each.entry(id)) for each in places)


def is_place(directory: Directory, key: str) -> bool:
    """Return whether a sandbox of this node has the place of that key. Blocks, for microseconds."""
    return bool(_KEY.fullmatch(key)) and os.path.exists(directory.place(key) / RECORD)


def has(directory: Directory, noun: str, name: str, tenant: str | None = None) -> bool:
    """Return whether this node has a thing of that name that a tenant sees; None stands for any tenant. Blocks."""
    try:
        _find(directory, noun, name, tenant)
    except (NotFound, ValidationFailed):
        return False
    return True


def _find(directory: Directory, noun: str, name: str, tenant: str | None) -> None:
    home, owner = directory.home, tenant or ""
    if noun == "sandbox":
        if not is_taken(directory, check_sandbox_id(name), tenant):
            raise NotFound(name)
    elif noun == "place":
        record = directory.read(name) if is_place(directory, name) else None
        if record is None or not directory.is_known(record):
            raise NotFound(name)
    elif noun in (SNAPSHOT, IMAGE):
        find_record(home, noun, name, owner)
    elif noun == "volume":
        Volumes(Home(home, owner)).get(check_volume_name(name))
    elif noun == "journal":
        find_kept(home, name)
    else:
        raise ValidationFailed(f"no node is asked for a {noun}")
