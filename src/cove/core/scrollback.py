"""The scroll-back of a terminal, a ring buffer: the last bytes it has shown, addressed by cursor."""

_BOUNDARY_BYTES = 4096
_MOST_CONTINUATION_BYTES = 3
# The bytes that only occur inside a character of UTF-8.
_CONTINUATION = bytes(range(0x80, 0xC0))


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
