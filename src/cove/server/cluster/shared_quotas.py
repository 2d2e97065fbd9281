"""Count the quotas of tenants over all nodes.

Theory of operation. Who makes or starts a sandbox first reserves it on its own node, where it counts from then on, and
then asks all other nodes what the tenant has there. Of two nodes that do so at once, at least one sees the other's
reservation: so never more than the quota runs. That both refuse is avoided by an order: a node waits until what is
reserved on nodes with later names is settled, and they do not wait for it.

What a node that does not answer has is what it said last. It counts the others in the same way. So while nodes are cut
off from each other, each part may use up what was left of a quota, until `keys_hold` ends it.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from typing import Final

import msgspec

from cove.core.quota import Use
from cove.errors import CoveError, LimitExceeded
from cove.http import Request, Response
from cove.local.api_keys import ApiKeys
from cove.local.threads import finished, in_thread
from cove.model import Limits, Quota
from cove.model.api_key import check_key_name
from cove.model.cluster import Member
from cove.server.cluster.nodes import Nodes
from cove.server.cluster.peer import PeerClient
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.quotas import check_reserved, note_elsewhere, quota_of, reserved, use_of
from cove.tasks import together

USE_PATH: Final = "/v1/cluster/use"
_SECONDS: Final = 3.0
_PULL_SECONDS: Final = 5.0
_AGAIN_SECONDS: Final = 0.05
_MOST_TRIES: Final = 60
_MOST_BODY_BYTES: Final = 1 << 20
_JSON: Final = ((b"content-type", b"application/json"),)
_COUNTED: Final = ("max_sandboxes", "max_memory", "max_cpus", "max_disk")


class ClusterQuotas:
    """Asks the other nodes what a tenant has, and tells them what it has here."""

    def __init__(self, directory: Directory, nodes: Nodes, client: PeerClient) -> None:
        self._directory = directory
        self._nodes = nodes
        self._client = client
        self._pulled: dict[str, float] = {}

    def reserve(self, directory: Directory, limits: Limits, key: str = "") -> AbstractAsyncContextManager[str]:
        """Reserve what a sandbox may take while it is made or started; gives its name. Raises LimitExceeded."""
        return self._reserve(directory, limits, key)

    @asynccontextmanager
    async def _reserve(self, directory: Directory, limits: Limits, key: str) -> AsyncIterator[str]:
        quota = await in_thread(quota_of, directory.home, directory.tenant)
        if all(getattr(quota, name) is None for name in _COUNTED):
            yield ""
            return
        with ExitStack() as stack:
            name = await finished(stack.enter_context, reserved(directory, quota, limits, key))
            await self._settle(directory, quota, limits, key, name)
            yield name

    async def _settle(self, directory: Directory, quota: Quota, limits: Limits, key: str, name: str) -> None:
        """Return when what is reserved fits beside all that other nodes have. Raises LimitExceeded."""
        for number in range(_MOST_TRIES):
            uses = await self._ask_all(directory)
            try:
                await in_thread(check_reserved, directory, quota, limits, key, name, uses.values())
                return
            except LimitExceeded:
                first = {node: use.settled() if node > self._nodes.node else use for node, use in uses.items()}
                if first == uses or number == _MOST_TRIES - 1:
                    raise
                await in_thread(check_reserved, directory, quota, limits, key, name, first.values())
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _ask_all(self, directory: Directory) -> dict[str, Use]:
        others = self._nodes.others()
        found = await together(self._ask(each, [directory.tenant]) for each in others)
        uses = {
            each.name: answer[directory.tenant]
            for each, answer in zip(others, found, strict=True)
            if directory.tenant in answer
        }
        return await in_thread(note_elsewhere, directory, uses, self._other_names())

    def _other_names(self) -> set[str]:
        return set(self._nodes.members) - {self._nodes.node}

    async def _ask(self, member: Member, tenants: list[str]) -> dict[str, Use]:
        try:
            body = msgspec.json.encode(tenants)
            reply = await self._client.call(member, "POST", USE_PATH, body, seconds=_SECONDS)
            return msgspec.json.decode(reply.body, type=dict[str, Use]) if reply.status == 200 else {}
        except (CoveError, msgspec.DecodeError):
            return {}

    async def pull(self, member: Member) -> None:
        """Remember now and then what tenants with quotas have on a node, for when it does not answer."""
        if time.monotonic() - self._pulled.get(member.name, 0.0) < _PULL_SECONDS:
            return
        self._pulled[member.name] = time.monotonic()
        tenants = await in_thread(self._bounded)
        found = await self._ask(member, tenants) if tenants else {}
        for tenant in found.keys() & set(tenants):
            uses = {member.name: found[tenant]}
            await in_thread(note_elsewhere, self._directory.of(tenant), uses, self._other_names())

    def _bounded(self) -> list[str]:
        records = ApiKeys(self._directory.home).read()
        return sorted({record.tenant for record in records if record.tenant and record.quota != Quota()})

    async def answer(self, request: Request) -> Response:
        """Tell another node what tenants have here."""
        tenants = msgspec.json.decode(await request.read(_MOST_BODY_BYTES), type=list[str])
        uses = await in_thread(self._uses, tenants)
        return Response(200, _JSON, msgspec.json.encode(uses))

    def _uses(self, tenants: list[str]) -> dict[str, Use]:
        return {tenant: use_of(self._directory.of(check_key_name(tenant))) for tenant in tenants}
