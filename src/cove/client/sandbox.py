"""Client of a sandbox, and of its processes, sessions, code contexts, mounts, ports, backups and Git."""

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from os import PathLike
from typing import Self

from cove import api
from cove.client.calls import Calls
from cove.client.files import Files
from cove.client.handle import Handle
from cove.client.snapshot_transfer import write_export
from cove.client.terminal import Terminal
from cove.core.readiness import check_port
from cove.errors import ContextNotFound, PermissionDenied, ProcessNotFound, SandboxDestroyed, SessionNotFound
from cove.local.tcp_stream import TcpStream
from cove.model import ExecResult, ExportInfo, ProcessExit, SandboxInfo, SnapshotInfo, TransferProgress
from cove.wire import operations, requests
from cove.wire.coding import quote_text
from cove.wire.replies import SessionReply
from cove.wire.target import Target


class Backups(Handle, api.Backups, target=Target.BACKUPS):
    """Backups are kept where the sandbox is."""


class Process(Handle, api.Process, target=Target.PROCESS):
    """A process on a server. Its attributes are as of the last answer about it."""

    async def refresh(self) -> Self:
        self._take(await self._calls.facts(operations.GET_PROCESS, self.id))
        return self

    async def wait(self, timeout: float | None = None) -> ProcessExit:
        request = requests.Wait.of(timeout=timeout)
        end = await self._calls.call(operations.WAIT_PROCESS, self.id, request=request)
        await self._take_end(end, end.ended_at)
        return end

    async def output(self, timeout: float | None = None) -> ExecResult:
        request = requests.Wait.of(timeout=timeout)
        result = await self._calls.call(operations.PROCESS_OUTPUT, self.id, request=request)
        await self._take_end(result, result.started_at + timedelta(seconds=result.duration))
        return result

    async def discard(self) -> None:
        await self.kill("KILL")
        await self._calls.call(operations.WAIT_PROCESS, self.id, request=requests.Wait())

    async def _take_end(self, end: ProcessExit | ExecResult, ended_at: datetime | None) -> None:
        """Know of the end that was waited for, without asking for it."""
        if ended_at is None:
            with suppress(ProcessNotFound):  # one that is not kept may be forgotten by then
                await self.refresh()
            return
        self.ended_at = ended_at
        self.status = ProcessExit(outcome=end.outcome, exit_code=end.exit_code).status
        self.outcome, self.exit_code, self.signal = end.outcome, end.exit_code, end.signal


class Session(Handle, api.Session, target=Target.SESSION):
    """Holds nothing but its id."""

    def __init__(self, calls: Calls, facts: SessionReply) -> None:
        super().__init__(calls, facts)
        self.files = Files.of(calls.of_session(self.id))

    async def delete(self) -> None:
        with suppress(SessionNotFound):  # deleted before
            await self._calls.call(operations.DELETE_SESSION, self.id)

    async def discard(self) -> None:
        await self.delete()


class Mounts(Handle, api.Mounts, target=Target.MOUNTS):
    """All its methods are operations."""


class Snapshot(Handle, api.AsyncSnapshot, target=Target.SNAPSHOT):
    """A snapshot on a server."""

    def __init__(self, calls: Calls, facts: SnapshotInfo) -> None:
        super().__init__(Calls(calls.transport), facts)

    async def info(self) -> SnapshotInfo:
        found: SnapshotInfo = await self._calls.facts(operations.GET_SNAPSHOT, self.id)
        return found

    async def export(
        self,
        target: str | PathLike[str],
        *,
        progress: Callable[[TransferProgress], object] | None = None,
    ) -> ExportInfo:
        chunks = self._calls.content(operations.EXPORT_SNAPSHOT, self.id, request=None)
        return await write_export(chunks, self.id, os.fspath(target), progress)

    async def discard(self) -> None:
        await self._calls.call(operations.DELETE_SNAPSHOT, self.id)


class Ports(Handle, api.Ports, target=Target.PORTS):
    """Exposed ports are reached through the server's preview port; connections go through its API."""

    def connect(self, port: int) -> TcpStream:
        path = self._calls.path(operations.CONNECT_PORT, str(check_port(port)))
        return TcpStream(partial(self._calls.transport.raw, path))


class Git(Handle, api.Git, target=Target.GIT):
    """Repositories inside the sandbox."""


class CodeContext(Handle, api.CodeContext, target=Target.CONTEXT):
    """Holds nothing but its id."""

    async def delete(self) -> None:
        with suppress(ContextNotFound):  # deleted before
            await self._calls.call(operations.DELETE_CONTEXT, self.id)

    async def discard(self) -> None:
        await self.delete()


__all__ = ["CodeContext", "Process", "Sandbox", "Session", "Snapshot", "Terminal"]  # all that its operations open


class Sandbox(Handle, api.AsyncSandbox, target=Target.SANDBOX):
    """Holds nothing but its id and a share in the connections to its server."""

    def __init__(self, calls: Calls, facts: SandboxInfo) -> None:
        super().__init__(Calls(calls.transport).of_sandbox(facts.id))
        self.id = facts.id
        self._is_held = True
        self._calls.transport.acquire()
        self.files = Files.of(self._calls)
        self.git = Git.of(self._calls)
        self.mounts = Mounts.of(self._calls)
        self.ports = Ports.of(self._calls)
        self.backups = Backups.of(self._calls)

    async def detach(self) -> None:
        if self._is_held:
            self._is_held = False
            await self._calls.transport.release()

    async def destroy(self) -> None:
        try:
            with suppress(SandboxDestroyed):  # destroyed before
                await self._calls.call(operations.DESTROY)
        finally:
            await self.detach()

    async def discard(self) -> None:
        await self.destroy()

    async def signed_url(self, path: str, *, write: bool = False, expires: float = 3600.0) -> str:
        operation = operations.WRITE_FILE if write else operations.READ_FILE
        if not self._calls.transport.url.startswith("http"):
            raise PermissionDenied("a server that listens on a unix socket has no URLs that others could use")
        token = await self.token([operation.name], expires=expires, path=path)
        target = f"{self._calls.transport.url}{self._calls.path(operation)}"
        return f"{target}?path={quote_text(path)}&token={token}"

    async def kill_process(self, id: str, signal: int | str = "TERM") -> None:
        await self._calls.call(operations.KILL_PROCESS, id, request=requests.Kill.of(signal=signal))
