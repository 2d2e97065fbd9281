"""Keep a byte stream of any length in bounded memory: its head and tail, or the scroll-back of a terminal."""

from collections import deque

_BLOCK_BYTES = 65536
_BOUNDARY_BYTES = 4096
_MOST_CONTINUATION_BYTES = 3
# The bytes that only occur inside a character of UTF-8.
_CONTINUATION = bytes(range(0x80, 0xC0))


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


class Scrollback:
    """Keeps at least `limit` bytes and at most twice as many; a cursor is the number of bytes that came before."""

    __slots__ = ("_data", "_limit", "start")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self.start = 0

    @property
    def end(self) -> int:
        """The cursor after the last byte."""
        return self.start + len(self._data)

    def append(self, data: bytes) -> None:
        """Take what the terminal shows."""
        self._data += data
        surplus = len(self._data) - self._limit
        if surplus > self._limit:
            del self._data[:surplus]
            self.start += surplus

    def read(self, cursor: int, most: int) -> bytes:
        """Up to `most` bytes from the cursor on, which must not lie before `start`."""
        at = cursor - self.start
        return bytes(self._data[at : at + most])

    def fresh_cursor(self) -> int:
        """Return where a new viewer begins: not inside a character or an escape sequence, if a line starts soon.

        Programs that draw the whole screen print no lines; there, the next escape sequence is the place.
        """
        if not self.start:
            return 0
        newline = self._data.find(b"\n", 0, _BOUNDARY_BYTES)
        if newline >= 0:
            return self.start + newline + 1
        escape = self._data.find(b"\x1b", 0, _BOUNDARY_BYTES)
        if escape >= 0:
            return self.start + escape
        first = self._data[:_MOST_CONTINUATION_BYTES]
        return self.start + len(first) - len(first.lstrip(_CONTINUATION))
