"""Call operations of a server, or of one sandbox on it."""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Final, Protocol, TypeVar

from cove.client.transport import Transport, fill
from cove.errors import SandboxDestroyed, SandboxNotFound
from cove.wire.coding import decode_json, quote_segment
from cove.wire.operation import SANDBOXES, AnyOperation, Operation
from cove.wire.requests import Request
from cove.wire.target import Target

V = TypeVar("V")


class Discardable(Protocol):
    """A handle of something that a call has made."""

    async def discard(self) -> None:
        """Remove it."""


Make = Callable[["Calls", Any], Discardable]  # from the facts of one of its kind
HANDLES: Final[dict[Target, Make]] = {}


class Calls:
    """The operations of a server or of a sandbox: `prefix` stands before the path of each."""

    def __init__(self, transport: Transport, prefix: str = "", sandbox: str | None = None) -> None:
        self.transport = transport
        self._prefix = prefix
        self._sandbox = sandbox

    def of_sandbox(self, sandbox: str, *, was_seen: bool = True) -> "Calls":
        """The calls of one sandbox."""
        return Calls(self.transport, f"{SANDBOXES}/{quote_segment(sandbox)}", sandbox if was_seen else None)

    def of_session(self, session: str) -> "Calls":
        """The calls that are resolved by a session."""
        return Calls(self.transport, f"{self._prefix}/sessions/{quote_segment(session)}", self._sandbox)

    def path(self, operation: AnyOperation, *ids: str) -> str:
        """The operation's full path."""
        return self._prefix + fill(operation, *ids)

    def open(self, target: Target, facts: Any) -> Discardable:  # the facts of one of its kind
        """Make the handle of something there."""
        return HANDLES[target](self, facts)

    async def call(
        self,
        operation: Operation[Request, V],
        *ids: str,
        request: Request | None = None,
        content: bytes | AsyncIterable[bytes] | None = None,
    ) -> V:
        """Call an operation that answers a value: what the method gives."""
        return operation.answer.decode(await self.facts(operation, *ids, request=request, content=content), self.open)

    async def facts(
        self,
        operation: AnyOperation,
        *ids: str,
        request: Request | None = None,
        content: bytes | AsyncIterable[bytes] | None = None,
    ) -> Any:  # of the type that the operation's answer has on the wire
        """Call it, and give the answer as it came."""
        undo = self._undo(operation) if operation.makes and (request is None or request.makes_new) else None
        with self._was_there():
            data = await self.transport.call(operation, self.path(operation, *ids), request, content, undo=undo)
        return None if operation.reply is None else decode_json(data, operation.answer.type)

    async def events(
        self,
        operation: Operation[Request, V],
        *ids: str,
        request: Request | None = None,
        content: AsyncIterable[bytes] | None = None,
    ) -> AsyncGenerator[V, None]:
        """Call an operation that answers events."""
        path = self.path(operation, *ids)
        with self._was_there():
            async with aclosing(self.transport.events(operation, path, request, content)) as events:
                async for event in events:
                    yield event

    async def content(self, operation: AnyOperation, *ids: str, request: Request | None) -> AsyncGenerator[bytes, None]:
        """Call an operation that answers bytes."""
        with self._was_there():
            async with aclosing(self.transport.content(operation, self.path(operation, *ids), request)) as chunks:
                async for chunk in chunks:
                    yield chunk

    def _undo(self, operation: AnyOperation) -> Callable[[bytes], Any]:
        """Remove what a call has made, which is in its answer, when its caller was cancelled."""

        async def undo(data: bytes) -> None:
            made: list[Discardable] = []

            def open(target: Target, facts: object) -> None:
                made.append(self.open(target, facts))

            operation.answer.decode(decode_json(data, operation.answer.type), open)
            for each in made:
                await each.discard()

        return undo

    @contextmanager
    def _was_there(self) -> Iterator[None]:
        """Map "not found" to "destroyed": whoever has a handle has seen the sandbox."""
        try:
            yield
        except SandboxNotFound:
            if self._sandbox is None:
                raise
            raise SandboxDestroyed(f"sandbox {self._sandbox} was destroyed") from None
