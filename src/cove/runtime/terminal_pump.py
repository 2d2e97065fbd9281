"""Copy from the master of a pty into a sink, without ever waiting."""

import asyncio
import os
from collections.abc import Callable

# The kernel hands out at most a page of terminal output at a time; one call of the loop takes several. After a small
# one there is rarely more: the loop calls again if there is.
_READ_BYTES = 65536
_SMALL_BYTES = 1024
_READS = 16
# More than the kernel keeps of a terminal's output (a page, and 8 KiB on the way there): drivers/tty/pty.c.
_MOST_LEFT_READS = 32


class TerminalPump:
    """Owns a descriptor of the master. Somebody must have the slave open, so that it never looks closed."""

    __slots__ = ("_descriptor", "_is_paused", "_loop", "_take")

    def __init__(self, descriptor: int, take: Callable[[bytes], None]) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._take = take
        self._is_paused = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._on_readable)

    def pause(self) -> None:
        """Take no more for now: the program waits, as on any terminal that is full."""
        if self._descriptor >= 0 and not self._is_paused:
            self._is_paused = True
            self._loop.remove_reader(self._descriptor)

    def resume(self) -> None:
        """Take again."""
        if self._descriptor >= 0 and self._is_paused:
            self._is_paused = False
            self._loop.add_reader(self._descriptor, self._on_readable)

    def finish(self) -> None:
        """Take what was printed before this call, then stop. Idempotent.

        A read that finds nothing has first moved everything on its way to us: n_tty_read, tty_buffer_flush_work.
        """
        if self._descriptor >= 0:
            self._read(_MOST_LEFT_READS, 0)
            self.pause()
            os.close(self._descriptor)
            self._descriptor = -1

    def _on_readable(self) -> None:
        self._read(_READS, _SMALL_BYTES)

    def _read(self, times: int, enough: int) -> None:
        """Up to so many reads, or until one gives less than `enough`."""
        chunks: list[bytes] = []
        try:
            while len(chunks) < times:
                chunks.append(os.read(self._descriptor, _READ_BYTES))
                if len(chunks[-1]) < enough:
                    break
        except BlockingIOError:
            pass
        except OSError:  # EIO: the slave we were given was not this master's
            self.pause()
        if chunks:
            self._take(b"".join(chunks))
