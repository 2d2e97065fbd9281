"""Answer what only other nodes ask: who this one is, what it has, claims, shipments, moves, keys and use."""

import os
from typing import Final

import msgspec

import cove
from cove.errors import NotFound
from cove.http import Request, Response
from cove.local.threads import in_thread
from cove.server.cluster.arrivals import MOVES_PATH
from cove.server.cluster.moving import Moving
from cove.server.cluster.nodes import NODE_PATH, Nodes, Report
from cove.server.cluster.shared_keys import KEYS_PATH, SharedKeys
from cove.server.cluster.shared_quotas import USE_PATH, ClusterQuotas
from cove.server.cluster.shipping import Shipping
from cove.server.cluster.static_placement import CLAIMS_PATH, StaticPlacement
from cove.server.cluster.whereabouts import HAS_PATH, has
from cove.server.e2b.protocol import read_query
from cove.server.sandboxes.capacity import read_capacity
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.slots import count_slots
from cove.wire.coding import unquote_text

_JSON: Final = ((b"content-type", b"application/json"),)
_PER_CPU: Final = 64  # so many sandboxes a node is taken to have room for where its configuration does not say


class PeerAnswers:
    """Everything below `/v1/cluster/`, for nodes that ask on their own: what they pass on for a client is not."""

    def __init__(
        self,
        directory: Directory,
        nodes: Nodes,
        static: StaticPlacement,
        moves: Moving,
        keys: SharedKeys,
        quotas: ClusterQuotas,
    ) -> None:
        self._directory = directory
        self._nodes = nodes
        self._static = static
        self._shipping = Shipping(directory.home)
        self._moves = moves
        self._keys = keys
        self._quotas = quotas

    async def answer(self, request: Request) -> Response:
        """Answer what only nodes ask. Raises NotFound."""
        if request.path == NODE_PATH:
            return _json(await in_thread(self._report))
        if request.path == CLAIMS_PATH:
            return await self._static.answer(request)
        if self._shipping.serves(request.path):
            return await self._shipping.answer(request)
        if request.path.startswith(MOVES_PATH):
            return await self._moves.answer(request)
        if request.path == KEYS_PATH:
            return await self._keys.answer(request)
        if request.path == USE_PATH:
            return await self._quotas.answer(request)
        noun, _, name = request.path.removeprefix(HAS_PATH).partition("/")
        if not request.path.startswith(HAS_PATH) or request.method != "GET":
            raise NotFound(f"nodes have nothing at {request.path}")
        tenant = read_query(request.query).get("tenant")
        return _json(await in_thread(has, self._directory, noun, unquote_text(name), tenant))

    def _report(self) -> Report:
        most, taken = read_capacity(self._directory.home), count_slots(self._directory)
        room = (os.cpu_count() or 1) * _PER_CPU if most is None else most
        keys = self._keys.digest()
        return Report(
            name=self._nodes.node,
            version=cove.__version__,
            free=room - taken,
            sandboxes=self._directory.count(),
            keys=keys,
        )


def _json(value: object) -> Response:
    return Response(200, _JSON, msgspec.json.encode(value))
