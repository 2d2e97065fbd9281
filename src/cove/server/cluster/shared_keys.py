"""Keep the API keys of all nodes the same: changes are pushed to all, and pulled again from whoever has others.

Theory of operation. Every node has all keys in its state directory, so it decides alone. A change is written by the
node that got the call, and pushed to the others before the call is answered. The answer to a probe has the digest of a
node's keys; a node that finds another digest pulls all keys from there, and takes over what is newer. So a change that
a node missed, because it was down or cut off, is there within a second of its return.

A revocation must hold on a node that is cut off too. It succeeds only when most nodes have it, and a node that has not
known the keys of most nodes for `hold` seconds accepts no key but the server's own. Any two majorities share a node: so
no revocation that succeeded is unheard of anywhere for longer than that.
"""

import time
from pathlib import Path
from typing import Final

import msgspec

from cove.errors import CoveError, NodeUnavailable, PlacementUnavailable
from cove.http import Request, Response
from cove.local.api_keys import ApiKeys, KeyState
from cove.local.threads import in_thread
from cove.model.cluster import Member
from cove.server.cluster.nodes import Health, Nodes, Report
from cove.server.cluster.peer import PeerClient, Reply
from cove.tasks import together

KEYS_PATH: Final = "/v1/cluster/keys"
_SECONDS: Final = 3.0
_MOST_BYTES: Final = 16 << 20
_JSON: Final = ((b"content-type", b"application/json"),)


class SharedKeys:
    """The keys of this node, and what the others have of them."""

    def __init__(self, home: Path, nodes: Nodes, client: PeerClient, hold: float) -> None:
        self._keys = ApiKeys(home)
        self._nodes = nodes
        self._client = client
        self._hold = hold
        self._digest: tuple[tuple[int, int], str] = (0, 0), ""
        self._judged: tuple[object, object, float] = None, None, 0.0

    def digest(self) -> str:
        """Return what is the same on nodes that have the same keys. Blocks."""
        stamps = self._keys.stamps()
        if self._digest[0] != stamps or 0 in stamps:
            self._digest = stamps, self._keys.state().digest()
        return self._digest[1]

    def check_current(self) -> None:
        """Raise NodeUnavailable where this node may not have heard of a revocation for longer than it may be."""
        age = self._age()
        if age > self._hold:
            raise NodeUnavailable(
                f"node {self._nodes.node} has not reached most nodes of the cluster for more than {self._hold:g} s, "
                "and cannot say whether this key still holds: nothing was started; use another node",
                node=self._nodes.node,
            )

    def _age(self) -> float:
        """Return for how long a majority of nodes, this one among them, may have had other keys than this one."""
        health, members = self._nodes.health, self._nodes.members
        if self._judged[0] is not health or self._judged[1] is not members:  # both are replaced, never changed
            self._judged = health, members, self._last_known()
        return time.time() - self._judged[2]

    def _last_known(self) -> float:
        """Return when this node last knew the keys of a majority; for one that is alone, that is always."""
        names = self._nodes.members.keys() - {self._nodes.node}
        known = (self._nodes.health.get(name, Health()).keys_at for name in names)
        times = sorted((each.timestamp() for each in known if each is not None), reverse=True)
        needed = len(self._nodes.members) // 2
        if not needed:
            return float("inf") if self._nodes.members else 0.0
        return times[needed - 1] if len(times) >= needed else 0.0

    def check_majority(self) -> None:
        """Raise PlacementUnavailable where too few nodes could be told of a change."""
        there = 1 + len(self._nodes.others())
        if there * 2 <= len(self._nodes.members):
            raise PlacementUnavailable(
                f"only {there} of {len(self._nodes.members)} nodes are there: keys are made and replaced when most are"
            )

    def check_told(self, missing: list[str]) -> None:
        """Raise NodeUnavailable where most nodes have not heard of a revocation: it does not hold there yet."""
        total = len(self._nodes.members)
        if (total - len(missing)) * 2 <= total:
            raise NodeUnavailable(
                f"the key is revoked here, and not yet on {', '.join(missing)}, which do not answer: they hear of it "
                "when they do. Revoke it on one of them too, if you can reach it",
                node=missing[0],
            )

    async def push(self) -> list[str]:
        """Tell all nodes the keys of this one; returns the nodes that do not have them."""
        body = msgspec.json.encode(await in_thread(self._keys.state))
        others = self._nodes.others()
        replies = await together(self._call(each, "POST", body) for each in others)
        told = {each.name for each, reply in zip(others, replies, strict=True) if reply is not None}
        return sorted(set(self._nodes.members) - told - {self._nodes.node})

    async def pull(self, member: Member, report: Report) -> bool:
        """Take over what a node has and this one has not; returns whether this one now has it all."""
        if report.keys == await in_thread(self.digest):
            return True
        reply = await self._call(member, "GET", b"")
        if reply is None or len(reply.body) > _MOST_BYTES:
            return False
        try:
            await in_thread(self._merge, reply.body)
        except (CoveError, msgspec.DecodeError):
            return False
        return True

    async def _call(self, member: Member, verb: str, body: bytes) -> Reply | None:
        try:
            reply = await self._client.call(member, verb, KEYS_PATH, body, seconds=_SECONDS)
        except CoveError:
            return None
        return reply if reply.status == 200 else None

    async def answer(self, request: Request) -> Response:
        """Answer another node: give the keys of this one, or take over what is newer there."""
        if request.method == "POST":
            await in_thread(self._merge, await request.read(_MOST_BYTES))
            return Response(200, _JSON, b"true")
        return Response(200, _JSON, msgspec.json.encode(await in_thread(self._keys.state)))

    def _merge(self, body: bytes) -> None:
        self._keys.merge(msgspec.json.decode(body, type=KeyState))
