"""The exported variables that a shell tells after every report.

They are read when somebody asks, or when the next report comes: to be woken for each of them would cost more than the
command. Only a shell with so many that the fifo cannot hold them is listened to.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable

from cove.agent.protocol import ProtocolError
from cove.core.shell_protocol import Exports, split_fields

_READ_BYTES = 1 << 16
# Half of what a fifo holds: pipe(7).
_MANY_BYTES = 32 << 10


class ShellExports:
    """Reads one fifo, which belongs to the channel. `on_fault` is called when what comes cannot be believed."""

    def __init__(self, descriptor: int, on_fault: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._on_fault = on_fault
        self._loop = asyncio.get_running_loop()
        self._expected: deque[asyncio.Future[Exports]] = deque()
        # What has come before the report it belongs to was read.
        self._early: Exports | None = None
        self._rest = bytearray()
        self._is_watching = False
        self._has_many = False
        self._is_closed = False

    def expect(self) -> "asyncio.Future[Exports]":
        """A command has been reported: what its exports will be."""
        future: asyncio.Future[Exports] = self._loop.create_future()
        if self._early is not None:
            future.set_result(self._early)
            self._early = None
            return future
        self._expected.append(future)
        if len(self._expected) > 1:
            # Those of earlier commands are there; whoever waits for this one comes first.
            self._loop.call_soon(self.take)
        if self._has_many:
            self.watch()
        return future

    def watch(self) -> None:
        """Somebody waits: read until all that is expected has come."""
        if self._expected and not self._is_watching:
            self._is_watching = True
            self._loop.add_reader(self._descriptor, self.take)

    def take(self) -> None:
        """Read what is there."""
        if self._is_closed:
            return
        try:
            for text in split_fields(self._rest, os.read(self._descriptor, _READ_BYTES)):
                self._arrive(text)
        except BlockingIOError:
            return
        except ProtocolError:
            self._unwatch()
            self._on_fault()
        if not self._expected:
            self._unwatch()

    def _arrive(self, text: bytes) -> None:
        self._has_many = len(text) > _MANY_BYTES
        if self._expected:
            self._expected.popleft().set_result(Exports(text))
        elif self._early is None:
            self._early = Exports(text)
        else:
            raise ProtocolError("exports without a report")

    def _unwatch(self) -> None:
        if self._is_watching:
            self._is_watching = False
            self._loop.remove_reader(self._descriptor)

    def close(self) -> None:
        """Read no more: the channel is closed next. Idempotent."""
        self._unwatch()
        self._is_closed = True

    def fail(self, error: Exception) -> None:
        """The shell is gone: what has not come by now never will."""
        self.take()
        self._unwatch()
        for future in self._expected:
            future.set_exception(error)
            future.exception()
        self._expected.clear()
