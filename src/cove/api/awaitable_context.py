"""An awaitable that is a context manager too: `await create()` or `async with create()`."""

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Generic, Protocol, TypeVar


class Destroyable(Protocol):
    """The resource that `async with` destroys or detaches."""

    async def destroy(self) -> None:
        """End it."""

    async def detach(self) -> None:
        """Let go of it."""


T = TypeVar("T", bound=Destroyable)


class AwaitableContext(Generic[T]):
    """`await opening` gives the thing; `async with opening as thing` also destroys it at the end if it is owned
    and lets go of it otherwise."""

    def __init__(self, open: Callable[[], Awaitable[T]], *, owned: bool) -> None:
        self._open = open
        self._owned = owned
        self._opened: T | None = None

    def __await__(self) -> Generator[object, None, T]:
        return self._open().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await (self._opened.destroy() if self._owned else self._opened.detach())
