"""The clock of a jail: it stands still while the sandbox is paused, and with it every deadline that was set by it.

What is frozen cannot answer, and must not be taken for dead. So whoever waits for something inside, or ends it when
its time is up, asks this clock and sets its timers here. Waits of callers for an answer of ours go by the loop's own.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import TypeVarTuple, Unpack

from cove.model import ProcessExit

Ts = TypeVarTuple("Ts")


class ClockTimer:
    """A call at a time of the clock. `handle` is the loop's timer, while the clock runs."""

    __slots__ = ("_call", "_clock", "_handle", "_when")

    def __init__(self, clock: "Clock", when: float, call: Callable[[], object]) -> None:
        self._clock = clock
        self._when = when
        self._call = call
        self._handle: asyncio.TimerHandle | None = None

    def when(self) -> float:
        """Return the time of the clock at which it is due."""
        return self._when

    def cancel(self) -> None:
        """Call nothing. Idempotent."""
        self.disarm()
        self._clock.forget(self)

    def arm(self, at: float) -> None:
        """Schedule the call at that time of the loop."""
        self._handle = self._clock.loop.call_at(at, self._fire)

    def disarm(self) -> None:
        """Unschedule it until it is armed again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._clock.forget(self)
        self._call()


class Clock:
    """The time of the event loop, without the time that it was stopped."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._lost = 0.0
        self._stopped_at: float | None = None
        self._timers: set[ClockTimer] = set()

    @property
    def is_stopped(self) -> bool:
        """Return whether time stands still."""
        return self._stopped_at is not None

    def time(self) -> float:
        """Return the time in seconds."""
        return (self.loop.time() if self._stopped_at is None else self._stopped_at) - self._lost

    def stop(self) -> None:
        """Let time stand still. Idempotent."""
        if self._stopped_at is None:
            self._stopped_at = self.loop.time()
            for timer in self._timers:
                timer.disarm()

    def go_on(self) -> None:
        """Let time pass again. Idempotent."""
        if self._stopped_at is not None:
            self._lost += self.loop.time() - self._stopped_at
            self._stopped_at = None
            for timer in self._timers:
                timer.arm(timer.when() + self._lost)

    def call_at(self, when: float, call: Callable[[Unpack[Ts]], object], *arguments: *Ts) -> ClockTimer:
        """Call this at that time."""
        timer = ClockTimer(self, when, partial(call, *arguments))
        self._timers.add(timer)
        if self._stopped_at is None:
            timer.arm(when + self._lost)
        return timer

    def call_later(self, seconds: float, call: Callable[[Unpack[Ts]], object], *arguments: *Ts) -> ClockTimer:
        """Call this when so much time has passed."""
        return self.call_at(self.time() + seconds, call, *arguments)

    def forget(self, timer: ClockTimer) -> None:
        """Drop a timer that is over."""
        self._timers.discard(timer)

    def timeout_at(self, when: float) -> "ClockTimeout":
        """Raise TimeoutError in the block at that time, as `asyncio.timeout_at` does."""
        return ClockTimeout(self, when)

    def timeout(self, seconds: float) -> "ClockTimeout":
        """Raise TimeoutError in the block when so much time has passed."""
        return ClockTimeout(self, self.time() + seconds)

    async def wait(
        self,
        futures: "Iterable[asyncio.Future[None] | asyncio.Future[ProcessExit]]",
        seconds: float,
        *,
        return_when: str = asyncio.ALL_COMPLETED,
    ) -> None:
        """Wait for them as `asyncio.wait` does, and so long at most; who calls looks what is done."""
        over: asyncio.Future[None] = self.loop.create_future()
        timer = self.call_later(max(seconds, 0.0), _resolve, over)
        try:
            waiting: list[asyncio.Future[None] | asyncio.Future[ProcessExit]] = [*futures]
            while pending := [future for future in waiting if not future.done()]:
                if over.done() or (return_when == asyncio.FIRST_COMPLETED and len(pending) < len(waiting)):
                    return
                await asyncio.wait([*pending, over], return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()


class ClockTimeout:
    """A block that has until a time of the clock. A class, not a generator: commands with a timeout wait in one."""

    __slots__ = ("_clock", "_scope", "_timer", "_when")

    def __init__(self, clock: Clock, when: float) -> None:
        self._clock = clock
        self._when = when

    async def __aenter__(self) -> None:
        self._scope = asyncio.timeout(None)
        await self._scope.__aenter__()
        self._timer = self._clock.call_at(self._when, self._scope.reschedule, 0.0)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        await self._scope.__aexit__(kind, error, traceback)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
