"""Write a response body as it comes: chunked transfer coding, with a heartbeat in long pauses."""

import asyncio

from cove.http.deadline import Deadline
from cove.http.response import Ping

_LAST = b"0\r\n\r\n"


class ChunkedBody:
    """Writer of a streamed body. It awaits nothing: backpressure is up to the caller."""

    def __init__(self, transport: asyncio.Transport, *, is_chunked: bool, ping: Ping | None) -> None:
        self._transport = transport
        self._is_chunked = is_chunked
        self._ping = ping
        self._pause = Deadline(self._say)
        self._wait()

    def write(self, data: bytes | tuple[bytes, ...]) -> None:
        """Write a chunk in one go: a heartbeat cannot come between its parts."""
        parts = data if isinstance(data, tuple) else (data,)
        size = sum(map(len, parts))
        if size:
            self._transport.writelines((b"%x\r\n" % size, *parts, b"\r\n") if self._is_chunked else parts)
        self._wait()

    def finish(self) -> None:
        """Write the last chunk."""
        if self._is_chunked:
            self._transport.write(_LAST)

    def close(self) -> None:
        """Say nothing more. Idempotent."""
        self._pause.close()

    def _wait(self) -> None:
        if self._ping is not None:
            self._pause.set(self._ping.seconds)

    def _say(self) -> None:
        assert self._ping is not None
        if not self._transport.get_write_buffer_size():  # else the client has enough to read
            self.write(self._ping.data)
        self._wait()
