"""Interface of a transaction: changes of a sandbox's files that are kept together, or not at all."""

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from types import TracebackType
from typing import Self

from cove.errors import CoveError, ValidationFailed
from cove.tasks import end, owned

LEASE_SECONDS = 30.0
_RENEWALS = 3


class AsyncTransaction:
    """Opened by `async with sandbox.transaction()`: leaving it without `commit` takes all changes of files back.

    Everybody's writes count. Taking them back ends what holds files of theirs open; other processes and the variables
    of sessions stay. While it is open it renews its lease: when this program vanishes, the changes are taken back.
    """

    def __init__(self, sandbox: "Transactions") -> None:
        self._sandbox = sandbox
        self._id: str | None = None
        self._renewing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin; raises TransactionOpen while another one is open."""
        self._id = await self._sandbox.begin_transaction(lease=LEASE_SECONDS)
        self._renewing = owned(self._renew(self._id))

    async def commit(self) -> None:
        """Keep the changes: the transaction is over."""
        if self._id is None:
            raise ValidationFailed("this transaction is not open")
        await self._sandbox.commit_transaction(self._id)
        await self._end()

    async def close(self) -> None:
        """Take the changes back, if they were not committed. Idempotent."""
        if self._id is not None:
            id = self._id
            await self._end()
            await self._sandbox.rollback_transaction(id)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _end(self) -> None:
        self._id = None
        if self._renewing is not None:
            await end(self._renewing)

    async def _renew(self, id: str) -> None:
        while True:
            await asyncio.sleep(LEASE_SECONDS / _RENEWALS)
            with suppress(CoveError):  # whoever commits finds out
                await self._sandbox.renew_transaction(id, lease=LEASE_SECONDS)


class Transactions(ABC):
    """Transactions of a sandbox: `transaction` is for people, the rest is what it stands on."""

    def transaction(self) -> AsyncTransaction:
        """Changes of files that are kept together: `async with sandbox.transaction() as change`.

        Leaving it without `change.commit()` takes back what anybody has written meanwhile.
        """
        return AsyncTransaction(self)

    @abstractmethod
    async def begin_transaction(self, lease: float = 30.0) -> str:
        """Begin a transaction and return its id; `transaction` does that for you.

        One at a time: TransactionOpen. When nobody renews it for `lease` seconds, or the sandbox's runtime is killed,
        it is rolled back.
        """

    @abstractmethod
    async def renew_transaction(self, id: str, lease: float = 30.0) -> None:
        """Keep a transaction open for so many seconds from now; raises ValidationFailed when it is over."""

    @abstractmethod
    async def commit_transaction(self, id: str) -> None:
        """Keep what was written since it began; raises ValidationFailed when it is over."""

    @abstractmethod
    async def rollback_transaction(self, id: str) -> None:
        """Take back what was written since it began: what holds those files open is ended. Idempotent."""
