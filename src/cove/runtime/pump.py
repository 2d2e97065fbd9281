"""Copy from a pipe into a sink, without ever waiting: asyncio tells when there is something to read."""

import asyncio
import fcntl
import os
import termios
from collections.abc import Callable

_READ_BYTES = 65536
# A default pipe that is read full this often belongs to a program that prints a lot.
_FULL_READS = 4
_BUSY_PIPE_BYTES = 1 << 20
_BUSY_READ_BYTES = 512 << 10


class Pump:
    """Owns the read end of one pipe; `take` gets every chunk until the end, `finish` or `close`."""

    __slots__ = ("_full_reads", "_loop", "_on_end", "_read_bytes", "_take", "descriptor", "paused")

    def __init__(
        self, descriptor: int, take: Callable[[bytes], None], on_end: Callable[[], None] | None = None
    ) -> None:
        self.descriptor = descriptor
        self._take = take
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._full_reads = 0
        self._read_bytes = _READ_BYTES
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
        """Start reading again."""
        if self.is_open and self.paused:
            self.paused = False
            self._loop.add_reader(self.descriptor, self._on_readable)

    def finish(self) -> int | None:
        """Take exactly the bytes now in the pipe. Returns the descriptor if someone still holds the write end."""
        if not self.is_open:
            return None
        self.take_waiting()
        if self.is_open and self.is_at_end():
            self.close()
        return self.detach() if self.is_open else None

    def take_waiting(self) -> None:
        """Take exactly the bytes now in the pipe.

        Fewer may be there: a process that holds the write end can open the read end by /proc and read too.
        """
        waiting = self._count_waiting()
        while self.is_open and waiting > 0 and (size := self._read(min(waiting, self._read_bytes))):
            waiting -= size

    def take_last(self) -> bool:
        """Take exactly the bytes now in the pipe, which stays ours; returns whether nobody holds the write end."""
        try:
            data = os.read(self.descriptor, self._read_bytes)
            waiting = self._count_waiting() if data else 0
            while data:
                self._take(data)
                if waiting <= 0:
                    return self.is_at_end()
                data = os.read(self.descriptor, min(waiting, self._read_bytes))
                waiting -= len(data)
        except BlockingIOError:
            return False
        return True

    def _count_waiting(self) -> int:
        return int.from_bytes(fcntl.ioctl(self.descriptor, termios.FIONREAD, b"\0\0\0\0"), "little")

    def is_at_end(self) -> bool:
        """Return whether nobody holds the write end. It may read a byte: ask when nobody wants what is there."""
        try:
            return not os.read(self.descriptor, 1)
        except BlockingIOError:
            return False

    def detach(self) -> int:
        """Stop reading without closing: the caller owns the descriptor."""
        self.pause()
        descriptor, self.descriptor = self.descriptor, -1
        return descriptor

    def close(self) -> None:
        """Stop reading and close the pipe. Idempotent."""
        if self.is_open:
            if not self.paused:
                self._loop.remove_reader(self.descriptor)
            os.close(self.descriptor)
            self.descriptor = -1

    def _on_readable(self) -> None:
        size = self._read(self._read_bytes)
        if not self.is_open:
            if self._on_end is not None:
                self._on_end()
        elif size == _READ_BYTES and self._read_bytes == _READ_BYTES:
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
            self._read_bytes = _BUSY_READ_BYTES
        except OSError:
            return  # over this user's share of pipe memory: the default size works too
