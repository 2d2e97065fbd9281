"""Provider of the sandboxes of a server."""

import asyncio
from weakref import WeakKeyDictionary

from cove.client.api_key import find_key
from cove.client.sandbox import Sandbox
from cove.client.transport import Transport
from cove.core.identifier import check_sandbox_id
from cove.model import SandboxInfo, SandboxSpec
from cove.wire import operations, requests
from cove.wire.coding import decode_json

_transports: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str | None], Transport]]"
_transports = WeakKeyDictionary()


class RemoteProvider:
    """Makes, finds and lists sandboxes over HTTP."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self._url = url
        self._api_key = find_key(url, api_key)

    async def create(self, id: str | None, spec: SandboxSpec, *, exist_ok: bool = False) -> Sandbox:
        """A new sandbox; with `exist_ok`, the one that has the id."""
        transport = self._transport()
        request = requests.CreateSandbox(id=None if id is None else check_sandbox_id(id), spec=spec, exist_ok=exist_ok)

        async def undo(data: bytes) -> None:
            await Sandbox(transport, decode_json(data, SandboxInfo).id).destroy()

        # One that may have been there before is not ours to destroy.
        is_ours = not exist_ok or id is None
        data = await transport.call(operations.CREATE, operations.CREATE.path, request, undo=undo if is_ours else None)
        return Sandbox(transport, decode_json(data, SandboxInfo).id)

    async def connect(self, id: str) -> Sandbox:
        """A sandbox that is there."""
        sandbox = Sandbox(self._transport(), check_sandbox_id(id))
        try:
            await sandbox.info()
        except BaseException:
            await sandbox.detach()
            raise
        return sandbox

    async def list(self) -> list[SandboxInfo]:
        """All sandboxes."""
        data = await self._transport().call(operations.LIST, operations.LIST.path)
        return decode_json(data, list[SandboxInfo])

    def _transport(self) -> Transport:
        """Programs with many sandboxes on one server share its connections."""
        of_loop = _transports.setdefault(asyncio.get_running_loop(), {})
        return of_loop.setdefault((self._url, self._api_key), Transport(self._url, self._api_key))
