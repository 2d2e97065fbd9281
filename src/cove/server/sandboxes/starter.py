"""Create, start and destroy sandboxes from a gateway worker: it asks, and a process of their own does it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from cove.core.identifier import check_sandbox_id, new_identifier
from cove.errors import LimitExceeded, SandboxAlreadyExists, SandboxUnavailable
from cove.layers.store import LayerStore
from cove.linux.cgroup import Hierarchies, find_hierarchies
from cove.local.threads import in_thread
from cove.model import SandboxSpec, SandboxStatus
from cove.model.spec import HOST_IMAGE
from cove.runtime.life import refusal
from cove.server.configuration import Configuration
from cove.server.sandboxes.destroy_sandbox import remove
from cove.server.sandboxes.directory import Directory, Record
from cove.server.sandboxes.reservation import free
from cove.server.sandboxes.start_protocol import ACKNOWLEDGED, Create, Request, Start, encode, receive_reply
from cove.server.sandboxes.warm_pool import WarmPool
from cove.wire.errors import make_error

ID_LENGTH = 26
_CONNECT_SECONDS = 10.0
# Starting takes milliseconds, and many at once on a busy machine their time; who hangs for longer never answers.
_ANSWER_SECONDS = 120.0
_UNDO_SECONDS = 10.0


class Starter:
    """Asks the zygote, or a sandbox that waits for an id. Holds nothing but what it found out about the machine."""

    def __init__(self, home: Path, configuration: Configuration | None = None) -> None:
        self.directory = Directory(home)
        self.configuration = configuration or Configuration()
        self._pool = WarmPool(self.directory)
        self._hierarchies: Hierarchies | None = None

    async def create(
        self, id: str | None, spec: SandboxSpec, *, exist_ok: bool = False, is_ours: bool = False
    ) -> Record:
        """Create a sandbox, or with `exist_ok` find the one that has the id. A cancelled creation leaves nothing.

        A spec that `is_ours` is the server's own, out of its configuration: it may have what no client may ask for.
        """
        id = new_identifier(ID_LENGTH) if id is None else check_sandbox_id(id)
        existing = await in_thread(self.directory.find, id)
        if existing is not None:
            return await self._get(existing, exist_ok)
        spec = await in_thread(self.configuration.complete if is_ours else self.configuration.admit, spec)
        request = Create(id=id, spec=spec, exist_ok=exist_ok, most=self.configuration.max_sandboxes)
        socket = await in_thread(self._claim, spec)
        if socket is not None:
            try:
                return await _ask(socket, request)
            except (OSError, asyncio.IncompleteReadError):  # it has died meanwhile, or hangs
                await in_thread(socket.unlink, missing_ok=True)
        return await self._ask_zygote(request)

    def _claim(self, spec: SandboxSpec) -> Path | None:
        """Take a warm sandbox, which stands on the host's system."""
        snapshot = None if spec.snapshot is None else LayerStore(self.directory.home).find(spec.snapshot)
        has_image = spec.image != HOST_IMAGE or (snapshot is not None and snapshot.system is not None)
        return None if has_image or spec.startup else self._pool.claim(spec)

    async def _get(self, existing: Record, exist_ok: bool) -> Record:
        if not exist_ok:
            raise SandboxAlreadyExists(f"sandbox {existing.id} exists already", id=existing.id)
        status = await in_thread(self.directory.status, existing)
        if status in (SandboxStatus.RUNNING, SandboxStatus.PAUSED) or (
            status is SandboxStatus.STOPPED and not existing.wakes
        ):
            return existing
        return await self.start(existing)

    def check_room(self, count: int) -> None:
        """Raise LimitExceeded when so many more may not be made. Blocks."""
        most = self.configuration.max_sandboxes
        if most is not None and self.directory.count() + count > most:
            raise LimitExceeded(f"{count} more sandboxes would be more than {most}, the most this server may have")

    async def running(self, record: Record) -> Record:
        """Return a sandbox that runs: one that is stopped is started."""
        status = await in_thread(self.directory.status, record)
        if status in (SandboxStatus.RUNNING, SandboxStatus.PAUSED):
            return record
        if status is SandboxStatus.STOPPED and not record.wakes:
            raise refusal(record.id, status)
        return await self.start(record)

    async def start(self, record: Record) -> Record:
        """Start a stopped or lost sandbox on its files; one that runs is left as it is."""
        return await self._ask_zygote(Start(id=record.id))

    async def destroy(self, id: str) -> None:
        """Free the id at once, and end and remove everything else. Idempotent."""
        hierarchies = await self.hierarchies()
        if key := await in_thread(free, self.directory, check_sandbox_id(id)):
            # Large trees take their time: not in the threads that find sandboxes.
            await asyncio.to_thread(remove, self.directory, hierarchies, key)

    async def hierarchies(self) -> Hierarchies:
        """Return the control group trees of this machine; looked up once."""
        if self._hierarchies is None:
            self._hierarchies = await in_thread(find_hierarchies)
        return self._hierarchies

    async def _ask_zygote(self, request: Request) -> Record:
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


async def _ask(socket: Path, request: Request) -> Record:
    async with _connection(socket) as (reader, writer):
        writer.write(encode(request))
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                reply = await receive_reply(reader)
        except asyncio.CancelledError:
            await _withdraw(reader, writer)
            raise
        if reply.error is not None:
            raise make_error(reply.error)
        assert reply.record is not None
        writer.write(ACKNOWLEDGED)
        return reply.record


async def _withdraw(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Nobody will take the answer: wait until the process that gives it has undone what it made."""
    with suppress(TimeoutError, OSError):
        writer.write_eof()
        async with asyncio.timeout(_UNDO_SECONDS):
            await reader.read()


@asynccontextmanager
async def _connection(socket: Path) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter], None]:
    async with asyncio.timeout(_CONNECT_SECONDS):
        reader, writer = await asyncio.open_unix_connection(str(socket), limit=1 << 20)
    try:
        yield reader, writer
    finally:
        writer.close()  # not waited for: whoever were cancelled here would not learn what was acknowledged
