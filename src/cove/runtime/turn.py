"""The turn of a session or a code context: a lock that can be taken only if that takes no time."""

import asyncio
from typing import Literal


class Turn(asyncio.Lock):
    """A lock that knows who waits for it: one that was just released is still promised to the next in the queue."""

    _queued = 0

    async def acquire(self) -> Literal[True]:
        self._queued += 1
        try:
            return await super().acquire()
        finally:
            self._queued -= 1

    async def acquire_within(self, seconds: float) -> bool:
        """Return whether it came in time."""
        try:
            async with asyncio.timeout(seconds):
                return await self.acquire()
        except TimeoutError:
            return False

    @property
    def is_awaited(self) -> bool:
        """Return whether somebody waits for it."""
        return self._queued > 0

    @property
    def is_free(self) -> bool:
        """Return whether `acquire` would not wait."""
        return not self.locked() and not self._queued
