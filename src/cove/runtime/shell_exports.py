"""Read the exported variables that a shell tells after every report.

They are read when somebody asks, or when the next report comes: to be woken for each of them would cost more than the
command. Only a shell with so many that the fifo cannot hold them is listened to. More than fit in an environment of
Linux are read and dropped: then nobody is told any.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable

_READ_BYTES = 1 << 16
# Half of what a fifo holds: pipe(7).
_MANY_BYTES = 32 << 10
# The answer of a shell that would take too long to list them: see session.bash.
_SILENT = b"\1"
# Linux gives no program more than about a fourth of its stack: execve(2).
MOST_EXPORT_BYTES = 2 << 20


class ShellExports:
    """Reads one fifo, which belongs to the channel. `on_fault` is called when what comes cannot be believed.

    What it gives is the text as bash printed it, or None where that is too long or takes too long.
    """

    def __init__(self, descriptor: int, on_fault: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._on_fault = on_fault
        self._loop = asyncio.get_running_loop()
        self._expected: deque[asyncio.Future[bytes | None]] = deque()
        # Lists that came before the report they belong to was read.
        self._early: list[bytes | None] = []
        self._begun = bytearray()
        self._is_too_long = False
        self._is_watching = False
        self._has_many = False
        self._is_closed = False

    def expect(self) -> "asyncio.Future[bytes | None]":
        """Expect the exports of a command that was reported."""
        future: asyncio.Future[bytes | None] = self._loop.create_future()
        if self._early:
            future.set_result(self._early.pop())
            return future
        self._expected.append(future)
        if len(self._expected) > 1:
            # Those of earlier commands are there; whoever waits for this one comes first.
            self._loop.call_soon(self.take)
        if self._has_many:
            self.watch()
        return future

    def watch(self) -> None:
        """Read until all that is expected has come: somebody waits."""
        if self._expected and not self._is_watching:
            self._is_watching = True
            self._loop.add_reader(self._descriptor, self.take)

    def take(self) -> None:
        """Read what is there."""
        if self._is_closed:
            return
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        if not self._arrive(data):
            self._unwatch()
            self._on_fault()
        elif not self._expected:
            self._unwatch()

    def _arrive(self, data: bytes) -> bool:
        """Take what was read, unless there is more than was asked for."""
        while data:
            text, ended, data = data.partition(b"\0")
            self._is_too_long = self._is_too_long or len(self._begun) + len(text) > MOST_EXPORT_BYTES
            if self._is_too_long:
                self._begun.clear()
            else:
                self._begun += text
            if ended and not self._complete():
                return False
        return True

    def _complete(self) -> bool:
        self._has_many = self._is_too_long or len(self._begun) > _MANY_BYTES
        text = None if self._is_too_long or self._begun == _SILENT else bytes(self._begun)
        self._begun.clear()
        self._is_too_long = False
        if self._expected:
            self._expected.popleft().set_result(text)
            return True
        self._early.append(text)
        return len(self._early) == 1

    def _unwatch(self) -> None:
        if self._is_watching:
            self._is_watching = False
            self._loop.remove_reader(self._descriptor)

    def close(self) -> None:
        """Read no more: the channel is closed next. Idempotent."""
        self._unwatch()
        self._is_closed = True

    def fail(self, error: Exception) -> None:
        """Fail: the shell is gone, and what has not come by now never will."""
        self.take()
        self._unwatch()
        for future in self._expected:
            future.set_exception(error)
            future.exception()
        self._expected.clear()
