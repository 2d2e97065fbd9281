"""Give other nodes what they fetch: what is here under a name, and the whole archives of layers.

Only a node is answered here: whoever shows the peer key. Archives are packed as they are sent, and so many at a time.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from cove.archive.stream import Stream
from cove.core.identifier import check_id
from cove.errors import MethodNotAllowed, NotFound
from cove.http import Request, Response
from cove.images.whole_layer import pack_whole
from cove.layers.store import LayerStore
from cove.local.pipe import make_pipe, read_pipe
from cove.local.threads import Stop, Stopped, in_thread, in_transfer, start_transfer
from cove.model.api_key import check_key_name
from cove.server.cluster.shipment import describe_shipment, find_holding, forget_copy, read_sessions
from cove.server.e2b.protocol import read_query
from cove.tasks import settled
from cove.wire.coding import unquote_text

THINGS: Final = "/v1/cluster/things/"
SHIPMENTS: Final = "/v1/cluster/shipments/"
LAYERS: Final = "/v1/cluster/layers/"
SESSIONS: Final = "/v1/cluster/sessions/"
_JSON: Final = ((b"content-type", b"application/json"),)
_BYTES: Final = ((b"content-type", b"application/octet-stream"),)
_MOST_AT_ONCE: Final = 4


class Shipping:
    """Answers the requests of other nodes about images and snapshots."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._limit = asyncio.Semaphore(_MOST_AT_ONCE)

    @staticmethod
    def serves(path: str) -> bool:
        """Return whether such a request is answered here."""
        return path.startswith((THINGS, SHIPMENTS, LAYERS, SESSIONS))

    async def answer(self, request: Request) -> Response:
        """Answer another node."""
        path = request.path
        if request.method == "DELETE" and path.startswith(THINGS):
            await asyncio.to_thread(forget_copy, self._home, *_named(request, THINGS))
            return Response(204)
        if request.method != "GET":
            raise MethodNotAllowed(f"{request.method} is not for {path}")
        if path.startswith(THINGS):
            return _json(await in_thread(find_holding, self._home, *_named(request, THINGS)))
        if path.startswith(SHIPMENTS):
            return await self._describe(*_named(request, SHIPMENTS))
        if path.startswith(LAYERS):
            return await self._send_layer(check_id("layer", path.removeprefix(LAYERS)))
        return await self._send_sessions(check_id("snapshot", path.removeprefix(SESSIONS)))

    async def _describe(self, noun: str, name: str, tenant: str) -> Response:
        async with self._limit:
            return _json(await in_transfer(lambda check: describe_shipment(self._home, noun, name, tenant, check)))

    async def _send_layer(self, id: str) -> Response:
        if not await in_thread(LayerStore(self._home).has, id):
            raise NotFound(f"there is no layer {id}")
        return Response(200, _BYTES, self._archive(id))

    async def _archive(self, id: str) -> AsyncGenerator[bytes, None]:
        """Pack in a thread, through a pipe: whoever reads slowly, or leaves, holds up nobody else."""
        async with self._limit:
            read, write = make_pipe()
            try:
                os.set_blocking(read, False)
                os.set_blocking(write, False)
                with Stop() as stop:
                    packing = start_transfer(self._pack, id, write, stop)
                    try:
                        while data := await read_pipe(read):
                            yield data
                    finally:
                        stop.set()
                        with suppress(Stopped):
                            await settled(packing)
            finally:
                os.close(read)

    def _pack(self, id: str, descriptor: int, stop: Stop) -> None:
        """Pack a layer into a pipe, which is closed at its end: one that is cut short has another digest."""
        layers = LayerStore(self._home)
        try:
            with layers.holding():
                pack_whole(layers, id, Stream(descriptor, stop.wait).write, stop.check)
        finally:
            os.close(descriptor)

    async def _send_sessions(self, id: str) -> Response:
        found = await in_thread(read_sessions, LayerStore(self._home), id)
        if found is None:
            raise NotFound(f"snapshot {id} has no sessions")
        return Response(200, _BYTES, found)


def _named(request: Request, prefix: str) -> tuple[str, str, str]:
    """Return the noun, the name and the tenant that a request is about."""
    noun, _, name = request.path.removeprefix(prefix).partition("/")
    tenant = read_query(request.query).get("tenant", "")
    return noun, unquote_text(name), check_key_name(tenant) if tenant else ""


def _json(value: object) -> Response:
    return Response(200, _JSON, msgspec.json.encode(value))
