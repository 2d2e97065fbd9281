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

    @property
    def is_free(self) -> bool:
        """Return whether `acquire` would not wait."""
        return not self.locked() and not self._queued
