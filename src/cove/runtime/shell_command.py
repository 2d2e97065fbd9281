"""A command under way in a session's shell: wait for its end, its interruption or the end of the shell."""

import asyncio

from cove.core.shell_protocol import Report
from cove.model import ProcessExit
from cove.runtime.clock import Clock

# How slowly a shell may read what it is to run.
_READ_BYTES_PER_SECOND = 100_000


class ShellEnded(Exception):
    """The shell is gone."""

    def __init__(self, end: ProcessExit) -> None:
        super().__init__(f"the shell ended: {end.outcome} {end.exit_code}")
        self.end = end


class ShellCommand:
    """A command under way. It ends once, whoever still waits for it."""

    __slots__ = ("_clock", "_end", "_waiters", "id", "is_interrupted", "reading_seconds", "since")

    def __init__(self, id: str, clock: Clock, size: int) -> None:
        self.id = id
        self.since = clock.time()
        self._clock = clock
        self.reading_seconds = size / _READ_BYTES_PER_SECOND
        self.is_interrupted = False
        self._end: Report | ShellEnded | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def is_over(self) -> bool:
        """Return whether it has ended, or the shell has."""
        return self._end is not None

    def end(self, end: Report | ShellEnded) -> None:
        """Say how it ended."""
        self._end = end
        self._wake()

    def interrupt(self) -> None:
        """Say that the shell has been told to leave it, and executes nothing more of it."""
        self.is_interrupted = True
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            _wake(waiter)

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is over or the time is, or it is interrupted; returns whether it is over."""
        if self._end is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            timer = None if timeout is None else self._clock.call_later(timeout, _wake, waiter)
            try:
                await waiter
            finally:
                if timer is not None:
                    timer.cancel()
        return self._end is not None

    def report(self) -> Report:
        """Return the shell's report on a command that is over. Raises ShellEnded."""
        assert self._end is not None
        if isinstance(self._end, ShellEnded):
            raise self._end
        return self._end


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
