"""From a pipe into a sink, without ever waiting: asyncio tells when there is something to read."""

import asyncio
import fcntl
import os
import termios
from collections.abc import Callable

_READ_BYTES = 262144
_BUSY_PIPE_BYTES = 1 << 20
# A default pipe that is read full this often belongs to a program that prints a lot.
_FULL_READS = 4


class Pump:
    """Owns the read end of one pipe; `take` gets every chunk until the end, `finish` or `close`."""

    __slots__ = ("_full_reads", "_loop", "_on_end", "_take", "descriptor", "paused")

    def __init__(
        self, descriptor: int, take: Callable[[bytes], None], on_end: Callable[[], None] | None = None
    ) -> None:
        self.descriptor = descriptor
        self._take = take
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._full_reads = 0
        self.paused = False
        self._loop.add_reader(descriptor, self._on_readable)

    @property
    def is_open(self) -> bool:
        """The pipe may still have bytes for us."""
        return self.descriptor >= 0

    def pause(self) -> None:
        """Stop reading: the writer waits as on any full pipe."""
        if self.is_open and not self.paused:
            self.paused = True
            self._loop.remove_reader(self.descriptor)

    def resume(self) -> None:
        """Read again."""
        if self.is_open and self.paused:
            self.paused = False
            self._loop.add_reader(self.descriptor, self._on_readable)

    def finish(self) -> int | None:
        """Take exactly the bytes now in the pipe. Returns the descriptor if someone still holds the write end.

        Fewer may be there: a process that holds the write end can open the read end by /proc and read too.
        """
        if not self.is_open:
            return None
        waiting = int.from_bytes(fcntl.ioctl(self.descriptor, termios.FIONREAD, b"\0\0\0\0"), "little")
        while waiting > 0 and (size := self._read(min(waiting, _READ_BYTES))):
            waiting -= size
        return self._detach()

    def close(self) -> None:
        """Stop reading and close the pipe. Idempotent."""
        if self.is_open:
            if not self.paused:
                self._loop.remove_reader(self.descriptor)
            os.close(self.descriptor)
            self.descriptor = -1

    def _detach(self) -> int | None:
        if not self.is_open:
            return None
        try:
            # The bytes that belonged to the command are taken: what comes now is read for nobody.
            has_writer = bool(os.read(self.descriptor, 1))
        except BlockingIOError:
            has_writer = True
        if not has_writer:
            self.close()
            return None
        self.pause()
        descriptor, self.descriptor = self.descriptor, -1
        return descriptor

    def _on_readable(self) -> None:
        size = self._read(_READ_BYTES)
        if not self.is_open:
            if self._on_end is not None:
                self._on_end()
        elif size >= 65536 and self._full_reads <= _FULL_READS:
            self._full_reads += 1
            if self._full_reads == _FULL_READS:
                self._widen()

    def _read(self, most: int) -> int:
        try:
            data = os.read(self.descriptor, most)
        except BlockingIOError:
            return 0
        if not data:
            self.close()
            return most
        self._take(data)
        return len(data)

    def _widen(self) -> None:
        try:
            fcntl.fcntl(self.descriptor, fcntl.F_SETPIPE_SZ, _BUSY_PIPE_BYTES)
        except OSError:
            return  # over this user's share of pipe memory: the default size works too
