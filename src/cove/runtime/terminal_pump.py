"""From the master of a terminal into a sink, until nobody has the terminal open any more."""

import asyncio
import errno
import os
from collections.abc import Callable

# The kernel hands out at most a page of terminal output at a time; one call of the loop takes several.
_READ_BYTES = 65536
_READS = 16


class TerminalPump:
    """Owns a descriptor of the master. `on_end` is called once, after the last byte."""

    __slots__ = ("_descriptor", "_loop", "_on_end", "_take")

    def __init__(self, descriptor: int, take: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._take = take
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._on_readable)

    @property
    def is_open(self) -> bool:
        """There may be more to come."""
        return self._descriptor >= 0

    def close(self) -> None:
        """Stop. Idempotent."""
        if self.is_open:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
            self._on_end()

    def _on_readable(self) -> None:
        chunks: list[bytes] = []
        has_ended = False
        while len(chunks) < _READS and not has_ended:
            try:
                data = os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.EIO:  # the last slave was closed: pty(7)
                    raise
                data = b""
            has_ended = not data
            chunks.append(data)
        if chunks:
            self._take(b"".join(chunks))
        if has_ended:
            self.close()
