"""Pass bytes between two sockets until both have ended, counting them."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

_FIRST_BYTES = 16 << 10
_FULL_BYTES = 256 << 10


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


async def _pass(source: socket.socket, sink: socket.socket, count: Count) -> None:
    """A buffer that was filled once is replaced by a large one: most connections never need it."""
    loop = asyncio.get_running_loop()
    view = memoryview(bytearray(_FIRST_BYTES))
    while size := await loop.sock_recv_into(source, view):
        count(size)
        await loop.sock_sendall(sink, view[:size])
        if size == _FIRST_BYTES:
            view = memoryview(bytearray(_FULL_BYTES))
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
