"""Create, start and destroy sandboxes from a gateway worker: it asks, and a process of their own does it."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cove.core.cluster import new_id
from cove.core.identifier import check_sandbox_id
from cove.errors import CoveError, SandboxAlreadyExists, SandboxUnavailable
from cove.layers.store import LayerStore
from cove.linux.cgroup import Hierarchies, find_hierarchies
from cove.local.threads import in_thread
from cove.model import Limits, SandboxSpec, SandboxStatus
from cove.runtime.journal import ACTOR
from cove.server.configuration import Configuration
from cove.server.counters import count_rarely
from cove.server.sandboxes.capacity import check_room
from cove.server.sandboxes.destroy_sandbox import discard_abandoned, remove
from cove.server.sandboxes.directory import Directory, Record
from cove.server.sandboxes.moves import check_stays
from cove.server.sandboxes.quotas import check_spec_quota
from cove.server.sandboxes.reservation import free
from cove.server.sandboxes.slots import read_slot
from cove.server.sandboxes.start_protocol import ACKNOWLEDGED, Create, Request, Start, encode, receive_reply
from cove.server.sandboxes.warm_pool import WarmPool
from cove.tasks import owned, settled, together
from cove.wire.errors import make_error

_CONNECT_SECONDS = 10.0
# Starting takes milliseconds, and many at once on a busy machine their time; who hangs for longer never answers.
_ANSWER_SECONDS = 120.0
_UNDO_SECONDS = 10.0


class Names(Protocol):
    """The names that this node of a cluster has claimed, so that no other node makes a sandbox of that name."""

    def of(self, tenant: str) -> "Names":
        """Return those of a tenant."""
        ...

    async def claim(self, id: str) -> None:
        """Claim a name before and after its sandbox is made; raises ClaimedElsewhere, and if nobody can say."""
        ...

    async def release(self, id: str) -> None:
        """Free the name of a sandbox that could not be made."""
        ...

    async def destroying(self, id: str) -> Callable[[], Coroutine[object, object, None]]:
        """Return what frees the name when the sandbox that has it now is gone."""
        ...


class Things(Protocol):
    """The images and snapshots that other nodes of a cluster have."""

    async def provide(self, directory: Directory, spec: SandboxSpec) -> None:
        """Fetch what a sandbox is to stand on, unless it is here, if any node has it."""
        ...

    async def provide_snapshot(self, directory: Directory, id: str) -> None:
        """Fetch a snapshot that a sandbox is to go back to, unless it is here, if any node has it."""
        ...


class Mover(Protocol):
    """Moves sandboxes of this node of a cluster to others."""

    async def move(self, id: str, tenant: str, node: str | None) -> None:
        """Move a stopped sandbox, or raise why it cannot be."""
        ...

    async def fence(self, id: str, tenant: str) -> None:
        """Let no other node have a sandbox that was destroyed here; raises if one has it already."""
        ...


class SharedQuotas(Protocol):
    """The quotas of tenants, counted over all nodes of a cluster."""

    def reserve(self, directory: Directory, limits: Limits, key: str = "") -> AbstractAsyncContextManager[str]:
        """Reserve what a sandbox may take while it is made, or started where it has a `key`. Raises LimitExceeded."""
        ...


class ClaimedElsewhere(SandboxAlreadyExists):
    """The name belongs to another node of the cluster."""

    def __init__(self, id: str, node: str) -> None:
        super().__init__(f"the name {id} belongs to node {node} of the cluster", id=id, node=node)
        self.node = node


class Starter:
    """Asks the zygote, or a sandbox that waits for an id. Holds nothing but what it found out about the machine."""

    def __init__(self, home: Path, configuration: Configuration | None = None, tenant: str = "") -> None:
        self.directory = Directory(home, tenant)
        self.configuration = configuration or Configuration()
        self._pool = WarmPool(self.directory)
        self._hierarchies: Hierarchies | None = None
        self.names: Names | None = None
        self.things: Things | None = None
        self.mover: Mover | None = None
        self.quotas: SharedQuotas | None = None

    def of(self, tenant: str) -> "Starter":
        """Return one that starts what is a tenant's."""
        if tenant == self.directory.tenant:
            return self
        other = Starter(self.directory.home, self.configuration, tenant)
        other.names = None if self.names is None else self.names.of(tenant)
        other.things, other.mover, other.quotas = self.things, self.mover, self.quotas
        return other

    async def create(
        self, id: str | None, spec: SandboxSpec, *, exist_ok: bool = False, is_ours: bool = False
    ) -> Record:
        """Create a sandbox, or with `exist_ok` find the one that has the id. A cancelled creation leaves nothing.

        A spec that `is_ours` is the server's own, out of its configuration: it may have what no client may ask for.
        """
        existing = None if id is None else await in_thread(self.directory.find, check_sandbox_id(id))
        if existing is not None:
            return await self._get(existing, exist_ok)
        spec = await in_thread(self.configuration.complete if is_ours else self.configuration.admit, spec)
        await in_thread(check_spec_quota, self.directory.home, self.directory.tenant, spec)
        if self.things is not None:
            await self.things.provide(self.directory, spec)
        if id is None or self.names is None:
            return (await self._offer(id, spec, exist_ok=exist_ok)).take()
        return await self._create_named(self.names, id, spec, exist_ok=exist_ok)

    async def _create_named(self, names: Names, id: str, spec: SandboxSpec, *, exist_ok: bool) -> Record:
        """Create a sandbox whose name no other node has: claimed before, and once more when it is there.

        Whoever destroys one of that name meanwhile frees the claim that was there before. The second claim makes sure
        that there is one after that, or finds that another node was faster: then nothing is left here.
        """
        await names.claim(id)
        try:
            offer = await self._offer(id, spec, exist_ok=exist_ok)
            try:
                await names.claim(id)
            except BaseException:
                await settled(offer.connection.withdraw())
                raise
        except BaseException:
            await settled(names.release(id))
            raise
        return offer.take()

    async def create_many(self, spec: SandboxSpec, count: int) -> list[Record]:
        """Create sandboxes that are alike, with new ids: all of them, or none.

        None is taken before the last one is there: those that wait undo themselves when this process is killed.
        """
        slots = await in_thread(lambda: read_slot(self.directory.home).count(spec.limits))
        await in_thread(check_room, self.directory, count * slots)
        making = [owned(self._offer(None, spec)) for _ in range(count)]
        try:
            done, _ = await asyncio.wait(making, return_when=asyncio.FIRST_EXCEPTION)
            offers = [each.result() for each in making if each in done]
        except BaseException:
            await settled(_withdraw_all(making))
            raise
        return [offer.take() for offer in offers]

    def _reserve(self, limits: Limits, key: str = "") -> AbstractAsyncContextManager[str]:
        if self.quotas is None or not self.directory.tenant:
            return nullcontext("")
        return self.quotas.reserve(self.directory, limits, key)

    async def _offer(self, id: str | None, spec: SandboxSpec, *, exist_ok: bool = False) -> "_Offer":
        """Have one made, within the quota of its tenant."""
        async with self._reserve(spec.limits) as reserved:
            return await self._offer_reserved(id, spec, reserved, exist_ok=exist_ok)

    async def _offer_reserved(self, id: str | None, spec: SandboxSpec, reserved: str, *, exist_ok: bool) -> "_Offer":
        """Have one made. What a process that was killed meanwhile has left is removed: nobody was given it."""
        code, socket = await in_thread(lambda: (self.directory.code(), self._claim(spec)))
        request = Create(
            id=id or new_id(code),
            spec=spec,
            exist_ok=exist_ok,
            tenant=self.directory.tenant,
            actor=ACTOR.get(),
            reserved=reserved,
        )
        if socket is not None:
            try:
                return await _ask(socket, request)
            except (OSError, asyncio.IncompleteReadError):  # it has died meanwhile, or hangs
                await in_thread(socket.unlink, missing_ok=True)
                await self._clear(request.id, is_new=id is None)
        try:
            return await self._ask_zygote(request)
        except SandboxUnavailable:
            await self._clear(request.id, is_new=id is None)
            raise

    async def _clear(self, id: str, *, is_new: bool) -> None:
        """Remove what is left of a creation that failed; with a new id it is nobody's but ours."""
        await settled(self.destroy(id) if is_new else self._discard_abandoned(id))

    async def _discard_abandoned(self, id: str) -> None:
        await asyncio.to_thread(discard_abandoned, self.directory, await self.hierarchies(), id)

    def _claim(self, spec: SandboxSpec) -> Path | None:
        """Take a warm sandbox, which stands on the host's system or on the image, and runs nothing."""
        snapshot = (
            None
            if spec.snapshot is None
            else LayerStore(self.directory.home, self.directory.tenant).find(spec.snapshot)
        )
        has_system = snapshot is not None and snapshot.system is not None
        try:
            claimed = None if has_system or spec.startup else self._pool.claim(spec)
        except CoveError:
            return None  # what is wrong with the image, who makes the sandbox says
        if self.configuration.warm_specs:
            result = "miss" if claimed is None else "hit"
            count_rarely(self.directory.home, f'cove_warm_pool_total{{result="{result}"}}')
        return claimed

    async def _get(self, existing: Record, exist_ok: bool) -> Record:
        if not exist_ok:
            raise SandboxAlreadyExists(f"sandbox {existing.id} exists already", id=existing.id)
        status = await in_thread(self.directory.status, existing)
        if status in (SandboxStatus.RUNNING, SandboxStatus.PAUSED) or (
            status is SandboxStatus.STOPPED and not existing.wakes
        ):
            return existing
        return await self.start(existing)

    async def start(self, record: Record) -> Record:
        """Start a stopped or lost sandbox on its files; one that runs is left as it is."""
        starter = self.of(record.tenant)
        async with starter._reserve(record.spec.limits, record.key) as reserved:
            request = Start(id=record.id, tenant=record.tenant, actor=ACTOR.get(), reserved=reserved)
            return (await self._ask_zygote(request)).take()

    async def destroy(self, id: str) -> None:
        """Free the id at once, and end and remove everything else. Idempotent."""
        hierarchies = await self.hierarchies()
        await in_thread(check_stays, self.directory, check_sandbox_id(id))
        free_name = None if self.names is None else await self.names.destroying(id)
        if key := await in_thread(free, self.directory, check_sandbox_id(id)):
            if self.mover is not None:
                await self.mover.fence(id, self.directory.tenant)
            # Large trees take their time: not in the threads that find sandboxes.
            await asyncio.to_thread(remove, self.directory, hierarchies, key)
            if free_name is not None:
                await free_name()

    async def hierarchies(self) -> Hierarchies:
        """Return the control group trees of this machine; looked up once."""
        if self._hierarchies is None:
            self._hierarchies = await in_thread(find_hierarchies)
        return self._hierarchies

    async def _ask_zygote(self, request: Request) -> "_Offer":
        try:
            return await _ask(self.directory.zygote, request)
        except asyncio.IncompleteReadError as error:
            raise SandboxUnavailable("the process that was to run the sandbox has ended: try again") from error
        except TimeoutError as error:
            raise SandboxUnavailable("the process that starts sandboxes does not answer: try again later") from error
        except OSError as error:
            raise SandboxUnavailable(
                f"no sandbox can be started just now: {error.strerror or error}. Try again."
            ) from error


@dataclass(frozen=True, slots=True)
class _Connection:
    """A connection to the process that is to run a sandbox."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, request: Request) -> Record:
        """Return the record that is the answer, or raise the error that it is."""
        self.writer.write(encode(request))
        async with asyncio.timeout(_ANSWER_SECONDS):
            reply = await receive_reply(self.reader)
        if reply.error is not None:
            raise make_error(reply.error)
        assert reply.record is not None
        return reply.record

    async def withdraw(self) -> None:
        """Take no answer: wait until the process that gives it has undone what it made."""
        with suppress(TimeoutError, OSError):
            self.writer.write_eof()
            async with asyncio.timeout(_UNDO_SECONDS):
                await self.reader.read()
        self.writer.close()


@dataclass(frozen=True, slots=True)
class _Offer:
    """A sandbox that runs, and that its process undoes unless it is taken."""

    record: Record
    connection: _Connection

    def take(self) -> Record:
        """Take it. Nothing is waited for: whoever were cancelled here would not learn what was acknowledged."""
        self.connection.writer.write(ACKNOWLEDGED)
        self.connection.writer.close()
        return self.record


async def _ask(socket: Path, request: Request) -> _Offer:
    async with asyncio.timeout(_CONNECT_SECONDS):
        connection = _Connection(*await asyncio.open_unix_connection(str(socket), limit=1 << 20))
    try:
        return _Offer(await connection.ask(request), connection)
    except asyncio.CancelledError:
        await connection.withdraw()
        raise
    except BaseException:
        connection.writer.close()
        raise


async def _withdraw_all(making: "Sequence[asyncio.Task[_Offer]]") -> None:
    for each in making:
        each.cancel()
    await asyncio.wait(making)
    offers = [each.result() for each in making if not each.cancelled() and each.exception() is None]
    await together(offer.connection.withdraw() for offer in offers)
