"""The calls of one sandbox on a server, and what becomes of those that make something and are cancelled."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from typing import Final, TypeVar

from cove.client.transport import Transport, fill
from cove.errors import CoveError, SandboxDestroyed, SandboxNotFound
from cove.wire.coding import decode_json, quote_segment
from cove.wire.operations import SANDBOXES, AnyOperation
from cove.wire.requests import Request

T = TypeVar("T")

# How long a cancelled call waits for what it has made, and for its removal.
_ANSWER_SECONDS: Final = 0.5
_REMOVAL_SECONDS: Final = 2.0


async def make(call: Coroutine[object, object, T], remove: Callable[[T], Awaitable[None]]) -> T:
    """A call that makes something. What a cancelled caller will never see is removed before this returns."""
    making = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        removing = asyncio.ensure_future(_remove_made(making, remove))
        while not removing.done():
            try:
                await asyncio.wait([removing])
            except asyncio.CancelledError:
                continue  # a second cancel does not leave it behind
        raise


async def _remove_made(making: "asyncio.Future[T]", remove: Callable[[T], Awaitable[None]]) -> None:
    """The answer may be on its way. A server whose client goes before that ends what it was about to make."""
    await asyncio.wait([making], timeout=_ANSWER_SECONDS)
    if not making.done():
        making.cancel()
        await asyncio.wait([making])
    if making.cancelled() or making.exception() is not None:
        return
    try:
        async with asyncio.timeout(_REMOVAL_SECONDS):
            await remove(making.result())
    except (CoveError, TimeoutError):
        return  # it is gone, or its server is away


class Calls:
    """Where the operations of one sandbox go. `below` is for what belongs to one of its sessions."""

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
            return await self.transport.upload(operation, self.path(operation, *ids), request, content)

    @contextmanager
    def _was_there(self) -> Iterator[None]:
        """Whoever has a handle has seen the sandbox: one that is not found any more was destroyed."""
        try:
            yield
        except SandboxNotFound:
            raise SandboxDestroyed(f"sandbox {self.sandbox} was destroyed") from None
