"""Merge what all nodes answer: lists, pages of lists, and metrics. A node that does not answer is named.

The answer of this node comes first, also as the check of the caller's right: others are asked only if it is 200.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cove.errors import CoveError
from cove.http import Headers, Request, Response
from cove.model.cluster import Member
from cove.server.cluster.nodes import Nodes
from cove.server.cluster.peer import Hop, PeerClient, Reply
from cove.server.cluster.requester import Requester
from cove.server.credentials import TENANT_HEADER
from cove.tasks import together

UNREACHABLE: Final = b"cove-unreachable"
NEXT_TOKEN: Final = b"x-next-token"
_SECONDS: Final = 5.0
_CREDENTIALS: Final = (b"authorization", b"x-api-key")
_IDENTITY: Final = ("id", "name", "owner", "key")
_OF_HISTOGRAMS: Final = ("_bucket", "_sum", "_count")  # samples of the family that they follow
_Item = dict[str, object]


class Gathering:
    """Asks the other nodes what this one was asked."""

    def __init__(self, nodes: Nodes, client: PeerClient) -> None:
        self._nodes = nodes
        self._client = client

    async def merge_lists(self, request: Request, requester: Requester, first: Response) -> Response:
        """Merge lists; things that are on several nodes, as images, are told once."""
        replies, missing = await self._ask(request, requester)
        items = [item for body in (_body(first), *(reply.body for reply in replies)) for item in _items(body)]
        unique = {msgspec.json.encode([item.get(name) for name in _IDENTITY]): item for item in reversed(items)}
        found = sorted(unique.values(), key=lambda item: str(item.get("created_at", item.get("destroyed_at", ""))))
        return Response(200, (*first.headers, *name_missing(missing)), msgspec.json.encode(found))

    async def merge_pages(
        self, request: Request, requester: Requester, first: Response, query: Mapping[str, str]
    ) -> Response:
        """Merge pages of E2B's lists: each node gives the page after the same token, of which the first items count."""
        replies, missing = await self._ask(request, requester)
        items = [item for body in (_body(first), *(reply.body for reply in replies)) for item in _items(body)]
        is_ascending = query.get("order") == "asc"
        items.sort(key=lambda item: (str(item["startedAt"]), str(item["sandboxID"])), reverse=not is_ascending)
        tokens = [*(reply.headers.get(NEXT_TOKEN, b"") for reply in replies), dict(first.headers).get(NEXT_TOKEN, b"")]
        limit = min(int(query.get("limit", "100")), 100)
        following = _next_token(items, limit, [token.decode("latin-1") for token in tokens if token], is_ascending)
        headers = [header for header in first.headers if header[0] != NEXT_TOKEN]
        headers += [(NEXT_TOKEN, following.encode())] if following else []
        return Response(200, (*headers, *name_missing(missing)), msgspec.json.encode(items[:limit]))

    async def merge_metrics(self, request: Request, requester: Requester, first: Response) -> Response:
        """Merge metrics: the samples of each node have its name."""
        replies, missing = await self._ask(request, requester)
        texts = {
            self._nodes.node: _body(first),
            **{reply.headers[b"cove-node"].decode(): reply.body for reply in replies},
        }
        text = merge_metrics({name: body.decode() for name, body in texts.items()}, missing)
        return Response(200, first.headers, text.encode())

    async def ask_others(self, path: str, tenant: str) -> list[bytes]:
        """Return what the other nodes that answer have at a path, for a tenant."""
        headers = {TENANT_HEADER: tenant.encode()} if tenant else {}
        others = [each for each in self._nodes.members.values() if each.name != self._nodes.node]
        requester = Requester(Hop.VOUCHED, tenant)
        found = await together(self._get(each, path, requester, headers) for each in others)
        return [reply.body for reply in found if reply is not None]

    async def _ask(self, request: Request, requester: Requester) -> tuple[list[Reply], list[str]]:
        others = [each for each in self._nodes.members.values() if each.name != self._nodes.node]
        passed_on = (TENANT_HEADER, *(_CREDENTIALS if requester.hop is Hop.CARRIED else ()))
        headers = {name: value for name, value in request.headers.items() if name in passed_on}
        target = f"{request.path}?{request.query}" if request.query else request.path
        found = await together(self._get(each, target, requester, headers) for each in others)
        missing = [member.name for member, reply in zip(others, found, strict=True) if reply is None]
        return [reply for reply in found if reply is not None], missing

    async def _get(
        self, member: Member, target: str, requester: Requester, headers: dict[bytes, bytes]
    ) -> Reply | None:
        hop, principal = requester.hop, requester.principal
        try:
            self._nodes.check(member.name)
            reply = await self._client.call(
                member, "GET", target, seconds=_SECONDS, hop=hop, headers=headers, principal=principal
            )
        except CoveError:
            return None
        reply.headers[b"cove-node"] = member.name.encode()
        return reply if reply.status == 200 else None


def merge_metrics(texts: Mapping[str, str], missing: Sequence[str]) -> str:
    """Return one text in Prometheus' format in which every sample has the label of its node."""
    families: dict[str, list[str]] = {"up": ["# HELP cove_node_up Nodes that answer.", "# TYPE cove_node_up gauge"]}
    families["up"] += [f'cove_node_up{{node="{name}"}} 1' for name in texts]
    families["up"] += [f'cove_node_up{{node="{name}"}} 0' for name in missing]
    for node, text in texts.items():
        current = ""
        for line in text.splitlines():
            if line.startswith("#"):
                current = line.split()[2]
                family = families.setdefault(current, [])
                if line not in family:
                    family.append(line)
            else:
                name, labels, rest = line.partition("{") if "{" in line else line.partition(" ")
                label = f'{{node="{node}"' + ("," if labels == "{" else "} ")
                of = current if name.removeprefix(current) in _OF_HISTOGRAMS else name
                families.setdefault(of, []).append(name + label + rest)
    return "\n".join(line for family in families.values() for line in family) + "\n"


def _body(response: Response) -> bytes:
    assert isinstance(response.body, bytes)
    return response.body


def _items(body: bytes) -> Sequence[_Item]:
    return msgspec.json.decode(body, type=list[_Item])


def name_missing(names: Sequence[str]) -> Headers:
    """Return the header that names the nodes that did not answer; none where all did."""
    return ((UNREACHABLE, ", ".join(names).encode()),) if names else ()


def _next_token(items: Sequence[_Item], limit: int, tokens: Sequence[str], is_ascending: bool) -> str:
    """Return where the next page begins; a node's own token stands for its last item."""
    if len(items) <= limit and not tokens:
        return ""
    if len(items) <= limit:
        return min(tokens) if is_ascending else max(tokens)
    last = items[limit - 1]
    moment = "".join(each for each in str(last["startedAt"]).partition("+")[0].rstrip("Z") if each not in "-:")
    return f"{moment}-{last['sandboxID']}"
