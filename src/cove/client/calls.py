"""The calls of one sandbox on a server."""

from collections.abc import AsyncGenerator, AsyncIterable
from typing import TypeVar

from cove.client.transport import Transport, fill
from cove.wire.coding import decode_json, quote_segment
from cove.wire.operations import SANDBOXES, Operation
from cove.wire.requests import Request

T = TypeVar("T")


class Calls:
    """Where the operations of one sandbox go. `below` is for what belongs to one of its sessions."""

    def __init__(self, transport: Transport, sandbox: str, below: str = "") -> None:
        self.transport = transport
        self.sandbox = sandbox
        self._prefix = f"{SANDBOXES}/{quote_segment(sandbox)}{below}"

    def of_session(self, session: str) -> "Calls":
        """The calls that are resolved by a session."""
        return Calls(self.transport, self.sandbox, f"/sessions/{quote_segment(session)}")

    def path(self, operation: Operation, *ids: str) -> str:
        """The operation's full path."""
        return self._prefix + fill(operation, *ids)

    async def do(self, operation: Operation, *ids: str, request: Request | None = None) -> None:
        """A call that answers nothing."""
        await self.transport.call(operation, self.path(operation, *ids), request)

    async def get(self, operation: Operation, type: type[T], *ids: str, request: Request | None = None) -> T:
        """A call that answers a value."""
        return decode_json(await self.transport.call(operation, self.path(operation, *ids), request), type)

    def events(self, operation: Operation, *ids: str, request: Request | None = None) -> AsyncGenerator[object, None]:
        """A call that answers events."""
        return self.transport.events(operation, self.path(operation, *ids), request)

    def content(self, operation: Operation, request: Request) -> AsyncGenerator[bytes, None]:
        """A call that answers bytes."""
        return self.transport.content(operation, self.path(operation), request)

    async def upload(
        self, operation: Operation, *ids: str, request: Request | None, content: bytes | AsyncIterable[bytes]
    ) -> bytes:
        """A call that takes bytes."""
        return await self.transport.upload(operation, self.path(operation, *ids), request, content)
