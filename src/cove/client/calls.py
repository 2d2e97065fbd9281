"""Call operations of one sandbox on a server."""

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import TypeVar

from cove.client.transport import Transport, fill
from cove.errors import SandboxDestroyed, SandboxNotFound
from cove.wire.coding import decode_json, quote_segment
from cove.wire.operations import SANDBOXES, AnyOperation
from cove.wire.requests import Request

T = TypeVar("T")


class Calls:
    """The operations of one sandbox. `below` is for what belongs to one of its sessions."""

    def __init__(self, transport: Transport, sandbox: str, below: str = "") -> None:
        self.transport = transport
        self.sandbox = sandbox
        self._prefix = f"{SANDBOXES}/{quote_segment(sandbox)}{below}"

    def of_session(self, session: str) -> "Calls":
        """The calls that are resolved by a session."""
        return Calls(self.transport, self.sandbox, f"/sessions/{quote_segment(session)}")

    def path(self, operation: AnyOperation, *ids: str) -> str:
        """The operation's full path."""
        return self._prefix + fill(operation, *ids)

    async def do(self, operation: AnyOperation, *ids: str, request: Request | None = None) -> None:
        """A call that answers nothing."""
        with self._was_there():
            await self.transport.call(operation, self.path(operation, *ids), request)

    async def get(self, operation: AnyOperation, type: type[T], *ids: str, request: Request | None = None) -> T:
        """A call that answers a value."""
        with self._was_there():
            return decode_json(await self.transport.call(operation, self.path(operation, *ids), request), type)

    async def make(
        self,
        operation: AnyOperation,
        type: type[T],
        *ids: str,
        request: Request,
        remove: Callable[[T], Awaitable[None]] | None,
    ) -> T:
        """A call that makes something: what a cancelled caller will never see is removed before this returns."""

        async def undo(data: bytes) -> None:
            if remove is not None:
                await remove(decode_json(data, type))

        with self._was_there():
            data = await self.transport.call(operation, self.path(operation, *ids), request, undo=undo)
        return decode_json(data, type)

    async def events(
        self, operation: AnyOperation, *ids: str, request: Request | None = None
    ) -> AsyncGenerator[object, None]:
        """A call that answers events."""
        with self._was_there():
            async with aclosing(self.transport.events(operation, self.path(operation, *ids), request)) as events:
                async for event in events:
                    yield event

    async def content(self, operation: AnyOperation, request: Request) -> AsyncGenerator[bytes, None]:
        """A call that answers bytes."""
        with self._was_there():
            async with aclosing(self.transport.content(operation, self.path(operation), request)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def upload(
        self, operation: AnyOperation, *ids: str, request: Request | None, content: bytes | AsyncIterable[bytes]
    ) -> bytes:
        """A call that takes bytes."""
        with self._was_there():
            return await self.transport.call(operation, self.path(operation, *ids), request, content)

    @contextmanager
    def _was_there(self) -> Iterator[None]:
        """Map "not found" to "destroyed": whoever has a handle has seen the sandbox."""
        try:
            yield
        except SandboxNotFound:
            raise SandboxDestroyed(f"sandbox {self.sandbox} was destroyed") from None
