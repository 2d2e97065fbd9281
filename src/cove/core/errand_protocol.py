"""Parse the messages of an errand (`agent.errand`); untrusted: its neighbours inside can write into its pipe."""

from cove.agent.protocol import ProtocolError

# Two paths of the longest kind and some numbers.
MOST_MESSAGE_BYTES = 1 << 14
# Paths below a directory whose own path has at most PATH_MAX bytes: limits.h.
MOST_RELATIVE_BYTES = 4095 + 256
_MOST_NAME_BYTES = 255
_MOST_FIELDS = 8
_LENGTH_BYTES = 4


class MessageReader:
    """Cuts a stream of bytes into messages of fields, one at a time."""

    def __init__(self) -> None:
        self._data = b""
        self._at = 0

    @property
    def waiting_bytes(self) -> int:
        """Return how many bytes have been fed and not taken."""
        return len(self._data) - self._at

    def feed(self, data: bytes) -> None:
        """Add what has come."""
        self._data = self._data[self._at :] + data
        self._at = 0

    def take(self) -> list[bytes] | None:
        """Take the next message, if it is complete. Beyond the most fields the last one has the rest, NUL and all."""
        begin = self._at + _LENGTH_BYTES
        if begin > len(self._data):
            return None
        length = int.from_bytes(self._data[self._at : begin], "big")
        if length > MOST_MESSAGE_BYTES:
            raise ProtocolError(f"a message of {length} bytes")
        if begin + length > len(self._data):
            return None
        self._at = begin + length
        return self._data[begin : self._at].split(b"\0", _MOST_FIELDS)


def check_relative(path: bytes) -> bytes:
    """Return the path, if it leads from a directory to something below it; otherwise ProtocolError."""
    if len(path) > MOST_RELATIVE_BYTES or b"\0" in path:
        raise ProtocolError(f"a path that is none: {path[:40]!r}")
    framed = b"/%b/" % path
    is_below = b"//" not in framed and b"/./" not in framed and b"/../" not in framed
    if not is_below or (len(path) > _MOST_NAME_BYTES and max(map(len, path.split(b"/"))) > _MOST_NAME_BYTES):
        raise ProtocolError(f"a path that is not below its directory: {path[:40]!r}")
    return path
