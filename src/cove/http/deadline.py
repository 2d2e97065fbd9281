"""A deadline that moves often and expires seldom: one timer."""

import asyncio
from collections.abc import Callable


class Deadline:
    """Calls back when the deadline has passed. Moving it away touches no timer: the timer looks when it fires."""

    __slots__ = ("_at", "_loop", "_on_expiry", "_timer")

    def __init__(self, on_expiry: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_expiry = on_expiry
        self._at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float) -> None:
        """Set the deadline so many seconds from now."""
        self._at = at = self._loop.time() + seconds
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._look)

    def clear(self) -> None:
        """Clear the deadline for the time being."""
        self._at = None

    def close(self) -> None:
        """Cancel the timer for good."""
        self._at = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._at is None:
            return
        if self._at > self._loop.time():
            self._timer = self._loop.call_at(self._at, self._look)
        else:
            self._at = None
            self._on_expiry()
