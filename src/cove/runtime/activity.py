"""Idleness: count calls, open streams and running processes; wait until there has been none of them for a while."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from cove.runtime.process import Process


class Activity:
    """Counts the calls under way. `running` gives the processes that run on their own."""

    def __init__(self, running: Callable[[], Sequence[Process]]) -> None:
        self._running = running
        self._calls = 0
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._waiter: asyncio.Future[None] | None = None
        self._waits_for_quiet = False
        self._watched: set[Process] = set()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """A call is being answered."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self) -> None:
        """Count a call, until `end`."""
        self._calls += 1

    def end(self) -> None:
        """Count one call less."""
        self._calls -= 1
        self._last = self._loop.time()
        if self._waits_for_quiet and self._calls == 0:
            self.look_again()

    def touch(self) -> None:
        """Note activity: it is not idle from here on."""
        self._last = self._loop.time()

    @property
    def is_quiet(self) -> bool:
        """Return whether no call is being answered and no process runs."""
        return self._calls == 0 and not self._running()

    async def until_idle(self, seconds: Callable[[], float | None]) -> None:
        """Wait until that long nothing has been going on; None is for ever. Nothing is, when it returns.

        Activity only moves the end of the wait: no call pays for it. After `look_again`, `seconds` is asked anew.
        """
        while True:
            limit = seconds()
            self._waits_for_quiet = limit is not None and self._calls > 0
            if limit is None or self._calls or self._has_processes():
                await self._wait(None)
                continue
            left = self._last + limit - self._loop.time()
            if left <= 0:
                return
            await self._wait(left)

    def look_again(self) -> None:
        """Have whoever waits for idleness look at everything again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self, seconds: float | None) -> None:
        self._waiter = self._loop.create_future()
        timer = None if seconds is None else self._loop.call_later(seconds, self.look_again)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _has_processes(self) -> bool:
        running = self._running()
        for process in running:
            if process not in self._watched:
                self._watched.add(process)
                process.supervised.ended.add_done_callback(partial(self._on_process_end, process))
        return bool(running)

    def _on_process_end(self, process: Process, _: object) -> None:
        self._watched.discard(process)
        self.touch()
        self.look_again()
