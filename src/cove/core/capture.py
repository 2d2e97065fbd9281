"""Capture head and tail of a byte stream of any length, in bounded memory."""

from collections import deque

_BLOCK_BYTES = 65536


class Capture:
    """Keeps at most `limit` bytes; what falls out of the middle is counted, not kept."""

    __slots__ = ("_head", "_head_limit", "_tail", "_tail_bytes", "_tail_limit", "total")

    def __init__(self, limit: int) -> None:
        self._head_limit = limit - limit // 2
        self._tail_limit = limit // 2
        self._head: deque[bytes | bytearray] = deque()
        self._tail: deque[bytes | bytearray] = deque()
        self._tail_bytes = 0
        self.total = 0

    @property
    def truncated(self) -> bool:
        """Return whether bytes are missing."""
        return self.total > self._head_limit + self._tail_limit

    def append(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        room = self._head_limit - self.total
        self.total += len(data)
        if room > 0:
            _append(self._head, data[:room])
            data = data[room:]
        if data and self._tail_limit:
            self._append_tail(data)

    def getvalue(self) -> bytes:
        """Return the retained bytes: the head, then the tail."""
        if not self._tail:
            return b"".join(self._head)
        surplus = self._tail_bytes - self._tail_limit
        first = memoryview(self._tail[0])[max(0, surplus) :]
        return b"".join([*self._head, first, *list(self._tail)[1:]])

    def _append_tail(self, data: bytes) -> None:
        _append(self._tail, data)
        self._tail_bytes += len(data)
        while self._tail_bytes - len(self._tail[0]) >= self._tail_limit:
            self._tail_bytes -= len(self._tail.popleft())


def _append(blocks: "deque[bytes | bytearray]", data: bytes) -> None:
    """Keep large chunks as they are, without a copy; small ones share a block."""
    last = blocks[-1] if blocks else None
    if isinstance(last, bytearray) and len(last) + len(data) <= _BLOCK_BYTES:
        last += data
    elif data:
        blocks.append(data if len(data) >= _BLOCK_BYTES // 2 else bytearray(data))
