"""Client of a sandbox."""

from contextlib import suppress

from cove import api
from cove.client.calls import Calls
from cove.client.code_context import CodeContext
from cove.client.files import Files
from cove.client.git import Git
from cove.client.handle import Handle
from cove.client.ports import Ports
from cove.client.process import Process
from cove.client.session import Session
from cove.client.terminal import Terminal
from cove.errors import SandboxDestroyed
from cove.model import SandboxInfo
from cove.wire import operations, requests
from cove.wire.target import Target

__all__ = ["CodeContext", "Process", "Sandbox", "Session", "Terminal"]  # all that its operations open


class Sandbox(Handle, api.AsyncSandbox, target=Target.SANDBOX):
    """Holds nothing but its id and a share in the connections to its server."""

    def __init__(self, calls: Calls, facts: SandboxInfo) -> None:
        super().__init__(calls.of_sandbox(facts.id))
        self.id = facts.id
        self._is_held = True
        self._calls.transport.acquire()
        self.files = Files.of(self._calls)
        self.git = Git.of(self._calls)
        self.ports = Ports.of(self._calls)

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

    async def kill_process(self, id: str, signal: int | str = "TERM") -> None:
        await self._calls.call(operations.KILL_PROCESS, id, request=requests.Kill.of(signal=signal))
