"""The seam to whoever says which nodes there are, how much room they have, and who has a name.

Two stand behind it: the list in the configuration (`static_placement`), and an engine whose agent runs beside the
server. Neither is asked on the way of a request to a sandbox that is there: members are read from the state directory.
"""

from typing import Protocol

from cove.model.cluster import Claim, Members


class Placement(Protocol):
    """Grants room and keeps claims. Every call has a bound of its own; those that fail have started nothing."""

    def members(self) -> Members:
        """Return the nodes that were known last. Waits for nothing."""
        ...

    async def grant(self, slots: int) -> str:
        """Get more room, and return the name of the node that has it: NoCapacity, or PlacementUnavailable."""
        ...

    async def release(self, node: str, slots: int) -> None:
        """Give room back that a node does not need any more."""
        ...

    async def claim(self, name: str, node: str, epoch: int | None = None) -> Claim:
        """Claim a name for a node, and return the claim that holds: it may be another node's.

        A node that has the name already gets a claim with a higher epoch. With `epoch`, the claim of another node is
        taken over if it has exactly that one: so a sandbox is moved, once. PlacementUnavailable if nobody can say.
        """
        ...

    async def find(self, name: str) -> Claim | None:
        """Return who has a name; PlacementUnavailable if nobody can say."""
        ...

    async def unclaim(self, claim: Claim) -> None:
        """Free a name, if exactly this claim still holds it."""
        ...
