"""Kill the tree of a process: at once or at a time, in one task however often it is asked for."""

import asyncio
from collections.abc import Callable
from functools import partial

from cove.runtime.clock import Clock, ClockTimer
from cove.tasks import Tasks, Work


class TreeKill:
    """The task belongs to the sandbox: a caller that is cancelled does not leave a half-killed tree."""

    __slots__ = ("_background", "_clock", "_done", "_kill", "_timer")

    def __init__(self, kill: Callable[[], Work[None]], clock: Clock, background: Tasks) -> None:
        self._kill = kill
        self._clock = clock
        self._background = background
        self._timer: ClockTimer | None = None
        self._done: asyncio.Future[None] | None = None

    @property
    def has_begun(self) -> bool:
        """Return whether the tree is being killed, or was."""
        return self._done is not None

    def at(self, time: float) -> None:
        """Begin at that time of the clock: of several times the earliest counts."""
        if self._timer is not None and self._timer.when() > time:
            self.cancel()
        if self._timer is None:
            self._timer = self._clock.call_at(time, self.begin)

    def cancel(self) -> None:
        """Do not begin at any time. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def begin(self) -> "asyncio.Future[None]":
        """Begin, once; the future is done when nothing of the tree is left, or the sandbox ends."""
        if self._done is None:
            self._done = asyncio.get_running_loop().create_future()
            # Not by the work itself: it may be cancelled before its first step.
            self._background.start(self._kill(), on_end=partial(self._done.set_result, None))
        return self._done
