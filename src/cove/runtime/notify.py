"""Notify waiting tasks of a change (a condition variable without a lock)."""

import asyncio


class Notify:
    """Any number of tasks wait; `notify_all` wakes them all. Nothing is remembered: look before you wait."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    async def wait(self) -> None:
        """Wait until the next `notify_all`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def notify_all(self) -> None:
        """Wake whoever waits."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
