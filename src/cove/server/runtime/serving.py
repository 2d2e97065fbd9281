"""Serve a sandbox over HTTP until it is destroyed, stopped or lost; graceful shutdown."""

import asyncio
import logging

import msgspec

from cove.http import HttpLimits, HttpServer
from cove.local.threads import in_thread
from cove.model import SandboxSpec, SandboxStatus
from cove.server.bridge.runtime import with_bridge
from cove.server.error_response import describe_error
from cove.server.runtime.activity import Activity
from cove.server.runtime.open_sandbox import OpenedSandbox
from cove.server.runtime.routes import make_handler
from cove.server.sandboxes.directory import Directory
from cove.tasks import Tasks

_ROUNDS = 4
# Half of what a gateway worker takes: one sandbox alone locks nobody out.
_LIMITS = HttpLimits(connections=HttpLimits().connections // 2)

log = logging.getLogger("cove.server")


class Serving:
    """One opened sandbox until its end, which `told_to_stop` brings too. Only a destroyed one leaves no record."""

    def __init__(self, directory: Directory, opened: OpenedSandbox, told_to_stop: asyncio.Event) -> None:
        self._directory = directory
        self._opened = opened
        self._sandbox = opened.sandbox
        self._told_to_stop = told_to_stop
        self._is_lost = False
        self._sandbox.on_spec = self._keep_spec

    async def _keep_spec(self, spec: SandboxSpec) -> None:
        """Write a spec that was changed into the record: the sandbox is started again with it."""
        record = msgspec.structs.replace(self._opened.record, spec=spec)
        await in_thread(self._directory.write, record)
        self._opened.record = record

    async def run(self) -> None:
        """Serve. Returns when the sandbox has ended and what is left of it is recorded."""
        sandbox, spec = self._sandbox, self._opened.record.spec
        activity = Activity(lambda: sandbox.running_processes)
        handler = activity.count(with_bridge(sandbox, make_handler(sandbox)))
        async with (
            HttpServer(handler, [self._opened.listener], describe=describe_error, limits=_LIMITS) as server,
            Tasks() as tasks,
        ):
            ended = tasks.start(self._until_ended())
            idle = tasks.start(activity.until_idle(None if spec.keep_alive else spec.idle_timeout))
            await asyncio.wait([ended, idle], return_when=asyncio.FIRST_COMPLETED)
            while not ended.done() and not await self._withdraw(activity, server):
                idle = tasks.start(activity.until_idle(spec.idle_timeout))
                await asyncio.wait([ended, idle], return_when=asyncio.FIRST_COMPLETED)
            if ended.done():  # whoever waits for an answer gets one: an idle sandbox has nobody
                await self._end_sandbox()
        await self._end()

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
        if activity.is_quiet and not server.is_in_use:  # a request is read before its call begins
            withdrawn.unlink()
            return True
        withdrawn.rename(path)
        await self._note(SandboxStatus.RUNNING)
        activity.touch()
        self._opened.reservation.let_go()
        return False

    async def _note(self, status: SandboxStatus) -> bool:
        """Write it into the record, where it outlives this process; False when that cannot be, as on a full disk."""
        record = msgspec.structs.replace(self._opened.record, status=status)
        try:
            await in_thread(self._directory.write, record, durable=status is not SandboxStatus.RUNNING)
        except OSError as error:
            log.error("cannot record that the sandbox is %s: %s", status, error)
            return False
        return True

    async def _until_ended(self) -> None:
        """Until it is destroyed or lost by itself, or this process is told to stop."""
        sandbox = self._sandbox
        sandbox.on_end = sandbox.on_lost = self._told_to_stop.set
        if (await sandbox.info()).status is SandboxStatus.RUNNING:
            await self._told_to_stop.wait()

    async def _end_sandbox(self) -> None:
        if self._sandbox.is_destroyed or not self._opened.reservation.is_current:
            await in_thread(self._opened.reservation.remove)
            await self._sandbox.destroy()
        else:
            self._is_lost |= (await self._sandbox.info()).status is SandboxStatus.LOST
            await self._sandbox.close()

    async def _end(self) -> None:
        """Leave a record of a sandbox that stays. Whoever starts it again waits until this process is gone."""
        if not self._sandbox.is_destroyed:
            await in_thread(self._opened.reservation.hold_again)
            await self._end_sandbox()
        if not self._sandbox.is_destroyed:
            status = SandboxStatus.LOST if self._is_lost else SandboxStatus.STOPPED
            await self._note(status)
            # The end of this process lets go of the id: whoever waits for that must find the place free.
            self._opened.place.lock.close()
