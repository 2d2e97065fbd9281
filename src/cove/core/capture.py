"""The beginning and the end of a byte stream of any length, in bounded memory."""

from collections import deque

_BLOCK_BYTES = 65536


class Capture:
    """Keeps at most `limit` bytes; what falls out of the middle is counted, not kept."""

    __slots__ = ("_head", "_head_limit", "_tail", "_tail_bytes", "_tail_limit", "total")

    def __init__(self, limit: int) -> None:
        self._head_limit = limit - limit // 2
        self._tail_limit = limit // 2
        self._head = bytearray()
        self._tail: deque[bytes | bytearray] = deque()
        self._tail_bytes = 0
        self.total = 0

    @property
    def truncated(self) -> bool:
        """Bytes are missing."""
        return self.total > self._head_limit + self._tail_limit

    def append(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data and self._tail_limit:
            self._append_tail(data)

    def getvalue(self) -> bytes:
        """The retained bytes: the head, then the tail."""
        if not self._tail:
            return bytes(self._head)
        surplus = self._tail_bytes - self._tail_limit
        first = self._tail[0][surplus:] if surplus > 0 else self._tail[0]
        return b"".join([self._head, first, *list(self._tail)[1:]])

    def _append_tail(self, data: bytes) -> None:
        last = self._tail[-1] if self._tail else None
        if isinstance(last, bytearray) and len(last) + len(data) <= _BLOCK_BYTES:
            last += data
        else:
            # Large chunks are kept as they are, without a copy; small ones share a block.
            self._tail.append(data if len(data) >= _BLOCK_BYTES // 2 else bytearray(data))
        self._tail_bytes += len(data)
        while self._tail_bytes - len(self._tail[0]) >= self._tail_limit:
            self._tail_bytes -= len(self._tail.popleft())
