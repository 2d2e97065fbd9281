"""Fetch images and snapshots from the nodes that have them: layer by layer, each once, and verified by its digest.

Theory of operation. Before a sandbox is made here, `provide` sees to it that what it stands on is here. What is here
itself is used; a copy is used if its origin still has just that, or does not answer. Otherwise all nodes are asked, and
it is fetched from the first that gives it: a description first, then those layers that are not here.

A layer is fetched by one request at a time, whichever worker it is in: who comes later waits for the lock of it, and
finds the layer there. It is unpacked beside the layers, and takes its name when its digest was right. Layers that are
there are held until the record is written, which makes them needed. Whoever is killed before leaves what nothing
names: the next fetch uses such layers, or they are collected.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final

from cove.archive.stream import Stream
from cove.errors import CoveError, LimitExceeded, PlacementUnavailable, ValidationFailed
from cove.images.store import ImageStore, open_images
from cove.images.whole_layer import pieces_of
from cove.layers.store import LayerStore
from cove.linux.file_lock import try_lock
from cove.local.feed import feed
from cove.local.threads import Stop, finished, in_thread, start_in_thread
from cove.model import Limits, SandboxSpec, TransferProgress
from cove.model.cluster import Member
from cove.model.spec import HOST_IMAGE
from cove.server.cluster.holdings import Holdings, target_of
from cove.server.cluster.nodes import Nodes
from cove.server.cluster.peer import PeerClient
from cove.server.cluster.shipment import (
    IMAGE,
    MOST_SESSIONS_BYTES,
    SNAPSHOT,
    Holding,
    Shipment,
    ShippedLayer,
    check_disk,
    check_layers,
    check_sessions,
    decode_shipment,
    forget_copy,
    keep_copy,
    take_in,
)
from cove.server.cluster.shipping import LAYERS, SESSIONS, SHIPMENTS
from cove.server.sandboxes.capacity import check_room
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.image_jobs import image_job
from cove.server.sandboxes.slots import read_slot
from cove.tasks import settled

_TURN_SECONDS: Final = 0.05
_LOG_SECONDS: Final = 5.0
_MOST_DESCRIPTION_BYTES: Final = 16 << 20

log = logging.getLogger("cove.server")

Progress = Callable[[TransferProgress], object]


class Fetching:
    """Fetches into the state directory of this node, by at most `most_jobs` at a time."""

    def __init__(self, home: Path, nodes: Nodes, client: PeerClient, most_jobs: int) -> None:
        self._home = home
        self._nodes = nodes
        self._client = client
        self._most_jobs = most_jobs
        self.holdings = Holdings(home, nodes, client)

    async def provide(self, directory: Directory, spec: SandboxSpec) -> None:
        """Fetch what a sandbox is to stand on, unless it is here, if any node has it.

        Raises LimitExceeded where nothing more may be fetched, PlacementUnavailable where no node can give it now.
        """
        if spec.snapshot is not None:
            await self._provide(directory, SNAPSHOT, spec.snapshot, spec.limits)
        elif spec.image != HOST_IMAGE:
            await self._provide(directory, IMAGE, spec.image, spec.limits)

    async def provide_snapshot(self, directory: Directory, id: str) -> None:
        """Fetch a snapshot that a sandbox of this node is to go back to, unless it is here; raises as `provide`."""
        await self._provide(directory, SNAPSHOT, id)

    async def _provide(self, directory: Directory, noun: str, name: str, limits: Limits | None = None) -> None:
        """Fetch it; for a new sandbox with these limits only where there is room for that."""
        tenant = directory.tenant
        here = await self.holdings.here(noun, name, tenant)
        if here is not None and (not here.origin or await self.holdings.is_current(here, noun, name, tenant)):
            return
        found = await self.holdings.find(noun, name, tenant)
        sources = [node for node in (*found.originals, *found.copies) if node != self._nodes.node]
        if sources:
            if limits is not None:
                slots = await in_thread(lambda: read_slot(directory.home).count(limits))
                await in_thread(check_room, directory, slots)
            await self._fetch_from_any(noun, name, sources, tenant)
        elif here is not None:
            await asyncio.to_thread(forget_copy, self._home, noun, name, tenant)
        elif found.silent:
            raise PlacementUnavailable(
                f"no node that answers has the {noun} {name}, and {', '.join(found.silent)} does not answer: "
                "nothing was started; try again when it is back"
            )

    async def _fetch_from_any(self, noun: str, name: str, sources: list[str], tenant: str) -> None:
        problems = []
        for node in sources:
            try:
                await self.fetch(noun, name, node, tenant=tenant)
                return
            except LimitExceeded:
                raise
            except CoveError as error:
                log.warning("%s %s could not be fetched from node %s: %s", noun, name, node, error.message)
                problems.append(f"node {node}: {error.message}")
        raise PlacementUnavailable(f"the {noun} {name} could not be fetched: {'; '.join(problems)}. Try again.")

    async def fetch(
        self, noun: str, name: str, node: str, *, tenant: str = "", progress: Progress | None = None
    ) -> Holding:
        """Fetch an image by its name, or a snapshot by its id, from a node that has it: it is here under the same.

        It belongs to the same tenant, and is a copy of what that node has. What fails, or is cancelled, leaves no more
        than garbage, which is collected. Raises NotFound, NodeLost, NodeUnavailable, LimitExceeded, and
        ValidationFailed for bytes that are not what their digests say.
        """
        member = self._nodes.check(node)
        described = await self._get(member, target_of(SHIPMENTS, noun, name, tenant), _MOST_DESCRIPTION_BYTES)
        shipment = decode_shipment(described, noun, name)
        try:
            with ExitStack() as held:
                await finished(held.enter_context, LayerStore(self._home).holding())
                return await self._take(
                    member, shipment, _Count(f"{noun} {name}", node, len(shipment.layers), progress)
                )
        except BaseException:
            await settled(asyncio.to_thread(LayerStore(self._home).collect))
            raise

    async def _take(self, member: Member, shipment: Shipment, count: "_Count") -> Holding:
        await self._take_layers(member, shipment.layers, count)
        sessions = None
        if shipment.sessions is not None:
            sessions = await self._get(member, f"{SESSIONS}{shipment.record.id}", MOST_SESSIONS_BYTES)
            check_sessions(sessions, shipment.sessions)
        return await finished(keep_copy, self._home, shipment, sessions, member.name)

    async def fetch_layers(self, what: str, layers: Sequence[ShippedLayer], node: str) -> None:
        """Fetch those layers of a node that are not here. The caller holds the layers: nothing names them yet."""
        check_layers(what, layers)
        await self._take_layers(self._nodes.check(node), layers, _Count(what, node, len(layers)))

    async def _take_layers(self, member: Member, layers: Sequence[ShippedLayer], count: "_Count") -> None:
        images = await in_thread(open_images, self._home, LayerStore(self._home))
        for layer in layers:
            await self._take_layer(member, images, layer, count)
            count.add_layer()

    async def _take_layer(self, member: Member, images: ImageStore, layer: ShippedLayer, count: "_Count") -> None:
        async with self._turn(layer.id):
            if await in_thread(images.layers.has, layer.id):
                return
            await in_thread(check_disk, self._home, layer.archive.size)
            with ExitStack() as held:
                await finished(held.enter_context, image_job(images, self._most_jobs))
                await self._unpack(member, images, layer, count)

    async def _unpack(self, member: Member, images: ImageStore, layer: ShippedLayer, count: "_Count") -> None:
        def work(stream: Stream, stop: Stop) -> None:
            take_in(images, layer, pieces_of(stream, layer.archive.size), stop.check)

        async def taken(taking: "asyncio.Future[None]", stop: Callable[[], object]) -> None:
            await settled(taking, on_cancel=stop)

        async with aclosing(self._chunks(member, f"{LAYERS}{layer.id}", layer.archive.size)) as chunks:
            await feed(count.of(chunks), work, taken)

    async def _get(self, member: Member, target: str, most: int) -> bytes:
        async with aclosing(self._chunks(member, target, most)) as chunks:
            return b"".join([chunk async for chunk in chunks])

    async def _chunks(self, member: Member, target: str, most: int) -> AsyncGenerator[bytes, None]:
        """Yield what a node answers, which may not be more."""
        async with aclosing(self._client.stream(member, target, lambda: self._nodes.is_up(member.name))) as chunks:
            async for chunk in chunks:
                most -= len(chunk)
                if most < 0:
                    raise ValidationFailed(f"refused: node {member.name} sends more than it has named")
                yield chunk

    @asynccontextmanager
    async def _turn(self, id: str) -> AsyncIterator[None]:
        """Hold the lock of a layer: among all workers of this node, one fetches it."""
        path = self._home / "fetches" / hashlib.sha256(id.encode()).hexdigest()[:2]
        while True:
            lock = await settled(start_in_thread(_try, path), discard=_let_go)
            if lock is not None:
                break
            await asyncio.sleep(_TURN_SECONDS)
        try:
            yield
        finally:
            lock.close()


def _try(path: Path) -> FileIO | None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.touch(mode=0o600)
    return try_lock(path)


def _let_go(lock: FileIO | None) -> None:
    if lock is not None:
        lock.close()


@dataclass(slots=True)
class _Count:
    """Tells how far a fetch is: who asked, and now and then the log."""

    what: str
    node: str
    total: int
    progress: Progress | None = None
    _layers: int = 0
    _bytes: int = 0
    _logged: float = 0.0

    async def of(self, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Count the bytes of chunks."""
        async for chunk in chunks:
            yield chunk
            self._bytes += len(chunk)
            self._tell()

    def add_layer(self) -> None:
        """Count a layer that is here."""
        self._layers += 1
        self._tell()

    def _tell(self) -> None:
        now = asyncio.get_running_loop().time()
        is_last = self._layers == self.total
        if is_last or now - self._logged >= _LOG_SECONDS:
            self._logged = now
            log.info(
                "%s from node %s: %d of %d layers, %d bytes fetched",
                *(self.what, self.node, self._layers, self.total, self._bytes),
            )
        if self.progress is not None:
            self.progress(TransferProgress(layers=self._layers, total_layers=self.total, bytes=self._bytes))
