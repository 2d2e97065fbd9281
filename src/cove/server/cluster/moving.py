"""Both ends of moves on one node: answer other nodes, and recover what killed processes have left."""

import asyncio
import logging
from typing import Final

from cove.errors import CoveError, NotFound
from cove.http import Request, Response
from cove.local.threads import in_thread
from cove.server.cluster.arrivals import (
    ASK_PATH,
    LAYERS_PATH,
    MOVES_PATH,
    PREPARE_PATH,
    RESOLVE_PATH,
    SETTLE_PATH,
    Arrivals,
)
from cove.server.cluster.departures import Departures
from cove.server.cluster.nodes import Nodes
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.moves import has_moves, tidy
from cove.tasks import Tasks

_LOOK_SECONDS: Final = 1.0

log = logging.getLogger("cove.server")


class Moving:
    """Looks once a second, in one worker of a node, whether there is anything to recover."""

    def __init__(self, directory: Directory, nodes: Nodes, departures: Departures, arrivals: Arrivals) -> None:
        self._directory = directory
        self._nodes = nodes
        self._departures = departures
        self._arrivals = arrivals
        self._tasks = Tasks()

    def start(self) -> None:
        """Begin to look."""
        self._tasks.start(self._watch())

    async def aclose(self) -> None:
        """Look no more."""
        await self._tasks.aclose()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._nodes.is_elected and await in_thread(has_moves, self._directory):
                await self.recover()

    async def recover(self) -> None:
        """Decide and tidy once."""
        try:
            await in_thread(tidy, self._directory)
            await self._departures.recover()
            await self._arrivals.recover()
        except (CoveError, OSError) as error:
            log.warning("moves cannot be recovered now: %s", error)

    async def answer(self, request: Request) -> Response:
        """Answer another node."""
        match request.method, request.path:
            case "POST", path if path == ASK_PATH:
                return await self._arrivals.answer_question(request)
            case "POST", path if path == PREPARE_PATH:
                return await self._arrivals.prepare(request)
            case "POST", path if path == LAYERS_PATH:
                return await self._departures.describe_layers(request)
            case "POST", path if path == MOVES_PATH:
                return await self._arrivals.receive(request)
            case "POST", path if path == SETTLE_PATH:
                return await self._arrivals.settle(request)
            case "POST", path if path == RESOLVE_PATH:
                return await self._departures.resolve(request)
        raise NotFound(f"nodes have nothing at {request.path}")
