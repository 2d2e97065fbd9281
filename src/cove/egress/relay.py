"""Pass bytes between two sockets until both have ended, counting them."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

_FIRST_BYTES = 16 << 10
_LARGE_BYTES = 256 << 10
_MOST_LARGE = 64


class LimitReached(Exception):
    """The sandbox has used up what its policy gives it."""


async def relay(inside: socket.socket, outside: socket.socket, sent: "Count", received: "Count") -> None:
    """Pass both ways. Each side that ends is ended on the other; whoever breaks the connection ends both."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_pass(inside, outside, sent))
            group.create_task(_pass(outside, inside, received))
    except ExceptionGroup as group:
        if (reached := group.subgroup(LimitReached)) is not None:
            raise LimitReached(str(reached.exceptions[0])) from None
        if group.split(OSError)[1] is not None:
            raise  # anything but a reset of either side, for which the caller closes both


Count = Callable[[int], None]


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


async def _pass(source: socket.socket, sink: socket.socket, count: Count) -> None:
    """Move bytes until the end. A buffer that was filled is replaced by a large one: most connections need none."""
    loop = asyncio.get_running_loop()
    view = memoryview(bytearray(_FIRST_BYTES))
    large: memoryview | None = None
    try:
        while size := await loop.sock_recv_into(source, large or view):
            count(size)
            await loop.sock_sendall(sink, (large or view)[:size])
            if large is None and size == _FIRST_BYTES:
                large = _large.take()
    finally:
        if large is not None:
            _large.give_back()
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
