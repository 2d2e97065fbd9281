"""Pass bytes between two sockets until both have ended, counting them."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

_FIRST_BYTES = 16 << 10
_LARGE_BYTES = 256 << 10
_MOST_LARGE = 64


Count = Callable[[int], None]


class LimitReached(Exception):
    """The sandbox has used up what its policy gives it."""


async def relay(inside: socket.socket, outside: socket.socket, sent: Count, received: Count) -> None:
    """Pass both ways. Each side that ends is ended on the other; whoever breaks the connection ends both.

    The caller closes the sockets. Raises LimitReached.
    """
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    flows = [_Flow(inside, outside, sent, ended), _Flow(outside, inside, received, ended)]
    for flow, other in zip(flows, reversed(flows), strict=True):
        flow.start(other)
    try:
        await ended
    except OSError:
        pass  # a reset of either side
    finally:
        for flow in flows:
            flow.stop()


class _LargeBuffers:
    """So many buffers may be large at a time: two thousand connections that all move much stay within 80 MiB."""

    def __init__(self) -> None:
        self._left = _MOST_LARGE

    def take(self) -> memoryview | None:
        if not self._left:
            return None
        self._left -= 1
        return memoryview(bytearray(_LARGE_BYTES))

    def give_back(self) -> None:
        self._left += 1


_large = _LargeBuffers()


class _Flow:
    """Move bytes one way by callbacks of the loop: a task for each costs a request half of its time again.

    What the sink does not take at once is kept, and nothing is read until it has. A buffer that was filled is replaced
    by a large one: most connections need none.
    """

    def __init__(self, source: socket.socket, sink: socket.socket, count: Count, ended: asyncio.Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._source, self._sink, self._count, self._ended = source, sink, count, ended
        self._buffer = memoryview(bytearray(_FIRST_BYTES))
        self._is_large = False
        self._left = self._buffer[:0]
        self._other: _Flow | None = None
        self.has_ended = False

    def start(self, other: "_Flow") -> None:
        """Begin; `other` is the way back."""
        self._other = other
        self._loop.add_reader(self._source, self._on_readable)

    def stop(self) -> None:
        """Let go of the sockets, and of the memory."""
        self._loop.remove_reader(self._source)
        self._loop.remove_writer(self._sink)
        if self._is_large:
            self._is_large = False
            _large.give_back()

    def _on_readable(self) -> None:
        try:
            size = self._source.recv_into(self._buffer)
            if size:
                self._count(size)
                self._pass_on(size)
            else:
                self._end()
        except (BlockingIOError, InterruptedError):
            pass  # it was not ready after all
        except (OSError, LimitReached) as error:
            self._fail(error)

    def _pass_on(self, size: int) -> None:
        data = self._buffer[:size]
        try:
            taken = self._sink.send(data)
        except (BlockingIOError, InterruptedError):
            taken = 0
        if taken < size:
            self._left = data[taken:]
            self._loop.remove_reader(self._source)
            self._loop.add_writer(self._sink, self._on_writable)
        elif size == _FIRST_BYTES and not self._is_large:
            self._enlarge()

    def _on_writable(self) -> None:
        try:
            self._left = self._left[self._sink.send(self._left) :]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(error)
            return
        if not self._left:
            self._loop.remove_writer(self._sink)
            self._loop.add_reader(self._source, self._on_readable)

    def _fail(self, error: Exception) -> None:
        self.stop()
        if not self._ended.done():
            self._ended.set_exception(error)

    def _enlarge(self) -> None:
        if (large := _large.take()) is not None:
            self._buffer, self._is_large = large, True

    def _end(self) -> None:
        self.has_ended = True
        self._loop.remove_reader(self._source)
        with suppress(OSError):
            self._sink.shutdown(socket.SHUT_WR)
        if self._other is not None and self._other.has_ended and not self._ended.done():
            self._ended.set_result(None)
