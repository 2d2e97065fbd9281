"""The names that this node claims for its sandboxes, so that no two nodes have a sandbox of one name."""

from collections.abc import Callable, Coroutine

from cove.core.cluster import birth_code, claim_name
from cove.errors import PlacementUnavailable
from cove.local.threads import in_thread
from cove.model.cluster import Claim, Member
from cove.server.cluster.placement import Placement
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.moves import find_out, forget_named, is_named
from cove.server.sandboxes.starter import ClaimedElsewhere


class ClaimedNames:
    """Claims by a placement, for the tenant of a directory.

    An id that was made here needs no claim, unless it has left once: nobody else makes it.
    """

    def __init__(self, placement: Placement, directory: Directory) -> None:
        self._placement = placement
        self._directory = directory

    def of(self, tenant: str) -> "ClaimedNames":
        """Return those of a tenant: ids are its own."""
        return ClaimedNames(self._placement, self._directory.of(tenant))

    def _name(self, id: str) -> str:
        return claim_name(self._directory.tenant, id)

    def _here(self) -> Member:
        members = self._placement.members()
        if not members.members:
            raise PlacementUnavailable("this node does not know its cluster yet: try again")
        return members.here

    async def claim(self, id: str) -> None:
        """Claim a name; raises ClaimedElsewhere, and PlacementUnavailable if nobody can say."""
        here = self._here()
        if await self._has_claim(id, here):
            claim = await self._placement.claim(self._name(id), here.name)
            if claim.node != here.name:
                raise ClaimedElsewhere(id, claim.node)

    async def release(self, id: str) -> None:
        """Free the name of a sandbox that could not be made, if nothing has it here."""
        free = await self.destroying(id)
        if await in_thread(self._directory.find, id) is None:
            await free()

    async def destroying(self, id: str) -> Callable[[], Coroutine[object, object, None]]:
        """Return what frees the name. A claim that nobody can be asked about stays: it says that the name is here."""
        here, claim = self._here(), None
        if await self._has_claim(id, here):
            try:
                claim = await self._placement.find(self._name(id))
            except PlacementUnavailable:
                claim = None

        async def free(held: Claim | None = claim) -> None:
            if held is not None and held.node == here.name:
                try:
                    await self._placement.unclaim(held)
                except PlacementUnavailable:
                    return
                await in_thread(forget_named, self._directory, id)

        return free

    async def _has_claim(self, id: str, here: Member) -> bool:
        return birth_code(id) != here.code or await in_thread(is_named, self._directory, id)

    async def claim_again(self) -> list[str]:
        """Claim the names of all sandboxes that are here; returns those that other nodes have taken meanwhile."""
        lost = []
        for record in await in_thread(self._directory.list):
            if await in_thread(find_out, self._directory.of(record.tenant), record.id) is not None:
                continue
            try:
                await self.of(record.tenant).claim(record.id)
            except ClaimedElsewhere:
                lost.append(record.id)
        return lost
