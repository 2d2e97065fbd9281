"""Take sandboxes in that come from other nodes.

Theory of operation. What comes is unpacked at a place of its own, under the key that it has, and is on disk before
anything else: `moves/in-KEY` says so. Then this node takes over the claim on the id, which the source had with a known
epoch: that is the moment at which the sandbox changes its node. Only then does the id lead to it. Whatever fails before
leaves garbage, which is removed; a process that is killed after it is recovered by the claim. One that is killed before
the claim has an answer asks the source, which takes the claim back by a higher epoch, or finds that it cannot.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Final

import msgspec

from cove.core.cluster import claim_name
from cove.errors import CoveError, SandboxAlreadyExists, SandboxUnavailable, UserUnavailable, ValidationFailed
from cove.http import Request, Response
from cove.layers.places import FileOrigin
from cove.layers.record import System
from cove.layers.snapshot_export import layers_by_digest
from cove.layers.store import LayerStore
from cove.linux.cgroup import find_hierarchies
from cove.local.feed import feed
from cove.local.threads import Stop, finished, in_thread
from cove.runtime.allocation import allocate_moved, explain_refusal
from cove.runtime.home import RECORD, Home
from cove.server.cluster.fetching import Fetching
from cove.server.cluster.nodes import Nodes
from cove.server.cluster.peer import PeerClient
from cove.server.cluster.placement import Placement
from cove.server.cluster.sandbox_archive import Manifest, check_key, check_manifest, unpack
from cove.server.cluster.shipment import ShippedLayer
from cove.server.configuration import Configuration
from cove.server.e2b.protocol import read_query
from cove.server.sandboxes.capacity import check_room
from cove.server.sandboxes.directory import Directory, Record
from cove.server.sandboxes.moves import (
    Move,
    MoveFile,
    begin_in,
    find_out,
    forget_gone,
    left_in,
    note_named,
    take_arrival,
)
from cove.server.sandboxes.reservation import give_id
from cove.server.sandboxes.slots import read_slot, take_slots
from cove.tasks import settled

MOVES_PATH: Final = "/v1/cluster/moves"
ASK_PATH: Final = f"{MOVES_PATH}/ask"
SETTLE_PATH: Final = f"{MOVES_PATH}/settle"
PREPARE_PATH: Final = f"{MOVES_PATH}/prepare"
LAYERS_PATH: Final = f"{MOVES_PATH}/layers"
RESOLVE_PATH: Final = f"{MOVES_PATH}/resolve"
_MOST_BODY_BYTES: Final = 8 << 20
_SECONDS: Final = 10.0
_DESCRIBE_SECONDS: Final = 3600.0
_JSON: Final = ((b"content-type", b"application/json"),)

log = logging.getLogger("cove.server")


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Ask whether a sandbox may come; `system` is that of the image that it stands on, if it does."""

    record: Record
    system: System | None = None


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: the digests of layers that need not be sent, and whether those of an image are fetched first."""

    digests: tuple[str, ...]
    wants_layers: bool = False


class Stand(msgspec.Struct, frozen=True, kw_only=True):
    """Name a sandbox, by its node and key, whose layers of an image are to be fetched, or described."""

    source: str
    key: str


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a source: whether the sandbox is the target's now."""

    is_moved: bool


class Arrivals:
    """Answers other nodes that send sandboxes, and recovers what was begun."""

    def __init__(
        self,
        directory: Directory,
        configuration: Configuration,
        nodes: Nodes,
        client: PeerClient,
        placement: Placement,
        fetching: Fetching,
    ) -> None:
        self._directory = directory
        self._fetching = fetching
        self._configuration = configuration
        self._nodes = nodes
        self._client = client
        self._placement = placement

    async def answer_question(self, request: Request) -> Response:
        """Say whether a sandbox may come, and which layers are here. Raises what is against it."""
        question = msgspec.json.decode(await request.read(_MOST_BODY_BYTES), type=Question)
        return _json(await in_thread(self._welcome, question))

    def _welcome(self, question: Question) -> Welcome:
        self._check(question.record, question.system)
        store = LayerStore(self._directory.home, question.record.tenant)
        with store.holding():
            return Welcome(digests=tuple(layers_by_digest(store)), wants_layers=question.system is not None)

    async def prepare(self, request: Request) -> Response:
        """Fetch the layers of an image for a sandbox that is still where it is: when it comes, they are here."""
        stand = msgspec.json.decode(await request.read(_MOST_BODY_BYTES), type=Stand)
        async with self._fetched(stand):
            return _json(stand.key)

    @asynccontextmanager
    async def _fetched(self, stand: Stand) -> AsyncIterator[None]:
        """Hold the layers of an image that a sandbox stands on; those that are not here are fetched from its node."""
        store = LayerStore(self._directory.home)
        try:
            with ExitStack() as held:
                await finished(held.enter_context, store.holding())
                await self._fetch(stand)
                yield
        except BaseException:
            await settled(asyncio.to_thread(store.collect))
            raise

    async def _fetch(self, stand: Stand) -> None:
        source = self._nodes.check(stand.source)
        is_up = partial(self._nodes.is_up, source.name)
        body = msgspec.json.encode(stand)
        reply = await self._client.call(source, "POST", LAYERS_PATH, body, seconds=_DESCRIBE_SECONDS, is_up=is_up)
        if reply.status != 200:
            raise SandboxUnavailable(f"node {source.name} does not say what the sandbox stands on: {reply.status}")
        layers = msgspec.json.decode(reply.body, type=tuple[ShippedLayer, ...])
        await self._fetching.fetch_layers("the layers of a sandbox that comes", layers, source.name)

    def _check(self, record: Record, system: System | None) -> None:
        """Raise what keeps a sandbox from coming. Blocks."""
        refusal = None if system is None else explain_refusal(self._directory.home, record.spec, system)
        if refusal is not None:
            raise UserUnavailable(f"sandbox {record.id} cannot come to node {self._nodes.node}: {refusal}")
        directory = self._directory.of(record.tenant)
        self._configuration.admit(record.spec)
        check_room(directory, read_slot(directory.home).count(record.spec.limits))
        if find_out(directory, record.id) is not None:
            raise SandboxUnavailable(f"node {self._nodes.node} is just giving sandbox {record.id} away: try again")
        if directory.entry(record.id).exists() or self._directory.place(record.key).exists():
            raise SandboxAlreadyExists(f"node {self._nodes.node} has a sandbox {record.id}", id=record.id)

    async def receive(self, request: Request) -> Response:
        """Take a sandbox in. The answer is 200 when it is here, and nowhere else."""
        query = read_query(request.query)
        if "key" in query:
            async with self._fetched(Stand(source=query.get("source", ""), key=check_key(query["key"]))):
                file, record = await self._take_in(request)
        else:
            file, record = await self._take_in(request)
        await settled(self._take_over(file))
        return _json(record.id)

    async def _take_in(self, request: Request) -> tuple[MoveFile, Record]:
        def work(stream: object, stop: Stop) -> tuple[MoveFile, Record]:
            return self._unpack(FileOrigin(stream), stop)  # type: ignore[arg-type]  # a Stream, which only `feed` names

        return await feed(
            request.chunks(),
            work,
            lambda working, hasten: settled(working, on_cancel=hasten, discard=lambda made: self._drop(*made)),
        )

    def _unpack(self, origin: FileOrigin, stop: Stop) -> tuple[MoveFile, Record]:
        """Make the place of a sandbox that comes; nothing is left of one that fails. Blocks."""
        manifest = check_manifest(_decode(origin.index()))
        system = None if manifest.system is None else manifest.system.system
        self._check(manifest.record, system)
        home = Home(self._directory.home, manifest.move.tenant)
        place = allocate_moved(home, manifest.record.spec, system, manifest.move.key)
        place.lock.truncate(0)  # whoever ends the holder of this lock must not end a worker
        file = None
        try:
            if system is not None and manifest.record.spec.sudo and system.user_id != 0 and place.users == 1:
                raise UserUnavailable(f"node {self._nodes.node} has no users left that its sudo needs")
            file = begin_in(self._directory, manifest.move)
            record = unpack(self._directory, place, manifest, origin, stop.check)
            place.lock.close()
        except BaseException:
            (place.path / RECORD).unlink(missing_ok=True)
            home.release(place)
            if file is not None:
                file.remove()
            raise
        return file, record

    async def _take_over(self, file: MoveFile) -> None:
        """Have the claim, and with it the sandbox; or remove what came."""
        move = file.move
        try:
            claim = await self._placement.claim(claim_name(move.tenant, move.id), self._nodes.node, move.epoch)
            if (claim.node, claim.epoch) != (self._nodes.node, move.epoch + 1):
                if claim.node == self._nodes.node:
                    await self._placement.unclaim(claim)  # nobody had it: the sandbox was destroyed meanwhile
                await finished(self._remove, file)
                raise SandboxUnavailable(f"the move of sandbox {move.id} was given up: it is where it was")
            await finished(self._settle, file)
        finally:
            file.close()

    def _settle(self, file: MoveFile) -> None:
        """Let the id lead to the sandbox. Repeatable. Blocks."""
        move = file.move
        directory = self._directory.of(move.tenant)
        note_named(directory, move.id)
        if not give_id(directory, move.id, move.key):
            log.error("sandbox %s came, and there is another one of that name: %s is kept", move.id, move.key)
            raise SandboxAlreadyExists(f"node {self._nodes.node} has another sandbox {move.id}", id=move.id)
        record = directory.read(move.key)
        if record is not None:
            take_slots(directory, move.id, record.spec.limits)
        forget_gone(directory, move.id)
        file.remove()

    def _drop(self, file: MoveFile, record: Record) -> None:
        self._remove(file)

    def _remove(self, file: MoveFile) -> None:
        """Remove what came. Blocks."""
        place = self._directory.place(file.move.key)
        (place / RECORD).unlink(missing_ok=True)
        if place.exists():
            Home(self._directory.home, file.move.tenant).remove(file.move.key, find_hierarchies())
        file.remove()

    async def settle(self, request: Request) -> Response:
        """Say whether a sandbox that a source has given away is here: what a killed process left is finished."""
        move = msgspec.json.decode(await request.read(_MOST_BODY_BYTES), type=Move)
        file = await in_thread(take_arrival, self._directory, move.key)
        if file is not None:
            await settled(self._recover(file))
        entry = await in_thread(self._directory.of(move.tenant).look_up, move.id)
        claim = await self._placement.find(claim_name(move.tenant, move.id))
        is_here = entry.key == move.key or claim is None or claim.node != self._nodes.node
        if not is_here:
            raise SandboxUnavailable(f"sandbox {move.id} is still on its way to node {self._nodes.node}")
        return _json(move.id)

    async def recover(self) -> None:
        """Finish or remove what processes that were killed have left. What cannot be decided now stays."""
        for file in await in_thread(lambda: list(left_in(self._directory))):
            await settled(self._recover(file))

    async def _recover(self, file: MoveFile) -> None:
        try:
            is_ours = await self._is_ours(file.move)
            await finished(self._settle if is_ours else self._remove, file)
        except CoveError:
            return  # nobody can say it now: it is looked at again
        finally:
            file.close()

    async def _is_ours(self, move: Move) -> bool:
        """Return whether the claim was taken over; if it was not, the source sees to it that it cannot be any more."""
        if not (self._directory.place(move.key) / RECORD).exists():
            return False
        if await self._has_claim(move):
            return True
        source = self._nodes.check(move.source)
        reply = await self._client.call(source, "POST", RESOLVE_PATH, msgspec.json.encode(move), seconds=_SECONDS)
        if reply.status != 200:
            raise SandboxUnavailable(f"node {move.source} does not say where sandbox {move.id} is: {reply.status}")
        return msgspec.json.decode(reply.body, type=Resolved).is_moved and await self._has_claim(move)

    async def _has_claim(self, move: Move) -> bool:
        claim = await self._placement.find(claim_name(move.tenant, move.id))
        return claim is not None and claim.node == self._nodes.node and claim.epoch > move.epoch


def _decode(data: bytes) -> Manifest:
    try:
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValidationFailed(f"this is no sandbox: {error}") from None


def _json(value: object) -> Response:
    return Response(200, _JSON, msgspec.json.encode(value))
