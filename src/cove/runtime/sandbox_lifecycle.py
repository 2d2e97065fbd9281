"""The lifecycle of one sandbox: start, stop, restart and destroy its jail and what is built on it."""

import asyncio
import builtins
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

import msgspec

from cove.api import AsyncSandbox
from cove.core.command import merge_environment
from cove.core.exposure import Exposure
from cove.core.jail import WORKSPACE
from cove.errors import SandboxUnavailable, ValidationFailed
from cove.linux.subordinate import fits
from cove.local.threads import in_thread
from cove.model import (
    JournalKind,
    Outcome,
    SandboxSpec,
    SandboxStatus,
)
from cove.runtime.activity import Activity
from cove.runtime.backup_store import BackupStore
from cove.runtime.connection import connect_inside
from cove.runtime.disk_watch import DiskWatch, Watched
from cove.runtime.file_access import FileAccess
from cove.runtime.files import Files
from cove.runtime.freezer import Freezer
from cove.runtime.git import Git
from cove.runtime.home import Place
from cove.runtime.isolation import Inside, backend_of
from cove.runtime.jail import Jail
from cove.runtime.journal import Journal
from cove.runtime.journal_files import JOURNAL
from cove.runtime.layers import SandboxLayers
from cove.runtime.life import Life
from cove.runtime.machine import Machine
from cove.runtime.network import SandboxNetwork
from cove.runtime.port_listener import PortListeners
from cove.runtime.ports import Ports, Publisher
from cove.runtime.process import Process
from cove.runtime.sandbox_accounts import SandboxAccounts
from cove.runtime.sandbox_end import SandboxEnd
from cove.runtime.sandbox_jail import begin_attachment, close_attachment, make_jail, prepare_files
from cove.runtime.sandbox_life import ends_at
from cove.runtime.sandbox_mounts import Host, Mounts
from cove.runtime.sandbox_sessions import SandboxSessions
from cove.runtime.spawner import Spawner
from cove.runtime.squash import Squash
from cove.runtime.state import Living, SandboxState
from cove.runtime.surfaces import Surfaces
from cove.runtime.users import Users, has_all
from cove.tasks import end

# Seals the files as they are; returns the spec of copies that stand on them.
Seal = Callable[[], Awaitable[SandboxSpec]]


async def _nobody_makes_copies(seal: Seal, count: int) -> builtins.list[AsyncSandbox]:
    """Refuse: a server makes the copies of its sandboxes."""
    raise ValidationFailed("copies of a server's sandbox are made by the server: POST /v1/sandboxes/{id}/fork")


class SandboxLifecycle(SandboxAccounts):
    """`open_first` gives it its jail, and each start after a stop another one. It ends with `destroy`."""

    files: Files
    git: Git
    mounts: Mounts
    ports: Ports

    def __init__(
        self, id: str, spec: SandboxSpec, machine: Machine, place: Place, *, created_at: datetime | None = None
    ) -> None:
        self._machine = machine
        self._place = place
        self._has_jail = False
        self._died: str | None = None
        self.loop = asyncio.get_running_loop()
        self.activity = Activity(lambda: self.running_processes)
        self.life = Life(self, self.activity, lambda: self.on_lost())  # noqa: PLW0108  # it changes
        self.journaling = self.life.journal = Journal(place.path / JOURNAL, lambda: self._spec.journal)
        self._ending = SandboxEnd(self.life, lambda: self.id)
        self.env_changes: dict[str, str | None] = {}
        self._env: Mapping[str, str] = {}
        self._has_begun = False
        self.network = SandboxNetwork(place, machine.home, self.journaling)
        self.layers = SandboxLayers(machine, place)
        self._sessions = SandboxSessions(place.path, self.layers, lambda: self._surfaces.sessions)
        squash = Squash(self.layers, self.life.turn)
        self._state = SandboxState(self.layers, squash, self._parts, self.life.running_turn, self.life.begin_again)
        self.on_fork: Callable[[Seal, int], Awaitable[builtins.list[AsyncSandbox]]] = _nobody_makes_copies
        self.on_end: Callable[[], None] = lambda: None
        self.on_lost: Callable[[], None] = lambda: None
        self.mounts = Mounts(
            Host(machine, place, lambda: self._spec, self._set_mounts, self._check_running, user=self._user_inside),
            self.life.running_turn,
        )
        self.mounts.gate = self.life
        self.publish_ports(PortListeners(self._connect))
        self.adopt(id, spec, created_at or datetime.now(UTC))

    def adopt(self, id: str, spec: SandboxSpec, created_at: datetime) -> None:
        """Give a warm sandbox its id: its jail is made alike, and nothing has run in it yet."""
        self.id = id
        self._spec = self.origin = spec
        self.created_at = created_at
        self._settle_in(backend_of(spec.isolation).inside(self._machine, self._place, self.layers.place.system))
        self.ends_at = ends_at(created_at, spec.lifetime)
        self.schedule_end()

    def go_on(self, ends_at: datetime | None, env: Mapping[str, str | None], origin: SandboxSpec) -> None:
        """Set what a process before this one was told about the sandbox, and the spec of its creation."""
        self.origin = origin
        self.ends_at = ends_at
        self.schedule_end()
        self.env_changes = dict(env)
        self._env = merge_environment(self._env, env)

    def _settle_in(self, inside: Inside) -> None:
        self._inside = inside
        self._env = merge_environment(inside.env, self._spec.env, self.env_changes)
        self._cwd = inside.workspace if self._spec.workdir == WORKSPACE else self._spec.workdir

    async def forget_changes(self) -> None:
        """Let the spec of its creation hold again, in the next jail; it ends when it would have."""
        self._spec = msgspec.structs.replace(self.origin, lifetime=self._spec.lifetime)
        self.env_changes = {}
        self._settle_in(self._inside)
        await self.ports.revoke()
        await in_thread(self.mounts.release_others)

    def publish_ports(self, publisher: Publisher, exposures: Iterable[Exposure] = ()) -> None:
        """Expose ports in this way, and these at once. Nobody has used any yet."""
        self.ports = Ports(self._connect, publisher, self._check_running, exposures, self.life)
        self.ports.journal = self.journaling

    async def _connect(self, port: int) -> socket.socket:
        self._check_running()
        return await connect_inside(self._jail.link, port)

    def _parts(self) -> Living:
        self._check_running()
        return Living(self._jail, self._surfaces.sessions, self._surfaces.contexts, self._surfaces.spawner.background)

    async def open_first(self, *, restores: bool = False) -> None:
        """Start the first jail of this process, with the sessions that were kept. The caller shields it from cancel."""
        try:
            if restores:
                await in_thread(self.mounts.release_others)
                await self._sessions.restore_kept(self._start)
            else:
                await self._sessions.restore_from(self._spec.snapshot, self._start)
        except BaseException:
            if self._death is not None:
                self._death.cancel()
            raise

    async def begin(self) -> None:
        """Start a jail where one was before, with the sessions of that one."""
        await in_thread(self._machine.home.refurnish, self._place)
        await self._start()
        if self._died is not None:
            await self._end(Outcome.LOST)
            raise SandboxUnavailable(f"sandbox {self.id} was lost while it started: {self._died}. Try again.")
        await self._sessions.wake()

    async def finish(self, why: str) -> None:
        """End the jail; its sessions sleep until the next one."""
        if self._has_jail:
            self._ending.why = why
            await self._sessions.sleep(lambda: self._end(Outcome.STOPPED))

    def _user_inside(self) -> tuple[int, int]:
        """The numbers of the sandbox's user and its group; those of a system on which it has one user do not matter."""
        system = self.layers.place.system
        return (0, 0) if system is None else (system.user_id, system.group_id)

    async def freeze(self) -> None:
        """Freeze the jail."""
        await self._freezer.freeze()

    async def thaw(self) -> None:
        """Thaw the jail."""
        await self._freezer.thaw()

    async def _start(self) -> None:
        self._died = None
        attach = await self.network.attachments(self._spec.network)
        machine, place = self._machine, self._place
        attachment = await in_thread(begin_attachment, machine, place, self._spec)
        try:
            groups = await in_thread(prepare_files, self.id, machine, place, self._spec, self.layers)
        except BaseException:
            await close_attachment(attachment)
            raise
        try:
            system = self.layers.place.system
            if system is not None and not self._has_begun:
                self._settle_in(await in_thread(backend_of(self._spec.isolation).inside, machine, place, system))
            self._has_begun = True
            jail, spawner = await make_jail(
                machine,
                place,
                self._spec,
                self.layers,
                groups,
                attach=attach,
                attachment=attachment,
                on_lost=self.lose,
            )
        except BaseException:
            await close_attachment(attachment)
            self.layers.close()
            await in_thread(groups.remove)
            raise
        try:
            await self.open(jail, spawner)
        except BaseException:
            await jail.close()
            await self.mounts.close()
            self.layers.close()
            raise
        self._has_jail = True
        for warning in (await self.info()).warnings:
            self.journaling.record(JournalKind.WARNING, reason=warning[:200])

    async def open(self, jail: Jail, spawner: Spawner) -> None:
        """Take over a started jail."""
        self._jail = jail
        self._freezer = Freezer(jail)
        jail.link.explain = self._ending.explain
        jail.link.gate = self.life
        jail.link.journal = self.journaling
        self.users = Users(
            self.layers.place.system,
            FileAccess(jail.link),
            has_users=self._place.users > 1,
            has=fits if self._place.slice is not None else has_all,
        )
        self._surfaces = surfaces = Surfaces(
            jail,
            spawner,
            self.network.open(jail),
            self._place,
            self._inside,
            self._spec.limits,
            base=self._base,
            env=lambda: self._env,
            find_user=self.users.find,
        )
        if not hasattr(self, "files"):
            self.files, self.git = surfaces.files, surfaces.git
        self.files.work_in(surfaces.files)
        self.git.work_in(surfaces.git)
        self.backups = surfaces.make_backups(BackupStore(self._machine.home), self._base, lambda: self.id)
        self.backups.gate = self.life
        await self.mounts.open(jail, surfaces.watched())
        await spawner.open()
        await self.begin_network()
        await surfaces.run_startup(self._startup(), cwd=self._cwd, env=self._env)
        if jail.groups.is_disk_watched:
            spawner.background.start(self._watch_disk(surfaces.watched()).run())

    def _watch_disk(self, watched: Watched) -> DiskWatch:
        return DiskWatch(lambda: self.layers.place.directories, self._spec.limits, watched, measure=self.layers.measure)

    def _base(self) -> str:
        self._check_running()
        return self._cwd

    async def detach(self) -> None:
        """Do nothing: an embedded sandbox stays."""

    async def begin_layers(self) -> None:
        """Stand on the snapshot of a spec that was adopted: nothing has run yet."""
        if self._spec.snapshot is not None:
            await self._sessions.restore_from(self._spec.snapshot, partial(self._state.begin, self._spec.snapshot))

    def _startup(self) -> Sequence[str]:
        """The command that it is to run from its start on."""
        system = self.layers.place.system
        if self._spec.startup is not True:
            return self._spec.startup or ()
        if system is None or not system.startup:
            raise ValidationFailed("the image says nothing that it would start: give a list of words as startup")
        return system.startup

    async def close(self) -> None:
        """End everything that runs; the files and the place stay as they are. Idempotent."""
        self._start_closing()
        await self._ending.closing.result()

    def _start_closing(self) -> None:
        if self._ending.closing.start(self._close):
            if self._death is not None:
                self._death.cancel()
            self.life.close()
            self.on_end()

    async def _close(self) -> None:
        if self._idling is not None:
            await end(self._idling)
        if self._has_jail:
            self._jail.kill()  # whoever has the turn waits for nothing inside any more
            self._surfaces.spawner.shut(Outcome.KILLED)
            await in_thread(self.layers.end_copy)
        async with self.life.turn:
            self.life.status = SandboxStatus.STOPPED
            await self._end(Outcome.KILLED)
        self._sessions.close()
        await self.ports.close()
        await self.journaling.close()

    async def _end(self, outcome: Outcome) -> None:
        if not self._has_jail:
            return
        self._has_jail = False
        self._state.close()
        self._jail.kill()
        self._surfaces.spawner.shut(outcome)
        self.ports.end_connections()
        await self._surfaces.close(outcome)
        await self.mounts.end_buckets()
        await self._jail.close()
        await self.mounts.close()
        self.layers.close()
        await self._freezer.thaw()

    async def destroy(self) -> None:
        self._start_destroying()
        await self._ending.destroying.result()

    def _start_destroying(self) -> None:
        if not self.loop.is_closed():
            if self._ending.destroying.start(self._destroy):
                self.life.is_destroyed = True
                self._start_closing()
        elif self._ending.destroying.start(lambda: in_thread(self.abandon)):  # nothing else of it could be waited for
            self.life.is_destroyed = True
            self.life.close()
            self.on_end()

    async def _destroy(self) -> None:
        await self.close()
        await in_thread(self.mounts.forget)
        await in_thread(self._machine.home.release, self._place)

    @property
    def is_destroyed(self) -> bool:
        """Return whether its files go too, or are gone."""
        return self._ending.destroying.is_started

    @property
    def running_processes(self) -> "builtins.list[Process]":
        """Return those that were started on their own and have not ended."""
        running = self._surfaces.processes.list() if self._has_jail else []
        return [process for process in running if process.ended_at is None]

    def abandon(self) -> None:
        """End the jail and remove the directories without an event loop, at the end of the program. Blocks."""
        if self._has_jail:
            self._jail.abandon()
        self.mounts.abandon()
        self._machine.home.release(self._place)

    def lose(self, reason: str) -> None:
        """The agent is gone, or cannot be trusted: the sandbox ends, the program goes on."""
        self._died = reason
        if self._has_jail and self.life.lose(reason):
            self._jail.kill()
            self._surfaces.spawner.closed = True
            self._surfaces.spawner.lose(Outcome.LOST)

    def _check_running(self) -> None:
        self._ending.check_running(has_jail=self._has_jail)
