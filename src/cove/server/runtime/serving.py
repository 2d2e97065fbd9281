"""Serve a sandbox over HTTP until it is destroyed, stopped or lost; graceful shutdown."""

import asyncio
import logging
from contextlib import suppress
from datetime import UTC, datetime
from typing import cast

import msgspec

from cove.api import AsyncSandbox
from cove.errors import CoveError, SandboxDestroyed, SandboxUnavailable
from cove.http import Handler, HttpLimits, HttpServer
from cove.local.threads import in_thread
from cove.local.tracing import is_loaded
from cove.model import IdleAction, SandboxStatus
from cove.runtime.activity import Activity
from cove.runtime.sandbox_lifecycle import Seal
from cove.server.actor import with_actor
from cove.server.bridge.runtime import with_bridge
from cove.server.e2b.runtime import E2bRuntime
from cove.server.error_response import describe_error
from cove.server.mcp.runtime import McpRuntime
from cove.server.runtime.activity import count
from cove.server.runtime.open_sandbox import OpenedSandbox
from cove.server.runtime.routes import make_handler
from cove.server.sandboxes.destroy_sandbox import count_eviction
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.quotas import leave
from cove.server.sandboxes.starter import Starter
from cove.server.tracing import with_remote_parent
from cove.tasks import Tasks, race

_ROUNDS = 4
# Half of what a gateway worker takes: one sandbox alone locks nobody out.
_LIMITS = HttpLimits(connections=HttpLimits().connections // 2)

log = logging.getLogger("cove.server")


def _with_context(handler: Handler) -> Handler:
    """Let a request's handler know who asks, and in which trace."""
    return with_remote_parent(with_actor(handler)) if is_loaded() else with_actor(handler)


class Serving:
    """One opened sandbox until its end, which `told_to_stop` brings too. Only a destroyed one leaves no record.

    It is the keeper of its sandbox: what outlives this process is in the record.
    """

    is_final = True

    def __init__(self, directory: Directory, opened: OpenedSandbox, told_to_stop: asyncio.Event) -> None:
        self._directory = directory
        self._opened = opened
        self._sandbox = opened.sandbox
        self._told_to_stop = told_to_stop
        self._is_lost = False
        self._lost = asyncio.Event()
        self._sandbox.life.keeper = self
        self._sandbox.on_fork = self._make_copies

    async def stopping(self, *, wakes: bool) -> None:
        """Write that it is stopped. Who wants to start it waits until this process is gone."""
        await in_thread(self._opened.reservation.hold_again)
        if not await self._note(SandboxStatus.STOPPED, wakes=wakes):
            self._opened.reservation.let_go()
            raise SandboxUnavailable("the sandbox was not stopped, because that cannot be recorded: is the disk full?")

    async def keep(self) -> None:
        """Write what holds now; after a stop, end."""
        life = self._sandbox.life
        if not await self._note(life.status, wakes=life.wakes):
            raise SandboxUnavailable("what was changed cannot be recorded: is the disk full?")
        if life.status is SandboxStatus.STOPPED:
            record = self._opened.record
            await in_thread(self._directory.socket(record).unlink, missing_ok=True)
            await in_thread(leave, self._directory.of(record.tenant), record.key)
            self._told_to_stop.set()

    async def _make_copies(self, seal: Seal, count: int) -> list[AsyncSandbox]:
        """Give the facts of the copies, by which they are told to whoever asked: see `wire/replies`."""
        starter = Starter(self._directory.home, tenant=self._opened.record.tenant)
        records = await starter.create_many(await seal(), count)
        return cast(list[AsyncSandbox], [record.info(record.status) for record in records])

    async def run(self) -> None:
        """Serve. Returns when the sandbox has ended and what is left of it is recorded."""
        sandbox = self._sandbox
        async with (
            E2bRuntime(sandbox, self._opened.place.path) as e2b,
            McpRuntime(sandbox) as mcp,
            HttpServer(
                _with_context(
                    count(sandbox.activity, e2b.before(mcp.before(with_bridge(sandbox, make_handler(sandbox)))))
                ),
                [self._opened.listener],
                describe=describe_error,
                limits=_LIMITS,
            ) as server,
            Tasks() as tasks,
        ):
            sandbox.activity.touch()  # whoever had it started comes now: it was not idle while it started
            ended = tasks.start(self._until_ended())
            while not ended.done():
                idle = tasks.start(self._until_idle())
                await asyncio.wait([ended, idle], return_when=asyncio.FIRST_COMPLETED)
                if not ended.done() and await self._rest(server):
                    break
            if ended.done():  # whoever waits for an answer gets one: an idle sandbox has nobody
                await self._end_sandbox()
        await self._end()

    async def _until_idle(self) -> None:
        """Pause it whenever it is idle and that is to be done then; return when it is to stop."""
        sandbox = self._sandbox
        while True:
            await sandbox.activity.until_idle(lambda: sandbox.idle_seconds)
            if sandbox.idle_action is not IdleAction.PAUSE:
                return
            try:
                await sandbox.life.pause_idle()
                await self._count_eviction("idle_pause")
            except CoveError as error:
                log.warning("an idle sandbox cannot be paused: %s", error)
                sandbox.activity.touch()

    async def _rest(self, server: HttpServer) -> bool:
        async with self._sandbox.life.turn:
            return await self._withdraw(self._sandbox.activity, server)

    async def _withdraw(self, activity: Activity, server: HttpServer) -> bool:
        """Let nobody come any more. Whoever came just then is served: then it is not time to stop."""
        await in_thread(self._opened.reservation.hold_again)
        if not await self._note(SandboxStatus.STOPPED):  # it would be lost: it stays until that can be written
            self._opened.reservation.let_go()
            activity.touch()
            return False
        path = self._directory.socket(self._opened.record)
        withdrawn = path.with_suffix(".withdrawn")
        path.rename(withdrawn)
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)  # connections that were made are accepted, and what was sent is read
        if self._sandbox.life.is_unused and not server.is_in_use:  # a request is read before its call begins
            server.shut_down()  # with nothing awaited between, no request can begin any more
            withdrawn.unlink()
            await self._count_eviction("idle_stop")
            return True
        withdrawn.rename(path)
        await self._note(SandboxStatus.RUNNING)
        activity.touch()
        self._opened.reservation.let_go()
        return False

    async def _count_eviction(self, reason: str) -> None:
        await in_thread(count_eviction, self._directory.home, reason)

    async def _note(self, status: SandboxStatus, *, wakes: bool = True) -> bool:
        """Write it into the record, where it outlives this process; False when that cannot be, as on a full disk."""
        sandbox = self._sandbox
        record = self._opened.record = msgspec.structs.replace(
            self._opened.record,
            status=status,
            wakes=wakes,
            spec=sandbox.spec,
            origin=sandbox.origin,
            ends_at=sandbox.ends_at,
            env=sandbox.env_changes,
        )
        try:
            await in_thread(self._directory.write, record, durable=status is not SandboxStatus.RUNNING)
        except OSError as error:
            log.error("cannot record that the sandbox is %s: %s", status, error)
            return False
        return True

    async def _until_ended(self) -> None:
        """Until it is destroyed or lost by itself, or this process is told to stop."""
        sandbox = self._sandbox
        sandbox.on_end = self._told_to_stop.set
        sandbox.on_lost = self._lost.set
        if sandbox.life.status in (SandboxStatus.RUNNING, SandboxStatus.PAUSED):
            await race(self._told_to_stop.wait(), self._until_given_up())

    async def _until_given_up(self) -> None:
        """Until it is lost, and nobody who has come just then starts it again here."""
        while True:
            await self._lost.wait()
            self._lost.clear()
            if await self._sandbox.life.give_up():
                return

    async def _end_sandbox(self) -> None:
        if self._sandbox.is_destroyed or not self._opened.reservation.is_current:
            await in_thread(self._opened.reservation.remove)
            await self._sandbox.destroy()
        else:
            life = self._sandbox.life
            self._is_lost |= life.status is SandboxStatus.LOST
            if not self._is_lost and life.status is not SandboxStatus.STOPPED:
                with suppress(SandboxDestroyed, SandboxUnavailable):
                    await life.stop(wakes=True)
            await self._sandbox.close()

    async def _end(self) -> None:
        """Leave a record of a sandbox that stays. Whoever starts it again waits until this process is gone."""
        if not self._sandbox.is_destroyed:
            await in_thread(self._opened.reservation.hold_again)
            await self._end_sandbox()
        if self._sandbox.is_destroyed and self._opened.record.is_over(datetime.now(UTC)):
            await self._count_eviction("lifetime")
        if not self._sandbox.is_destroyed:
            status = SandboxStatus.LOST if self._is_lost else SandboxStatus.STOPPED
            await self._note(status, wakes=self._sandbox.life.wakes)
            # The end of this process lets go of the id: whoever waits for that must find the place free.
            self._opened.place.lock.close()
