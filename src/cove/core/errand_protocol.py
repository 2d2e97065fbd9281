"""What an errand says (`agent.errand`), read as from an enemy: its neighbours inside can write into its pipe."""

from cove.agent.protocol import ProtocolError

MOST_MESSAGE_BYTES = 1 << 16
_LENGTH_BYTES = 4


class MessageReader:
    """Cuts a stream of bytes into messages of fields."""

    def __init__(self) -> None:
        self._waiting = b""

    def feed(self, data: bytes) -> list[list[bytes]]:
        """The messages that are complete now."""
        data = self._waiting + data
        messages = []
        at = 0
        while len(data) - at >= _LENGTH_BYTES:
            length = int.from_bytes(data[at : at + _LENGTH_BYTES], "big")
            if length > MOST_MESSAGE_BYTES:
                raise ProtocolError(f"a message of {length} bytes")
            end = at + _LENGTH_BYTES + length
            if end > len(data):
                break
            messages.append(data[at + _LENGTH_BYTES : end].split(b"\0"))
            at = end
        self._waiting = data[at:]
        return messages
