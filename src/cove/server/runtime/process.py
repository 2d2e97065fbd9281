"""The main function of a runtime process: create or start its sandbox, serve it, and see to its end.

Theory of operation. A fork of the zygote reads one request, opens a sandbox and answers; from then on it is the
sandbox's runtime. `OpenedSandbox` is what has to be undone when nobody took the answer. A runtime ends when its sandbox
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

import uvloop

from cove.core.journal import NOBODY
from cove.errors import CoveError, SandboxDestroyed, SandboxUnavailable
from cove.local.threads import in_thread
from cove.model import SandboxSpec
from cove.runtime.home import Place
from cove.runtime.journal import ACTOR
from cove.runtime.machine import Machine
from cove.runtime.sandbox import Sandbox
from cove.runtime.tracing import trace_requests_only
from cove.server.runtime.image_build import run_build
from cove.server.runtime.open_sandbox import OpenedSandbox, SandboxOpener
from cove.server.runtime.serving import Serving
from cove.server.sandboxes.directory import Directory, Record
from cove.server.sandboxes.start_protocol import (
    ACKNOWLEDGED,
    Build,
    Create,
    Prepare,
    Reply,
    Request,
    encode,
    listen,
    receive_request,
)
from cove.server.sandboxes.warm_pool import WarmPool
from cove.server.tracing import start_tracing
from cove.tasks import Tasks
from cove.wire.errors import ErrorBody

_REQUEST_SECONDS = 10.0
# Whoever makes many at once takes all of them when the last one is there.
_TAKE_SECONDS = 120.0
# Whoever destroys a sandbox waits for the end of this process.
_LAST_SPANS_SECONDS = 0.5

log = logging.getLogger("cove.server")


def run_runtime(connection: socket.socket, starting: int, directory: Directory, machine: Machine | None) -> None:
    """Run as the process that a request on this connection asks for. Returns when the sandbox has ended.

    The descriptor `starting` is closed when the sandbox is served: whoever waits for its end waits for no start.
    """
    stop_tracing = start_tracing("runtime")
    trace_requests_only()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Process(directory, machine).run(connection, starting))
    if stop_tracing is not None:
        stop_tracing(_LAST_SPANS_SECONDS)


def _refuse(writer: asyncio.StreamWriter, id: str, error: CoveError | OSError) -> None:
    """Answer with an error. What the machine refuses is told in full only here: it may name paths."""
    if isinstance(error, OSError):
        log.error("sandbox %s cannot be started: %s", id, error)
        error = SandboxUnavailable(f"the sandbox cannot be started: {error.strerror or error}")
    writer.write(encode(Reply(error=ErrorBody(error.message, error.code, error.details))))


class _Process:
    """From the first request to the end."""

    def __init__(self, directory: Directory, machine: Machine | None) -> None:
        self._directory = directory
        self._machine = machine
        self._opener = SandboxOpener(directory, machine)
        self._pool = WarmPool(directory)
        self._told_to_stop = asyncio.Event()

    async def run(self, connection: socket.socket, starting: int) -> None:
        """Answer the request; serve, if there is a sandbox now."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._told_to_stop.set)
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        opened = None
        request = await self._receive(reader)
        if request is not None:
            opened = await self._answer(request, reader, writer)
        writer.close()
        if opened is not None:
            ACTOR.set(NOBODY)  # what happens by itself from here on nobody has asked for
            os.close(starting)
            await Serving(self._directory, opened, self._told_to_stop).run()

    async def _receive(self, reader: asyncio.StreamReader) -> Request | None:
        """Read what is asked for; None where whoever asked is gone."""
        with suppress(asyncio.IncompleteReadError, TimeoutError, ConnectionError):
            async with asyncio.timeout(_REQUEST_SECONDS):
                return await receive_request(reader)
        return None

    async def _answer(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> OpenedSandbox | None:
        if isinstance(request, Prepare):
            return await self._prepare(request)
        if isinstance(request, Build):
            await run_build(request, reader, writer, self._machine)
            return None
        try:
            opened = await (
                self._opener.create(request) if isinstance(request, Create) else self._opener.start(request)
            )
            return await self._hand_over(opened, reader, writer)
        except (CoveError, OSError) as error:
            _refuse(writer, request.id, error)
            return None

    async def _hand_over(
        self, opened: OpenedSandbox | Record, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> OpenedSandbox | None:
        """Give the answer. A new sandbox that nobody takes, or whose id was taken away meanwhile, is undone."""
        if isinstance(opened, Record):
            writer.write(encode(Reply(record=opened)))
            return None
        if not opened.reservation.is_current:
            await self._opener.undo(opened)
            raise SandboxDestroyed(f"sandbox {opened.record.id} was destroyed while it started")
        writer.write(encode(Reply(record=opened.record)))
        taken = b""
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(_TAKE_SECONDS):
                taken = await reader.read(1)
        if opened.is_new and taken != ACKNOWLEDGED:
            await self._opener.undo(opened)
            return None
        opened.reservation.take()
        opened.reservation.let_go()
        return opened

    async def _prepare(self, request: Prepare) -> OpenedSandbox | None:
        """Start a sandbox, wait for one request, and be what it asks for."""
        try:
            kind = await in_thread(self._pool.kind_of, request.spec)
            sandbox, place = await self._opener.prepare(request.spec)
        except CoveError:
            return None  # its image is gone, or cannot be used: who asks for a sandbox on it is told
        sandbox.prepare_code()
        opened = None
        if await self._is_still(kind, request.spec):
            opened = await self._wait_for_an_id(sandbox, place, request, kind)
        if opened is None:
            await sandbox.destroy()
        return opened

    async def _is_still(self, kind: str, spec: SandboxSpec) -> bool:
        """Return whether it stands on what its image was before it began: another may have taken the name."""
        try:
            return await in_thread(self._pool.kind_of, spec) == kind
        except CoveError:
            return False

    async def _wait_for_an_id(
        self, sandbox: Sandbox, place: Place, prepared: Prepare, kind: str
    ) -> OpenedSandbox | None:
        if await in_thread(self._pool.count, prepared.spec) >= prepared.most:
            return None
        wanted = await self._until_claimed(sandbox, kind, place.key)
        if wanted is None:
            return None
        reader, writer = await asyncio.open_unix_connection(sock=wanted)
        request = await self._receive(reader)
        if request is None:
            writer.close()
            return None
        assert isinstance(request, Create)
        try:
            await in_thread(self._pool.replenish, prepared.spec, prepared.most)
            opened = await self._opener.create(request, (sandbox, place))
            return await self._hand_over(opened, reader, writer)
        except (CoveError, OSError) as error:
            _refuse(writer, request.id, error)
            return None
        finally:
            writer.close()

    async def _until_claimed(self, sandbox: Sandbox, kind: str, key: str) -> socket.socket | None:
        """Wait to be claimed; None when it is not to wait, or not any longer, or is lost."""
        building = self._pool.building()
        with listen(building) as listener:
            listener.setblocking(False)
            if not await in_thread(self._pool.add, kind, key, building):
                return None
            sandbox.on_lost = self._told_to_stop.set
            async with Tasks() as tasks:
                accepting = tasks.start(asyncio.get_running_loop().sock_accept(listener))
                stopping = tasks.start(self._told_to_stop.wait())
                await asyncio.wait([accepting, stopping], return_when=asyncio.FIRST_COMPLETED)
                self._pool.forget(kind, key)
        return None if accepting.cancelled() else accepting.result()[0]
