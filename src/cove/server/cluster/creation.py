"""Have sandboxes made by the node that suits, and by another one if that has no room."""

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from cove.errors import LimitExceeded, NoCapacity, NodeUnavailable, PlacementUnavailable, ValidationFailed
from cove.http import Answer, Request
from cove.local.threads import in_thread
from cove.model import SandboxSpec
from cove.server.cluster.nodes import Nodes
from cove.server.cluster.placement import Placement
from cove.server.cluster.relay import MISDIRECTED, NO_ROOM, UNREACHABLE, FindNext, PeerRelay
from cove.server.cluster.requester import Requester
from cove.server.cluster.suitability import Suitability, Suitable
from cove.server.cluster.targets import Target
from cove.server.cluster.whereabouts import Whereabouts
from cove.server.sandboxes.starter import ClaimedElsewhere
from cove.wire.coding import decode_json
from cove.wire.requests import CreateSandbox

_MOST_BODY_BYTES: Final = 1 << 20
_MOST_GRANTS: Final = 3  # others may take the room that was granted for a sandbox before it is there
_MOST_CLAIMS: Final = 8  # a name that many claim at once may belong to one after the other
_FULL: Final = "no node of the cluster has room for one more sandbox now: try again later"


class Relaying(Protocol):
    """Relays a request to a node, and to others while those refuse it."""

    def __call__(
        self,
        node: str,
        requester: Requester,
        target: Target | None,
        find_next: FindNext | None,
        refusals: tuple[int, ...],
    ) -> PeerRelay:
        """Return the answer that is on its way."""
        ...


class Creation:
    """Places creations; `answer` is what this node does itself."""

    def __init__(
        self,
        nodes: Nodes,
        whereabouts: Whereabouts,
        suitability: Suitability,
        placement: Placement,
        answer: Callable[[Request], Awaitable[Answer]],
        relay: Relaying,
        count_slots: Callable[[SandboxSpec], int],
    ) -> None:
        self._count_slots = count_slots
        self._nodes = nodes
        self._whereabouts = whereabouts
        self._suitability = suitability
        self._placement = placement
        self._answer = answer
        self._relay = relay

    async def create(self, request: Request, requester: Requester) -> Answer:
        """Have a sandbox made where it fits: where it is or was made already, beside its things, where room is."""
        if not self._nodes.members:
            raise PlacementUnavailable("this node does not know its cluster yet: try again")
        body = await request.read(_MOST_BODY_BYTES)
        request.unread(body)
        try:
            wish = decode_json(body or b"{}", CreateSandbox)
        except ValidationFailed:
            return await self._answer(request)
        node = None if wish.id is None else await self._find(wish.id, requester.tenant)
        slots = await in_thread(self._count_slots, wish.spec)
        if node is not None:
            return await self._try(request, body, requester, Suitable([node], is_bound=True), slots, is_fixed=True)
        suitable = await self._suitability.rank(wish.spec, requester.tenant or "")
        return await self._try(request, body, requester, suitable, slots, is_fixed=False)

    async def _find(self, id: str, tenant: str | None) -> str | None:
        """Return the node that has a sandbox, or that alone may make one with an id that it could have made.

        Where a chosen name was once is no reason to make it there: all nodes are asked.
        """
        born = self._whereabouts.birthplace(id)
        found = self._whereabouts.recall(id, tenant) if born else None
        return found or await self._whereabouts.search(id, tenant) or born

    async def _try(
        self, request: Request, body: bytes, requester: Requester, suitable: Suitable, slots: int, *, is_fixed: bool
    ) -> Answer:
        """Have a sandbox made by the first node that takes it; if none does, by one that gets more room for it.

        Where the node `is_fixed`, or the name turns out to be claimed by one, no other will do. One that has no room
        for it frees the name: others that claim it at the same time go on.
        """
        left = iter(suitable.nodes)
        granted, claims, claimant = 0, 0, ""

        async def find_next(status: int, named: str) -> str:
            nonlocal granted, claims, claimant
            if status == MISDIRECTED and named and claims < _MOST_CLAIMS:
                claims, claimant = claims + 1, named
                return named
            if claimant and status != NO_ROOM:
                raise NodeUnavailable(f"the name belongs to node {claimant}, which cannot make it now", node=claimant)
            claimant = ""
            for node in left:
                return node
            if granted == _MOST_GRANTS:
                raise NoCapacity(_FULL)
            granted += 1
            return await self._get_room(suitable, slots, status)

        node = await find_next(NO_ROOM, "")
        self._nodes.placed(node, slots)
        if node == self._nodes.node:
            try:
                return await self._answer(request)
            except ClaimedElsewhere as error:
                request.unread(body)
                node = await find_next(MISDIRECTED, error.node)
            except LimitExceeded as error:
                if is_fixed or is_of_quota(error):
                    raise
                request.unread(body)
                node = await find_next(NO_ROOM, "")
        return self._relay(node, requester, None, find_next, (MISDIRECTED,) if is_fixed else (MISDIRECTED, NO_ROOM))

    async def _get_room(self, suitable: Suitable, slots: int, status: int) -> str:
        """Return a node that gets more room; a sandbox that is bound to one finds none elsewhere."""
        if suitable.is_bound:
            node = suitable.nodes[0]
            if status == UNREACHABLE:
                raise NodeUnavailable(
                    f"node {node}, which has the volumes, cannot be reached: nothing was started; try again", node=node
                )
            raise NoCapacity(f"node {node}, which has the volumes, has no room now: destroy sandboxes there, or wait")
        if not self._nodes.candidates():
            raise NoCapacity(_FULL)
        node = await self._placement.grant(slots)
        await self._nodes.meet(node)
        return node


def is_of_quota(error: LimitExceeded) -> bool:
    """Return whether the tenant has too much, and not the node too little room."""
    return "limit" in error.details
