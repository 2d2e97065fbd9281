"""Interface of a terminal (pty) and of its viewers."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from typing import Self

from cove.api.named import Named
from cove.model import TerminalEvent


class TerminalConnection(ABC):
    """One viewer of a terminal, opened and closed by `with` and iterated for its events.

    First comes what the terminal has kept (Output), then Ready, then live Output, at last Exit.
    """

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncGenerator[TerminalEvent, None]:
        return self.events()

    @abstractmethod
    async def open(self) -> None:
        """Start to watch: everything from here on will be seen."""

    @abstractmethod
    async def close(self) -> None:
        """Stop to watch; the terminal lives on. Idempotent."""

    @abstractmethod
    def events(self) -> AsyncGenerator[TerminalEvent, None]:
        """Receive what the terminal shows."""

    @abstractmethod
    async def write(self, data: bytes | str) -> None:
        """Type."""

    @abstractmethod
    async def resize(self, cols: int, rows: int) -> None:
        """Change the size of the terminal, for all viewers."""


class Terminal(Named, ABC):
    """A shell on a terminal of its own, with any number of viewers."""

    id: str
    cols: int
    rows: int

    @abstractmethod
    def connect(self, *, since: str | None = None, lossless: bool = False) -> TerminalConnection:
        """Connect a viewer; with `since`, one that has seen everything up to that cursor.

        A viewer that falls far behind gets a Gap. With `lossless` the program waits for it, as on a terminal that is
        full: such a viewer must read on, or close.
        """

    @abstractmethod
    async def resize(self, cols: int, rows: int) -> None:
        """Change the size, 1 to 1000 each way; programs are told."""

    @abstractmethod
    async def destroy(self) -> None:
        """End the shell and everything it started. Viewers see the end. Idempotent."""
