"""Route requests between the nodes of a cluster, before any protocol sees them.

Theory of operation. Every worker of every node routes for all nodes. A request that comes from a client is either
answered here, as without a cluster, or relayed raw to the one node it is for, whose worker answers it as if the client
had come there. It gets the peer key in the place of the caller's, and a header that makes it a hop: what is a hop is
answered where it arrives, or refused with 421, and never relayed again. So no request goes in circles.

Which node it is for is in the id of a sandbox that was made (`core/cluster`), or found by asking (`whereabouts`). What
is remembered, and what the id says, may be out of date: 421 has the first node ask again, once per node.

Who is not a node cannot pretend to be one: the headers of a hop are taken off every request before anything else, and
whoever sends them without the peer key is refused.
"""

import logging
from collections.abc import Coroutine
from contextlib import closing
from types import TracebackType
from typing import Final

from cove.core.cluster import claim_keepers
from cove.core.exposure import Label
from cove.errors import (
    LimitExceeded,
    PortNotExposed,
    SandboxNotFound,
)
from cove.http import Answer, Handler, Request, Response
from cove.local.threads import in_thread
from cove.model import SandboxSpec
from cove.model.cluster import Member
from cove.server.cluster.arrivals import Arrivals
from cove.server.cluster.creation import Creation, is_of_quota
from cove.server.cluster.departures import Departures
from cove.server.cluster.engine_placement import EnginePlacement
from cove.server.cluster.fetching import Fetching
from cove.server.cluster.gathering import Gathering, name_missing
from cove.server.cluster.moving import Moving
from cove.server.cluster.names import ClaimedNames
from cove.server.cluster.nodes import Nodes, Report
from cove.server.cluster.peer import Arrival, Hop, PeerClient, PeerKey
from cove.server.cluster.peer_answers import PeerAnswers
from cove.server.cluster.placement import Placement
from cove.server.cluster.relay import (
    MISDIRECTED,
    NODE_HEADER,
    QUOTA_HEADER,
    REFUSED_HEADER,
    FindNext,
    PeerRelay,
    PeerUpstreams,
)
from cove.server.cluster.requester import Requester, requester_of, tenant_of_arrival
from cove.server.cluster.shared_keys import SharedKeys
from cove.server.cluster.shared_quotas import ClusterQuotas
from cove.server.cluster.shipment import IMAGE, SNAPSHOT
from cove.server.cluster.static_placement import StaticPlacement
from cove.server.cluster.suitability import Suitability
from cove.server.cluster.targets import Kind, Target, find_target
from cove.server.cluster.whereabouts import Whereabouts, has, is_place
from cove.server.configuration import ClusterSettings
from cove.server.e2b.protocol import read_query
from cove.server.error_response import describe_cove_error, error_response
from cove.server.gateway.auth import Authenticator
from cove.server.gateway.rate import Rates
from cove.server.preview.handler import Preview, find_visit
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.slots import read_slot
from cove.server.sandboxes.starter import ClaimedElsewhere, Starter
from cove.tasks import Beginning, begun
from cove.wire.errors import ErrorBody

_FAILURES: Final = 300

log = logging.getLogger("cove.server")

Coming = Answer | Coroutine[object, object, Answer]


class Router:
    """The first handler of a worker of a node."""

    def __init__(
        self,
        directory: Directory,
        starter: Starter,
        authenticator: Authenticator,
        peer_key: PeerKey,
        settings: ClusterSettings,
    ) -> None:
        self._directory = directory
        self._starter = starter
        self._authenticator = authenticator
        self._peer_key = peer_key
        client = PeerClient(peer_key)
        self._upstreams = PeerUpstreams()
        self._nodes = self._upstreams.nodes = Nodes(directory.home, client, self._upstreams.drop)
        self._static = StaticPlacement(directory.home, self._nodes, client)
        self._placement: Placement = self._static
        if settings.ray is not None:
            timeout = settings.ray.grant_timeout
            self._placement = EnginePlacement(directory.server, lambda: self._nodes.known, timeout)
        self._names = ClaimedNames(self._placement, directory)
        self._whereabouts = Whereabouts(directory, self._nodes, client, self._placement)
        self._gathering = Gathering(self._nodes, client)
        self._fetching = Fetching(directory.home, self._nodes, client, starter.configuration.max_image_jobs)
        suitability = Suitability(self._nodes, self._whereabouts, self._fetching.holdings)
        self._creation = Creation(
            self._nodes,
            self._whereabouts,
            suitability,
            self._placement,
            self._answer,
            self._relay,
            self._count_slots,
        )
        self._departures = Departures(directory, self._nodes, client, self._placement)
        self._arrivals = Arrivals(
            directory, starter.configuration, self._nodes, client, self._placement, self._fetching
        )
        self._moves = Moving(directory, self._nodes, self._departures, self._arrivals)
        self._rates = Rates(directory.home)
        self.keys = SharedKeys(directory.home, self._nodes, client, settings.keys_hold)
        self._quotas = ClusterQuotas(directory, self._nodes, client)
        self._peer_answers = PeerAnswers(directory, self._nodes, self._static, self._moves, self.keys, self._quotas)
        self._handler: Handler
        self._preview: Preview

    async def __aenter__(self) -> "Router":
        self._nodes.on_elected = self._claim_names_again
        self._nodes.on_report = self._hear
        self._starter.quotas = self._quotas
        await self._nodes.__aenter__()
        self._starter.names = self._names
        self._starter.things = self._fetching
        self._starter.mover = self._departures
        self._moves.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._moves.aclose()
        await self._nodes.__aexit__(kind, error, traceback)
        await self._upstreams.aclose()
        self._rates.close()

    async def _hear(self, member: Member, report: Report) -> bool:
        """Take over the keys of a node that answered a probe, and what tenants have there."""
        if member.name == self._nodes.node:
            return True
        has_all = await self.keys.pull(member, report)
        await self._quotas.pull(member)
        return has_all

    async def _claim_names_again(self) -> None:
        for id in await self._names.claim_again():
            log.warning("sandbox %s is superseded: another node has its name; it is kept here, and not reached", id)

    def before(self, handler: Handler, preview: Preview) -> Handler:
        """Answer what is for other nodes or comes from them, and leave the rest to these handlers."""
        self._handler, self._preview = handler, preview
        return self._handle

    async def ask_others(self, path: str, tenant: str) -> list[bytes]:
        """Return what the other nodes have at a path, for a tenant."""
        return await self._gathering.ask_others(path, tenant)

    def visit(self, request: Request) -> Coming:
        """Answer a visitor of previews: of this node, of the one that the label names, or where it has moved to."""
        visit = find_visit(request, "http")
        node = None if visit is None else self._whereabouts.recall_place(visit.label)
        if visit is None or node == self._nodes.node:
            return self._preview(request)
        if node is None:
            return self._search_and_visit(request, visit.label)
        return self._relay_visit(node, visit.label.key)

    async def _search_and_visit(self, request: Request, label: Label) -> Answer:
        node = await self._whereabouts.search_place(label.key) or self._whereabouts.birthplace_of(label)
        if node is not None and node != self._nodes.node:
            return self._relay_visit(node, label.key)
        answer = self._preview(request)
        return await answer if isinstance(answer, Coroutine) else answer

    def _relay_visit(self, node: str, key: str) -> PeerRelay:
        tried = {node}

        async def find_next(status: int, named: str) -> str:
            found = await self._whereabouts.search_place(key)
            if found is None or found in tried:
                raise PortNotExposed("there is nothing here")
            tried.add(found)
            return found

        return self._relay(node, Requester(Hop.PREVIEW, None), None, find_next)

    def _handle(self, request: Request) -> Coming:
        arrival = self._peer_key.take(request)
        if arrival is not None:
            return self._answer_peer(request, arrival)
        target = find_target(request)
        requester = None if target is None else requester_of(request, target, self._authenticator)
        if target is None or requester is None:
            return self._handler(request)  # which refuses what it must in its own words
        if target.kind is Kind.SANDBOX or target.kind is Kind.MADE_BY_USE:
            return self._to_sandbox(request, target, requester)
        return self._share(request, target, requester)

    def _count_slots(self, spec: SandboxSpec) -> int:
        """Return how many slots a new sandbox takes, with the defaults of this node. Blocks."""
        return read_slot(self._directory.home).count(self._starter.configuration.complete(spec).limits)

    async def _answer(self, request: Request) -> Answer:
        answer = self._handler(request)
        return await answer if isinstance(answer, Coroutine) else answer

    # From other nodes

    def _answer_peer(self, request: Request, arrival: Arrival) -> Coming:
        if arrival.hop is Hop.PREVIEW:
            return self._answer_visit(request, arrival.origin)
        if arrival.hop is Hop.NODE:
            return self._peer_answers.answer(request)
        if arrival.hop is Hop.VOUCHED:
            request.headers[b"authorization"] = b"Bearer " + self._authenticator.vouch(arrival.principal)
        target = find_target(request)
        if target is not None and target.kind is Kind.SANDBOX:
            tenant = tenant_of_arrival(request, arrival, self._authenticator)
            if not self._whereabouts.is_here(target.name, tenant):
                return _misdirected(f"sandbox {target.name} is not on node {self._nodes.node}")
        answer = self._handler(request)
        return self._redirect_claimed(answer) if target is not None and isinstance(answer, Coroutine) else answer

    def _answer_visit(self, request: Request, peer: str) -> Coming:
        visit = find_visit(request, "http")
        if visit is not None and not is_place(self._directory, visit.label.key):
            return _misdirected(f"this preview is not on node {self._nodes.node}")
        return self._preview(request, peer)

    @begun
    async def _redirect_claimed(self, coming: Coroutine[object, object, Answer]) -> Answer:
        try:
            with closing(coming):
                await Beginning()
                return await coming
        except ClaimedElsewhere as error:
            return _misdirected(error.message, error.node)
        except LimitExceeded as error:
            if not is_of_quota(error):
                raise
            answer = describe_cove_error(error)
            return Response(answer.status, (*answer.headers, (QUOTA_HEADER, b"1")), answer.body)

    # For one sandbox

    def _to_sandbox(self, request: Request, target: Target, requester: Requester) -> Coming:
        node = self._whereabouts.recall(target.name, requester.tenant)
        if node is None:
            return self._search_and_answer(request, target, requester)
        if node == self._nodes.node:
            return self._handler(request)
        return self._relay_to_sandbox(node, target, requester)

    async def _search_and_answer(self, request: Request, target: Target, requester: Requester) -> Answer:
        node = await self._search(target, requester)
        if node is None and target.kind is Kind.MADE_BY_USE and self._nodes.members:
            born = self._whereabouts.birthplace(target.name)
            node = born or claim_keepers(target.name, self._nodes.members.values())[0].name
        if node is not None and node != self._nodes.node:
            return self._relay_to_sandbox(node, target, requester)
        try:
            return await self._answer(request)
        except ClaimedElsewhere as error:
            if target.kind is not Kind.MADE_BY_USE:
                raise
            return self._relay_to_sandbox(error.node, target, requester)

    async def _search(self, target: Target, requester: Requester) -> str | None:
        """Ask all nodes; for whoever has shown no key that this one knows, within bounds."""
        if requester.principal is None:
            return await self._whereabouts.search_for_stranger(target.name, requester.tenant)
        return await self._whereabouts.search(target.name, requester.tenant)

    def _relay_to_sandbox(self, node: str, target: Target, requester: Requester) -> PeerRelay:
        tried = {node}

        async def find_next(status: int, named: str) -> str:
            is_named = target.kind is Kind.MADE_BY_USE and named not in ("", *tried)
            found = named if is_named else await self._search(target, requester)
            if found is None or found in tried:
                raise SandboxNotFound(f"there is no sandbox {target.name}", id=target.name)
            tried.add(found)
            return found

        return self._relay(node, requester, target, find_next)

    def _relay(
        self,
        node: str,
        requester: Requester,
        target: Target | None = None,
        find_next: FindNext | None = None,
        refusals: tuple[int, ...] = (MISDIRECTED,),
    ) -> PeerRelay:
        hop, _, principal = requester
        if principal is not None:
            self._rates.take(principal)
        return PeerRelay(
            self._upstreams,
            node,
            self._peer_key,
            hop,
            find_next=find_next,
            refusals=refusals,
            describe=None if target is None else target.describe,
            principal=principal,
        )

    # For several nodes, or for any

    async def _share(self, request: Request, target: Target, requester: Requester) -> Answer:
        match target.kind:
            case Kind.CREATE:
                return await self._creation.create(request, requester)
            case Kind.PLACE:
                return await self._place(request, target, requester)
            case Kind.THING:
                return await self._to_thing(request, target, requester)
            case Kind.KEYS:
                return await self._change_keys(request, requester)
        first = await self._answer(request)
        if not isinstance(first, Response) or first.status != 200:
            return first
        if target.kind is Kind.LIST:
            return await self._gathering.merge_lists(request, requester, first)
        if target.kind is Kind.PAGES:
            return await self._gathering.merge_pages(request, requester, first, read_query(request.query))
        return await self._gathering.merge_metrics(request, requester, first)

    async def _change_keys(self, request: Request, requester: Requester) -> Answer:
        """Change a key here, and tell all nodes that answer; the others are named. See `SharedKeys`."""
        if requester.principal is None or not requester.principal.is_admin:
            return await self._answer(request)
        is_revocation = request.method == "DELETE"
        if not is_revocation:
            self.keys.check_majority()
        answer = await self._answer(request)
        if not isinstance(answer, Response) or answer.status >= _FAILURES:
            return answer
        missing = await self.keys.push()
        if is_revocation:
            self.keys.check_told(missing)
        return Response(answer.status, (*answer.headers, *name_missing(missing)), answer.body)

    async def _place(self, request: Request, target: Target, requester: Requester) -> Answer:
        """Let the node with most room make it; one that is made once under a name, the node that has that name."""
        nodes = self._nodes.candidates()
        if target.name:
            nodes = [each.name for each in claim_keepers(target.name, self._nodes.members.values())]
        if not nodes or nodes[0] == self._nodes.node:
            return await self._answer(request)
        self._nodes.placed(nodes[0])
        return self._relay(nodes[0], requester, target)

    async def _to_thing(self, request: Request, target: Target, requester: Requester) -> Answer:
        if target.noun in (IMAGE, SNAPSHOT):
            return await self._to_copied(request, target, requester)
        if not await in_thread(has, self._directory, target.noun, target.name, requester.tenant):
            holders, _ = await self._whereabouts.holders(target.noun, target.name, requester.tenant)
            if holders and holders[0] != self._nodes.node:
                return self._relay(holders[0], requester)
        return await self._answer(request)

    async def _to_copied(self, request: Request, target: Target, requester: Requester) -> Answer:
        """Let the node that has an image or a snapshot answer, and one with a copy only while there is no other."""
        holdings, tenant = self._fetching.holdings, requester.tenant or ""
        here, node = await holdings.here(target.noun, target.name, tenant), self._nodes.node
        if here is None or here.origin:
            found = await holdings.find(target.noun, target.name, tenant)
            node = next(iter((*found.originals, *found.copies)), node)
        if request.method == "DELETE":
            await holdings.forget_copies(target.noun, target.name, tenant, but=node)
        return await self._answer(request) if node == self._nodes.node else self._relay(node, requester)


def _misdirected(why: str, node: str = "") -> Response:
    named = ((NODE_HEADER, node.encode()),) if node else ()
    headers = ((REFUSED_HEADER, b"1"), *named)
    return error_response(MISDIRECTED, ErrorBody(why, "SANDBOX_NOT_FOUND"), headers)
