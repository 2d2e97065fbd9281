"""Create a sandbox, or start one again on its files: its id is reserved until somebody has taken the response."""

import logging
import os
import socket
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from cove.errors import SandboxAlreadyExists, SandboxNotFound, SandboxUnavailable
from cove.local.threads import in_thread
from cove.model import JournalKind, SandboxSpec
from cove.runtime.allocation import allocate
from cove.runtime.home import SOCKET, Place
from cove.runtime.journal import ACTOR
from cove.runtime.machine import Machine, examine_machine
from cove.runtime.mount_admission import Grants
from cove.runtime.mounts import resolve_mounts
from cove.runtime.sandbox import Sandbox
from cove.server.preview.exposures import RecordedPorts, read_exposures
from cove.server.sandboxes.capacity import check_room
from cove.server.sandboxes.cpu_shares import enter_share
from cove.server.sandboxes.destroy_sandbox import has_ended, remove
from cove.server.sandboxes.directory import Directory, Record
from cove.server.sandboxes.moves import check_gone, check_stays
from cove.server.sandboxes.network_grants import read_grants, read_mount_grants
from cove.server.sandboxes.quotas import enter, network_grants_of, reserve_snapshot
from cove.server.sandboxes.reservation import Reservation
from cove.server.sandboxes.slots import take_slots
from cove.server.sandboxes.start_protocol import Create, Start, listen

_NAME = "runtime.log"
_MOST_BYTES = 1 << 20


@dataclass(slots=True)
class OpenedSandbox:
    """A sandbox that was opened, with the id that it has and holds."""

    sandbox: Sandbox
    place: Place
    reservation: Reservation
    record: Record
    listener: socket.socket
    is_new: bool


class SandboxOpener:
    """Opens the one sandbox that this process is for."""

    def __init__(self, directory: Directory, machine: Machine | None) -> None:
        self._directory = directory
        self._machine = machine
        self._reserved = ""

    async def create(self, request: Create, warm: tuple[Sandbox, Place] | None = None) -> OpenedSandbox | Record:
        """A new one, or the `warm` one by that id; one that exists is opened again, or only told where it runs."""
        ACTOR.set(request.actor)
        await self._belong_to(request)
        reservation = await in_thread(Reservation.hold, self._directory, request.id)
        entry = reservation.entry
        existing = await in_thread(self._directory.read, entry.key)
        if existing is not None and not entry.is_offered and await in_thread(self._directory.is_known, existing):
            if not request.exist_ok:
                reservation.close()
                raise SandboxAlreadyExists(f"sandbox {request.id} exists already", id=request.id)
            return await self._open_again(reservation, existing)
        try:
            if existing is not None:
                await in_thread(remove, self._directory, (await self._examine()).hierarchies, existing.key)
            await in_thread(take_slots, self._directory, request.id, request.spec.limits)
            await in_thread(check_room, self._directory)
            sandbox, place = await (
                self._start_new(request, reservation) if warm is None else self._adopt(warm, request, reservation)
            )
        except BaseException:
            reservation.remove()
            raise
        return await self._record(sandbox, place, reservation, is_new=True)

    async def _adopt(
        self, warm: tuple[Sandbox, Place], request: Create, reservation: Reservation
    ) -> tuple[Sandbox, Place]:
        sandbox, place = warm
        await in_thread(enter, self._directory, place.key, request.spec.limits, self._reserved)
        reservation.offer(place.key)
        sandbox.adopt(request.id, request.spec, datetime.now(UTC))
        sandbox.note_created()
        await sandbox.begin_layers()
        await sandbox.begin_network()
        return warm

    async def start(self, request: Start) -> OpenedSandbox | Record:
        """Start one that is stopped or lost; of one that runs, return only its record."""
        ACTOR.set(request.actor)
        await self._belong_to(request)
        reservation = await in_thread(Reservation.hold, self._directory, request.id)
        entry = reservation.entry
        record = None if entry.is_offered else await in_thread(self._directory.find, request.id)
        if record is None:
            if not entry.key:
                reservation.remove()
            await in_thread(check_gone, self._directory, request.id)
            raise SandboxNotFound(f"there is no sandbox {request.id}", id=request.id)
        return await self._open_again(reservation, record)

    async def _belong_to(self, request: Create | Start) -> None:
        """See from here on what the tenant sees, and nothing else: this process has one sandbox only."""
        tenant, self._reserved = request.tenant, request.reserved
        self._directory = self._directory.of(tenant)
        machine = await self._examine()
        home = machine.home
        home.belong_to(tenant)
        if tenant:
            hierarchies = await in_thread(enter_share, machine.hierarchies, home.path, tenant)
            self._machine = replace(machine, hierarchies=hierarchies)
        home.layers.admit = partial(reserve_snapshot, home.path, tenant)

    async def prepare(self, spec: SandboxSpec) -> tuple[Sandbox, Place]:
        """Start a warm sandbox: it has no id yet, and no record."""
        place = await in_thread(allocate, await self._examine(), spec)
        return await self._start_at(place, place.key, spec, is_warm=True), place

    async def undo(self, opened: OpenedSandbox) -> None:
        """Destroy a sandbox that nobody wants."""
        opened.listener.close()
        await in_thread(opened.reservation.remove)
        await opened.sandbox.destroy()

    async def _start_new(self, request: Create, reservation: Reservation) -> tuple[Sandbox, Place]:
        place = await in_thread(allocate, await self._examine(), request.spec)
        reservation.offer(place.key)
        return await self._start_at(place, request.id, request.spec), place

    async def _start_at(self, place: Place, id: str, spec: SandboxSpec, *, is_warm: bool = False) -> Sandbox:
        """A running sandbox at a new place, which is removed if that fails."""
        created_at = datetime.now(UTC)
        machine = await self._examine()
        try:
            log_to(place.path)
            await in_thread(enter, self._directory, place.key, spec.limits, self._reserved)
            spec = await in_thread(resolve_mounts, spec, str(machine.home.path))
            sandbox = self._make(id, spec, machine, place, created_at)
            if not is_warm:
                sandbox.note_created()
            await sandbox.open_first()
        except BaseException:
            await in_thread(machine.home.release, place)
            raise
        return sandbox

    def _make(self, id: str, spec: SandboxSpec, machine: Machine, place: Place, created_at: datetime) -> Sandbox:
        sandbox = Sandbox(id, spec, machine, place, created_at=created_at)
        sandbox.network.read_grants = lambda: network_grants_of(machine.home.path, self._directory.tenant)
        sandbox.mounts.sandbox.read_grants = partial(_read_grants, machine.home.path)
        return sandbox

    async def _record(self, sandbox: Sandbox, place: Place, reservation: Reservation, *, is_new: bool) -> OpenedSandbox:
        """Listen and write the record: the sandbox exists."""
        exposures = await in_thread(read_exposures, place.path)
        sandbox.publish_ports(RecordedPorts(self._directory, place.key, exposures), exposures)
        listener = listen(self._directory.place(place.key) / SOCKET)
        info = await sandbox.info()
        record = Record(
            id=sandbox.id,
            tenant=self._directory.tenant,
            key=place.key,
            spec=info.spec,
            origin=sandbox.origin,
            created_at=info.created_at,
            user_id=place.user_id,
            tree_kill=info.tree_kill,
            limits_enforced=info.limits_enforced,
            users=info.users,
            warnings=info.warnings,
            snapshots=info.snapshots,
            ends_at=sandbox.ends_at,
            env=sandbox.env_changes,
        )
        await in_thread(self._directory.write, record)
        return OpenedSandbox(sandbox, place, reservation, record, listener, is_new)

    async def _examine(self) -> Machine:
        if self._machine is None:
            self._machine = await in_thread(examine_machine)
        return self._machine

    async def _open_again(self, reservation: Reservation, record: Record) -> OpenedSandbox | Record:
        machine = await self._examine()
        try:
            await in_thread(check_stays, self._directory, record.id)
        except SandboxUnavailable:
            reservation.close()
            raise
        place = await in_thread(machine.home.take, record.key, machine.hierarchies)
        if place is None and await in_thread(has_ended, self._directory, record):
            place = await in_thread(machine.home.take, record.key, machine.hierarchies)
        if place is None:
            reservation.close()
            return record
        log_to(place.path)
        sandbox = self._make(record.id, record.spec, machine, place, record.created_at)
        sandbox.go_on(record.deadline, record.env, record.created_spec)
        sandbox.journaling.record(JournalKind.STARTED)
        try:
            await in_thread(enter, self._directory, place.key, record.spec.limits, self._reserved)
            await sandbox.open_first(restores=True)
        except BaseException:
            machine.home.keep(place)
            reservation.close()
            raise
        return await self._record(sandbox, place, reservation, is_new=False)


def _read_grants(home: Path) -> Grants:
    return Grants(read_mount_grants(home), read_grants(home))


class _PrivateLog(RotatingFileHandler):
    """The file that follows a full one is nobody else's to read either."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=_open_private)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def log_to(place: Path) -> None:
    """Redirect standard error and all log messages to the log of that place."""
    path = place / _NAME
    descriptor = _open_private(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    handler = _PrivateLog(path, maxBytes=_MOST_BYTES, backupCount=1)
    logging.basicConfig(handlers=[handler], format="%(asctime)s %(name)s %(levelname)s %(message)s", force=True)
