"""The process of one sandbox: it makes or starts it, serves it, and sees to its end.

Theory of operation. A fork of the zygote reads one request, opens a sandbox and answers; from then on it is the
sandbox's runtime. `_Opened` is what has to be undone when nobody took the answer. A runtime ends when its sandbox
does: destroyed (by a call, by the end of its lifetime, or because its id was taken away and TERM came), stopped
(idle, or TERM), or lost with its jail. Only a destroyed one leaves nothing; the others leave their files and a record
that says which.
"""

import asyncio
import logging
import os
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import uvloop

from cove.errors import CoveError, LimitExceeded, SandboxAlreadyExists, SandboxDestroyed, SandboxNotFound
from cove.http import HttpLimits, HttpServer
from cove.model import SandboxSpec, SandboxStatus
from cove.runtime.home import SOCKET, Place
from cove.runtime.machine import Machine, examine_machine
from cove.runtime.mounts import resolve_mounts
from cove.runtime.sandbox import Sandbox
from cove.runtime.threads import in_thread
from cove.server.bridge.runtime import with_bridge
from cove.server.failure import describe_failure
from cove.server.preview.exposures import RecordedPorts, read_exposures
from cove.server.runtime.activity import Activity
from cove.server.runtime.log import log_to
from cove.server.runtime.routes import make_handler
from cove.server.sandboxes.directory import Directory, Record
from cove.server.sandboxes.removal import remove
from cove.server.sandboxes.reservation import Reservation
from cove.server.sandboxes.start_protocol import (
    ACKNOWLEDGED,
    Create,
    Prepare,
    Reply,
    Request,
    Start,
    encode,
    receive_request,
)
from cove.server.sandboxes.warm import WarmPool
from cove.wire.errors import ErrorBody

_REQUEST_SECONDS = 10.0
_BACKLOG = 1024
_ROUNDS = 4
# Half of what a gateway worker takes: one sandbox alone locks nobody out.
_LIMITS = HttpLimits(connections=HttpLimits().connections // 2)

log = logging.getLogger("cove.server")


def run_runtime(connection: socket.socket, directory: Directory, machine: Machine | None) -> None:
    """Be the process that a request on this connection asks for. Returns when the sandbox has ended."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Process(directory, machine).run(connection))


@dataclass(slots=True)
class _Opened:
    """A sandbox that was opened, with the id that it has and holds."""

    sandbox: Sandbox
    place: Place
    reservation: Reservation
    record: Record
    listener: socket.socket
    is_new: bool


class _Process:
    """From the first request to the end."""

    def __init__(self, directory: Directory, machine: Machine | None) -> None:
        self._directory = directory
        self._machine = machine
        self._pool = WarmPool(directory)
        self._told_to_stop = asyncio.Event()
        self._is_lost = False

    async def run(self, connection: socket.socket) -> None:
        """Answer the request; serve, if there is a sandbox now."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._told_to_stop.set)
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        opened = None
        with suppress(asyncio.IncompleteReadError, TimeoutError, ConnectionError):
            async with asyncio.timeout(_REQUEST_SECONDS):
                request = await receive_request(reader)
            opened = await self._answer(request, reader, writer)
        writer.close()
        if opened is not None:
            await self._serve(opened)

    async def _answer(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> _Opened | None:
        if isinstance(request, Prepare):
            return await self._prepare(request)
        try:
            opened = await (self._create(request) if isinstance(request, Create) else self._start(request))
            return await self._hand_over(opened, reader, writer)
        except CoveError as error:
            writer.write(encode(Reply(error=ErrorBody(error.message, error.code, error.details))))
            return None

    async def _hand_over(
        self, opened: _Opened | Record, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> _Opened | None:
        """Give the answer. A new sandbox that nobody takes, or whose id was taken away meanwhile, is undone."""
        if isinstance(opened, Record):
            writer.write(encode(Reply(record=opened)))
            return None
        if not opened.reservation.is_current:
            await self._undo(opened)
            raise SandboxDestroyed(f"sandbox {opened.record.id} was destroyed while it started")
        writer.write(encode(Reply(record=opened.record)))
        taken = b""
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(_REQUEST_SECONDS):
                taken = await reader.read(1)
        if opened.is_new and taken != ACKNOWLEDGED:
            await self._undo(opened)
            return None
        opened.reservation.let_go()
        return opened

    # Making

    async def _create(self, request: Create, warm: "tuple[Sandbox, Place] | None" = None) -> _Opened | Record:
        reservation = await in_thread(Reservation.hold, self._directory, request.id)
        existing = await in_thread(self._directory.read, reservation.key)
        if existing is not None and await in_thread(self._directory.is_known, existing):
            if not request.exist_ok:
                reservation.close()
                raise SandboxAlreadyExists(f"sandbox {request.id} exists already", id=request.id)
            return await self._open_again(reservation, existing)
        try:
            if existing is not None:
                await in_thread(remove, self._directory, (await self._examine()).hierarchies, existing.key)
            await self._check_room(request.most)
            sandbox, place = warm or await self._start_new(request, reservation)
        except BaseException:
            reservation.remove()
            raise
        if warm is not None:
            reservation.assign(place.key)
            sandbox.adopt(request.id, request.spec, datetime.now(UTC))
        return await self._record(sandbox, place, reservation, is_new=True)

    async def _check_room(self, most: int | None) -> None:
        if most is not None and await in_thread(self._directory.count) > most:
            raise LimitExceeded(f"this server has {most} sandboxes, which is the most it may have: destroy some")

    async def _start_new(self, request: Create, reservation: Reservation) -> tuple[Sandbox, Place]:
        place = await in_thread((await self._examine()).home.allocate)
        reservation.assign(place.key)
        return await self._start_at(place, request.id, request.spec, datetime.now(UTC)), place

    async def _start_at(self, place: Place, id: str, spec: SandboxSpec, created_at: datetime) -> Sandbox:
        """A running sandbox at a new place, which is removed if that fails."""
        machine = await self._examine()
        try:
            log_to(place.path)
            spec = await in_thread(resolve_mounts, spec, str(machine.home.path))
            sandbox = Sandbox(id, spec, machine, place, created_at=created_at)
            await sandbox.start()
        except BaseException:
            await in_thread(machine.home.release, place)
            raise
        return sandbox

    async def _record(self, sandbox: Sandbox, place: Place, reservation: Reservation, *, is_new: bool) -> _Opened:
        """Listen and write the record: the sandbox exists."""
        sandbox.enforces_idle_timeout = True
        exposures = await in_thread(read_exposures, place.path)
        sandbox.publish_ports(RecordedPorts(self._directory, place.key, exposures), exposures)
        listener = _listen(self._directory.place(place.key) / SOCKET)
        info = await sandbox.info()
        record = Record(
            id=sandbox.id,
            key=place.key,
            spec=info.spec,
            created_at=info.created_at,
            user_id=place.user_id,
            tree_kill=info.tree_kill,
            limits_enforced=info.limits_enforced,
            warnings=info.warnings,
        )
        await in_thread(self._directory.write, record)
        return _Opened(sandbox, place, reservation, record, listener, is_new)

    async def _undo(self, opened: _Opened) -> None:
        """Nobody wants it."""
        opened.listener.close()
        await in_thread(opened.reservation.remove)
        await opened.sandbox.destroy()

    async def _examine(self) -> Machine:
        if self._machine is None:
            self._machine = await in_thread(examine_machine)
        return self._machine

    # Starting again

    async def _start(self, request: Start) -> _Opened | Record:
        reservation = await in_thread(Reservation.hold, self._directory, request.id)
        record = await in_thread(self._directory.find, request.id)
        if record is None:
            if not reservation.key:
                reservation.remove()
            raise SandboxNotFound(f"there is no sandbox {request.id}", id=request.id)
        return await self._open_again(reservation, record)

    async def _open_again(self, reservation: Reservation, record: Record) -> _Opened | Record:
        machine = await self._examine()
        place = await in_thread(machine.home.take, record.key, machine.hierarchies)
        if place is None:
            reservation.close()
            return record
        log_to(place.path)
        sandbox = Sandbox(record.id, record.spec, machine, place, created_at=record.created_at)
        try:
            await sandbox.start()
        except BaseException:
            machine.home.keep(place)
            reservation.close()
            raise
        return await self._record(sandbox, place, reservation, is_new=False)

    # Waiting for an id

    async def _prepare(self, request: Prepare) -> _Opened | None:
        """Start a sandbox, wait for one request, and be what it asks for."""
        place = await in_thread((await self._examine()).home.allocate)
        sandbox = await self._start_at(place, place.key, request.spec, datetime.now(UTC))
        opened = await self._wait_for_an_id(sandbox, place, request)
        if opened is None:
            await sandbox.destroy()
        return opened

    async def _wait_for_an_id(self, sandbox: Sandbox, place: Place, prepared: Prepare) -> _Opened | None:
        if await in_thread(self._pool.count, prepared.spec) >= prepared.most:
            return None
        wanted = await self._until_claimed(sandbox, prepared.spec, place.key)
        if wanted is None:
            return None
        reader, writer = await asyncio.open_unix_connection(sock=wanted)
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                request = await receive_request(reader)
            assert isinstance(request, Create)
            await in_thread(self._pool.replenish, prepared.spec, prepared.most)
            opened = await self._create(request, (sandbox, place))
            return await self._hand_over(opened, reader, writer)
        except CoveError as error:
            writer.write(encode(Reply(error=ErrorBody(error.message, error.code, error.details))))
            return None
        except (asyncio.IncompleteReadError, TimeoutError, ConnectionError):
            return None
        finally:
            writer.close()

    async def _until_claimed(self, sandbox: Sandbox, spec: SandboxSpec, key: str) -> socket.socket | None:
        """Whoever claimed this sandbox; None when it is not to wait any longer, or is lost."""
        building = self._pool.building()
        with _listen(building) as listener:
            listener.setblocking(False)
            await in_thread(self._pool.add, spec, key, building)
            sandbox.on_lost = self._told_to_stop.set
            accepting = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(listener))
            stopping = asyncio.ensure_future(self._told_to_stop.wait())
            await asyncio.wait([accepting, stopping], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            accepting.cancel()
            self._pool.forget(spec, key)
        return None if accepting.cancelled() or not accepting.done() else accepting.result()[0]

    # Serving

    async def _serve(self, opened: _Opened) -> None:
        sandbox, spec = opened.sandbox, opened.record.spec
        activity = Activity(lambda: sandbox.running_processes)
        ended = asyncio.ensure_future(self._until_ended(sandbox))
        idle = asyncio.ensure_future(activity.until_idle(None if spec.keep_alive else spec.idle_timeout))
        handler = activity.count(with_bridge(sandbox, make_handler(sandbox)))
        async with HttpServer(handler, [opened.listener], describe=describe_failure, limits=_LIMITS) as server:
            await asyncio.wait([ended, idle], return_when=asyncio.FIRST_COMPLETED)
            while not ended.done() and not await self._withdraw(opened, activity, server):
                idle = asyncio.ensure_future(activity.until_idle(spec.idle_timeout))
                await asyncio.wait([ended, idle], return_when=asyncio.FIRST_COMPLETED)
            if ended.done():  # whoever waits for an answer gets one: an idle sandbox has nobody
                await self._end_sandbox(opened)
            ended.cancel()
            idle.cancel()
        await self._end(opened)

    async def _withdraw(self, opened: _Opened, activity: Activity, server: HttpServer) -> bool:
        """Let nobody come any more. Whoever came just then is served: then it is not time to stop."""
        await in_thread(opened.reservation.hold_again)
        if not await self._note(opened, SandboxStatus.STOPPED):  # it would be lost: it stays until that can be written
            opened.reservation.let_go()
            activity.touch()
            return False
        path = self._directory.socket(opened.record)
        withdrawn = path.with_suffix(".withdrawn")
        path.rename(withdrawn)
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)  # connections that were made are accepted, and what was sent is read
        if activity.is_quiet and not server.is_in_use:  # a request is read before its call begins
            withdrawn.unlink()
            return True
        withdrawn.rename(path)
        await self._note(opened, SandboxStatus.RUNNING)
        activity.touch()
        opened.reservation.let_go()
        return False

    async def _note(self, opened: _Opened, status: SandboxStatus) -> bool:
        """Write it into the record; False when that cannot be, as on a full disk."""
        try:
            await in_thread(self._directory.write, msgspec.structs.replace(opened.record, status=status))
        except OSError as error:
            log.error("cannot record that the sandbox is %s: %s", status, error)
            return False
        return True

    async def _until_ended(self, sandbox: Sandbox) -> None:
        """Until it is destroyed or lost by itself, or this process is told to stop."""
        sandbox.on_end = sandbox.on_lost = self._told_to_stop.set
        if (await sandbox.info()).status is SandboxStatus.RUNNING:
            await self._told_to_stop.wait()

    async def _end_sandbox(self, opened: _Opened) -> None:
        if opened.sandbox.is_destroyed or not opened.reservation.is_current:
            await in_thread(opened.reservation.remove)
            await opened.sandbox.destroy()
        else:
            self._is_lost |= (await opened.sandbox.info()).status is SandboxStatus.LOST
            await opened.sandbox.close()

    async def _end(self, opened: _Opened) -> None:
        """Leave a record of a sandbox that stays. Whoever starts it again waits until this process is gone."""
        if not opened.sandbox.is_destroyed:
            await in_thread(opened.reservation.hold_again)
            await self._end_sandbox(opened)
        if not opened.sandbox.is_destroyed:
            status = SandboxStatus.LOST if self._is_lost else SandboxStatus.STOPPED
            await self._note(opened, status)
            # The end of this process lets go of the id: whoever waits for that must find the place free.
            opened.place.lock.close()


def _listen(path: Path) -> socket.socket:
    """A socket that only this user can connect to."""
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(_BACKLOG)
    return listener
