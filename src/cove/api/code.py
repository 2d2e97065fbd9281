"""Interface of a code context."""

import builtins
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator

from cove.api.named import Named
from cove.model import CodeEvent, Execution


class CodeContext(Named, ABC):
    """One executor process with state, from creation to deletion: what one run defines, the next one finds."""

    id: str
    language: str

    @abstractmethod
    async def run(self, code: str, *, timeout: float | None = None) -> Execution:
        """Run code to its end. Runs of one context take turns, in the order they came.

        An error in the code is part of the result. After `timeout` seconds the code is interrupted; the context
        lives on if it comes back. Raises ContextCrashed when the executor has ended.
        """

    @abstractmethod
    def stream(self, code: str, *, timeout: float | None = None) -> AsyncGenerator[CodeEvent, None]:
        """Stream the same as events while it runs; leaving early interrupts the code."""

    @abstractmethod
    async def fork(self, count: int = 1, *, force: bool = False) -> builtins.list["CodeContext"]:
        """Copy a Python context with all its variables, so many times; memory is shared until one side writes to it.

        It waits for its turn like a run. Each copy is a context of its own, with a new id. Threads, child processes and
        connections are not copied, and open files share their position; a context with threads raises ForkRefused,
        which names them, unless `force` says that they do not matter. Other languages raise UnsupportedLanguage.
        """

    @abstractmethod
    async def interrupt(self) -> None:
        """Interrupt what runs now; nothing happens if nothing does."""

    @abstractmethod
    async def delete(self) -> None:
        """End the executor and everything it started. Idempotent."""
