"""Placement by the list in the configuration: no room but what nodes have, and claims kept by the nodes themselves.

The claim of a name is kept by one node, which every node finds by the name alone (rendezvous hashing). While that node
does not answer, names that it keeps cannot be claimed; everything else goes on.
"""

from pathlib import Path
from typing import Final

import msgspec

from cove.core.cluster import claim_keepers
from cove.errors import CoveError, NoCapacity, PlacementUnavailable
from cove.http import Request, Response
from cove.local.threads import in_thread
from cove.model.cluster import Claim, Members
from cove.server.cluster.claims import Claims
from cove.server.cluster.nodes import Nodes
from cove.server.cluster.peer import PeerClient

CLAIMS_PATH: Final = "/v1/cluster/claims"
_SECONDS: Final = 5.0
_MOST_BODY_BYTES: Final = 4096


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that a node asks for; the verb says what is to become of it."""

    name: str
    node: str = ""
    epoch: int | None = None


class StaticPlacement:
    """Asks the keeper of a name, or is it."""

    def __init__(self, home: Path, nodes: Nodes, client: PeerClient) -> None:
        self._kept = Claims(home)
        self._nodes = nodes
        self._client = client

    def members(self) -> Members:
        """Return the list."""
        return self._nodes.known

    async def grant(self, slots: int) -> str:
        """Refuse: the nodes of a list have what they have."""
        raise NoCapacity(f"no node has room for {slots} more: destroy some sandboxes, or add a node to the list")

    async def release(self, node: str, slots: int) -> None:
        """Do nothing: nothing was granted."""

    async def claim(self, name: str, node: str, epoch: int | None = None) -> Claim:
        """Claim a name for a node, and return the claim that holds: see `Placement.claim`."""
        found = await self._ask("PUT", Wish(name=name, node=node, epoch=epoch))
        assert found is not None
        return found

    async def find(self, name: str) -> Claim | None:
        """Return who has a name."""
        return await self._ask("POST", Wish(name=name))

    async def unclaim(self, claim: Claim) -> None:
        """Free a name, if exactly this claim still holds it."""
        await self._ask("DELETE", Wish(name=claim.name, node=claim.node, epoch=claim.epoch))

    async def _ask(self, verb: str, wish: Wish) -> Claim | None:
        keeper = claim_keepers(wish.name, self._nodes.members.values())[0]
        if keeper.name == self._nodes.node:
            return await in_thread(self._change, verb, wish)
        try:
            self._nodes.check(keeper.name)
            reply = await self._client.call(keeper, verb, CLAIMS_PATH, msgspec.json.encode(wish), seconds=_SECONDS)
        except CoveError as error:
            raise PlacementUnavailable(f"who has the name {wish.name} is not known: {error.message}") from error
        if reply.status != 200:
            raise PlacementUnavailable(f"node {keeper.name} does not say who has {wish.name}: {reply.body[:200]!r}")
        return msgspec.json.decode(reply.body, type=Claim | None)

    def _change(self, verb: str, wish: Wish) -> Claim | None:
        if verb == "PUT":
            return self._kept.claim(wish.name, wish.node, wish.epoch)
        if verb == "DELETE":
            self._kept.unclaim(Claim(name=wish.name, node=wish.node, epoch=wish.epoch or 0))
            return None
        return self._kept.find(wish.name)

    async def answer(self, request: Request) -> Response:
        """Answer another node about a name that is kept here."""
        wish = msgspec.json.decode(await request.read(_MOST_BODY_BYTES), type=Wish)
        found = await in_thread(self._change, request.method, wish)
        return Response(200, ((b"content-type", b"application/json"),), msgspec.json.encode(found))
