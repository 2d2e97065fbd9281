"""Give sandboxes to other nodes.

Theory of operation. A sandbox that is stopped is claimed once more, which gives the move an epoch of its own, and
`moves/out-…` says where it goes: from here on nobody starts or changes it. It is packed and sent; the target takes over
the claim with exactly that epoch, and answers. Whatever happens instead of an answer, the claim decides: this node
claims the id again. If that gives a higher epoch, the target can never have it, and the sandbox is here as before. If
the claim is the target's, the sandbox is there, and what is here is removed once the target has said so. A process that
is killed at any step leaves `moves/out-…`, and another one decides in the same way.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final

import msgspec

from cove.core.cluster import claim_name
from cove.core.journal import Actor
from cove.errors import CoveError, NoCapacity, SandboxNotFound, SandboxUnavailable, ValidationFailed
from cove.http import Request, Response
from cove.layers.export import Transfer
from cove.layers.store import read_stack
from cove.linux.cgroup import find_hierarchies
from cove.local.threads import Stop, finished, in_thread, in_transfer, start_transfer
from cove.model import Mount, SandboxStatus, VolumeMount
from cove.model.cluster import Member
from cove.runtime.home import RECORD, Home
from cove.runtime.journal import ACTOR
from cove.server.cluster.arrivals import (
    ASK_PATH,
    MOVES_PATH,
    PREPARE_PATH,
    SETTLE_PATH,
    Question,
    Resolved,
    Stand,
    Welcome,
)
from cove.server.cluster.moved_system import describe_stack
from cove.server.cluster.nodes import Nodes
from cove.server.cluster.peer import PeerClient, Reply
from cove.server.cluster.placement import Placement
from cove.server.cluster.sandbox_archive import check_key, packed
from cove.server.sandboxes.directory import Directory, Record
from cove.server.sandboxes.moves import (
    Move,
    MoveFile,
    begin_out,
    check_stays,
    find_out,
    left_out,
    note_gone,
    note_named,
)
from cove.server.sandboxes.reservation import Reservation
from cove.tasks import settled
from cove.wire.coding import decode_json
from cove.wire.errors import ErrorBody, make_error

_ASK_SECONDS: Final = 10.0
_SEND_SECONDS: Final = 120.0
_FETCH_SECONDS: Final = 3600.0
_MOST_BODY_BYTES: Final = 1 << 20
_JSON: Final = ((b"content-type", b"application/json"),)


class Departures:
    """Moves sandboxes of this node away, one call each, and recovers what was begun."""

    def __init__(self, directory: Directory, nodes: Nodes, client: PeerClient, placement: Placement) -> None:
        self._directory = directory
        self._nodes = nodes
        self._client = client
        self._placement = placement

    async def move(self, id: str, tenant: str, node: str | None) -> None:
        """Move a stopped sandbox to a node, or to that with most room; one that is there already stays.

        Whatever fails, it is here as before, or there: never both. A cancelled call decides before it ends. That it
        runs is said last: who stops it for the move has heard what else stands against it.
        """
        directory = self._directory.of(tenant)
        if node == self._nodes.node:
            return
        record = await in_thread(_find_movable, directory, id)
        target = self._choose(node)
        there = await self._ask(target, record)
        await in_thread(_check_stopped, directory, record)
        if there.wants_layers:
            await self._prepare(target, record)
        claim = await self._placement.claim(claim_name(tenant, id), self._nodes.node)
        if claim.node != self._nodes.node:
            raise SandboxUnavailable(f"sandbox {id} is superseded: node {claim.node} has its name", id=id)
        move = Move(
            id=id, key=record.key, tenant=tenant, source=self._nodes.node, target=target.name, epoch=claim.epoch
        )
        file = await finished(_depart, directory, move)
        try:
            await self._send(target, move, record, there)
        except BaseException as error:
            if not await settled(self._decide(file)) or not isinstance(error, CoveError):
                raise
        else:
            await settled(self._finish(file))

    def _choose(self, node: str | None) -> Member:
        if node is not None and node not in self._nodes.members:
            known = ", ".join(sorted(self._nodes.members))
            raise ValidationFailed(f"there is no node {node!r}: the nodes of this cluster are {known}")
        others = [each for each in self._nodes.candidates() if each != self._nodes.node]
        if node is None and not others:
            raise NoCapacity("no other node can take the sandbox now: try again later")
        return self._nodes.check(node or others[0])

    async def _ask(self, target: Member, record: Record) -> Welcome:
        """Ask the target whether it takes the sandbox, before anything happens; it says which layers it has."""
        stack = await in_thread(read_stack, self._directory.place(record.key))
        system = None if stack is None else stack.system
        body = msgspec.json.encode(Question(record=record, system=system))
        reply = await self._client.call(target, "POST", ASK_PATH, body, seconds=_ASK_SECONDS)
        if reply.status != 200:
            raise _refusal(target, reply)
        welcome = msgspec.json.decode(reply.body, type=Welcome)
        if system is not None and not welcome.wants_layers:
            raise ValidationFailed(
                f"node {target.name} runs a Cove that takes no sandboxes on images: upgrade it first"
            )
        return welcome

    async def _prepare(self, target: Member, record: Record) -> None:
        """Have the target fetch the layers of an image while the sandbox is still here; it may take its time."""
        body = msgspec.json.encode(Stand(source=self._nodes.node, key=record.key))
        is_up = partial(self._nodes.is_up, target.name)
        reply = await self._client.call(target, "POST", PREPARE_PATH, body, seconds=_FETCH_SECONDS, is_up=is_up)
        if reply.status != 200:
            raise _refusal(target, reply)

    async def _send(self, target: Member, move: Move, record: Record, there: Welcome) -> None:
        with Stop() as stop, ExitStack() as held:
            begin = partial(self._pack, held, move, record, ACTOR.get(), there.digests, stop)
            pieces = await settled(start_transfer(begin), on_cancel=stop.set)
            path = f"{MOVES_PATH}?source={move.source}&key={move.key}" if there.wants_layers else MOVES_PATH
            reply = await self._client.send(target, path, _in_threads(pieces), seconds=_SEND_SECONDS)
        if reply.status != 200:
            raise _refusal(target, reply)

    def _pack(
        self, held: ExitStack, move: Move, record: Record, actor: Actor, there: tuple[str, ...], stop: Stop
    ) -> Iterator[bytes]:
        directory = self._directory.of(move.tenant)
        try:
            return held.enter_context(packed(directory, move, record, actor, there, Transfer(0, check=stop.check)))
        except OSError as error:
            raise SandboxUnavailable(f"sandbox {move.id} cannot be packed: {error.strerror or error}") from error

    async def _decide(self, file: MoveFile) -> bool:
        """Return whether the sandbox is the target's. If not, it never will be by this move, and is here again.

        While nobody can be asked it stays as it is, and is decided later: SandboxUnavailable.
        """
        try:
            claim = await self._placement.claim(claim_name(file.move.tenant, file.move.id), self._nodes.node)
            if claim.node == self._nodes.node:
                await finished(file.remove)
                return False
            await self._finish(file)
            return True
        except CoveError as error:
            raise SandboxUnavailable(
                f"where sandbox {file.move.id} is, is decided when nodes answer again: {error.message}"
            ) from error
        finally:
            file.close()

    async def _finish(self, file: MoveFile) -> None:
        """Remove what is here of a sandbox that the target has, as soon as that has said so."""
        try:
            target = self._nodes.check(file.move.target)
            body = msgspec.json.encode(file.move)
            reply = await self._client.call(target, "POST", SETTLE_PATH, body, seconds=_ASK_SECONDS)
            if reply.status != 200:
                raise _refusal(target, reply)
            await finished(_remove, self._directory.of(file.move.tenant), file)
        finally:
            file.close()

    async def recover(self) -> None:
        """Decide about moves whose processes were killed. What cannot be decided now stays."""
        for file in await in_thread(lambda: list(left_out(self._directory))):
            try:
                await settled(self._decide(file))
            except CoveError:
                continue

    async def fence(self, id: str, tenant: str) -> None:
        """Let no target have a sandbox that was destroyed while its move began; raises if one has it already."""
        directory = self._directory.of(tenant)
        move = await in_thread(find_out, directory, id)
        if move is None:
            return
        claim = await self._placement.claim(claim_name(tenant, id), self._nodes.node)
        if claim.node != self._nodes.node:
            raise SandboxUnavailable(f"sandbox {id} was just moved to node {claim.node}: try again", id=id)

    async def describe_layers(self, request: Request) -> Response:
        """Describe for a target the layers of an image that a sandbox of this node stands on."""
        stand = msgspec.json.decode(await request.read(_MOST_BODY_BYTES), type=Stand)
        place = self._directory.place(check_key(stand.key))
        found = await in_transfer(lambda check: describe_stack(self._directory.home, place, check))
        return Response(200, _JSON, msgspec.json.encode(found))

    async def resolve(self, request: Request) -> Response:
        """Tell a target whose process was killed whether it has the sandbox; if not, it will not get it."""
        move = msgspec.json.decode(await request.read(_MOST_BODY_BYTES), type=Move)
        claim = await self._placement.find(claim_name(move.tenant, move.id))
        if claim is not None and claim.node == self._nodes.node and claim.epoch == move.epoch:
            claim = await self._placement.claim(claim_name(move.tenant, move.id), self._nodes.node)
        is_moved = claim is not None and claim.node == move.target
        return Response(200, _JSON, msgspec.json.encode(Resolved(is_moved=is_moved)))


def _find_movable(directory: Directory, id: str) -> Record:
    """Return the record of a sandbox that can be moved; raises why one cannot. Blocks."""
    record = directory.find(id)
    if record is None:
        raise SandboxNotFound(f"there is no sandbox {id}", id=id)
    check_stays(directory, id)
    for mount in record.spec.mounts:
        if isinstance(mount, Mount):
            raise ValidationFailed(f"sandbox {id} has a directory of this machine, {mount.source}: it cannot be moved")
        if isinstance(mount, VolumeMount):
            raise ValidationFailed(f"sandbox {id} has the volume {mount.volume} of this node: it cannot be moved")
    return record


def _check_stopped(directory: Directory, record: Record) -> None:
    status, id = directory.status(record), record.id
    if status is not SandboxStatus.STOPPED:
        raise ValidationFailed(
            f"sandbox {id} is {status.value}: stop it first, with `cove stop {id}` or `cove move --stop`",
            status=status.value,
        )


def _depart(directory: Directory, move: Move) -> MoveFile:
    """Note that the sandbox leaves, if it is still as it was found. Blocks."""
    reservation = Reservation.hold(directory, move.id)
    try:
        record = directory.find(move.id)
        if record is None or record.key != move.key:
            if not reservation.entry.key:
                reservation.remove()
            raise SandboxNotFound(f"there is no sandbox {move.id}", id=move.id)
        if directory.is_held(record.key) or record.status is not SandboxStatus.STOPPED:
            raise SandboxUnavailable(f"sandbox {move.id} has just been started: it was not moved", id=move.id)
        note_named(directory, move.id)
        return begin_out(directory, move)
    finally:
        reservation.close()


def _remove(directory: Directory, file: MoveFile) -> None:
    """Remove a sandbox that another node has. Repeatable. Blocks."""
    move = file.move
    note_gone(directory, move.id)
    if directory.look_up(move.id).key == move.key:
        Reservation.hold(directory, move.id).remove()
    place = directory.place(move.key)
    (place / RECORD).unlink(missing_ok=True)
    if place.exists():
        Home(directory.home, move.tenant).remove(move.key, find_hierarchies())
    file.remove()


async def _in_threads(pieces: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
    while (piece := await finished(next, pieces, None)) is not None:
        if piece:
            yield piece


def _refusal(target: Member, reply: Reply) -> CoveError:
    try:
        error = decode_json(bytes(reply.body), ErrorBody)
    except ValidationFailed:
        return SandboxUnavailable(f"node {target.name} does not take the sandbox: it answers {reply.status}")
    return make_error(msgspec.structs.replace(error, error=f"node {target.name} does not take it: {error.error}"))
