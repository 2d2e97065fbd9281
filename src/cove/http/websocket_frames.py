"""Encode and decode WebSocket frames (RFC 6455), for either side, without input or output."""

from dataclasses import dataclass
from enum import IntEnum

_FINAL = 0x80
_RESERVED = 0x70
_MASKED = 0x80
_MOST_CONTROL_BYTES = 125
_LONG_BYTES = 4096
_XOR = [bytes(octet ^ mask for octet in range(256)) for mask in range(256)]


class Opcode(IntEnum):
    """The kind of a frame."""

    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


class WebSocketError(Exception):
    """The other side broke the protocol: the connection is closed with this code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Closed:
    """The other side ends the conversation; 1005 where it gave no code."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ping:
    """The other side wants to know whether we are there."""

    data: bytes


Event = str | bytes | Ping | Closed | WebSocketError


class FrameReader:
    """Takes bytes, gives messages and control frames in order. After Closed or WebSocketError it is done.

    Holds at most one message of `limit` bytes and what was fed last. A client's frames are masked, a server's are not.
    """

    def __init__(self, limit: int, *, is_masked: bool = True) -> None:
        self._limit = limit
        self._mask_bytes = 4 if is_masked else 0
        self._buffer = bytearray()
        self._opcode: Opcode | None = None
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[Event]:
        """Decode the messages that these bytes complete."""
        self._buffer += data
        events: list[Event] = []
        try:
            while (frame := self._take_frame()) is not None:
                event = self._interpret(*frame)
                if event is not None:
                    events.append(event)
                if isinstance(event, Closed):
                    break
        except WebSocketError as error:
            events.append(error)
        return events

    def _take_frame(self) -> tuple[bool, Opcode, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        is_final, opcode = self._check_first(buffer[0])
        length = buffer[1] & 0x7F
        if bool(buffer[1] & _MASKED) != bool(self._mask_bytes):
            raise WebSocketError(1002, "frames from a client, and no others, must be masked")
        if opcode >= Opcode.CLOSE and (length > _MOST_CONTROL_BYTES or not is_final):
            raise WebSocketError(1002, "a control frame is short and whole")
        size_bytes = {126: 2, 127: 8}.get(length, 0)
        start = 2 + size_bytes + self._mask_bytes
        if len(buffer) < start:
            return None
        if size_bytes:
            length = int.from_bytes(buffer[2 : 2 + size_bytes], "big")
        if opcode < Opcode.CLOSE and self._size + length > self._limit:
            raise WebSocketError(1009, f"a message has at most {self._limit} bytes")
        if len(buffer) < start + length:
            return None
        data = bytes(memoryview(buffer)[start : start + length])
        if self._mask_bytes:
            data = unmask(bytes(buffer[start - 4 : start]), data)
        del buffer[: start + length]
        return is_final, opcode, data

    def _check_first(self, first: int) -> tuple[bool, Opcode]:
        if first & _RESERVED:
            raise WebSocketError(1002, "reserved bits are set, but no extension was agreed on")
        try:
            opcode = Opcode(first & 0x0F)
        except ValueError:
            raise WebSocketError(1002, f"there is no opcode {first & 0x0F}") from None
        if opcode < Opcode.CLOSE and (opcode is Opcode.CONTINUATION) != (self._opcode is not None):
            raise WebSocketError(1002, "a fragmented message is continued, and nothing else is")
        return bool(first & _FINAL), opcode

    def _interpret(self, is_final: bool, opcode: Opcode, data: bytes) -> Event | None:
        if opcode is Opcode.PING:
            return Ping(data)
        if opcode is Opcode.PONG:
            return None
        if opcode is Opcode.CLOSE:
            return _read_close(data)
        if self._opcode is None and is_final:
            return _decode(data) if opcode is Opcode.TEXT else data
        return self._collect(is_final, opcode, data)

    def _collect(self, is_final: bool, opcode: Opcode, data: bytes) -> Event | None:
        if opcode is not Opcode.CONTINUATION:
            self._opcode = opcode
        self._size += len(data)
        if data:
            self._parts.append(data)
        if not is_final:
            return None
        message, is_text = b"".join(self._parts), self._opcode is Opcode.TEXT
        self._opcode, self._size = None, 0
        self._parts.clear()
        return _decode(message) if is_text else message


def make_frame(opcode: Opcode, data: bytes) -> bytes:
    """Return one whole frame, unmasked as a server's are."""
    length = len(data)
    if length < 126:
        return bytes((_FINAL | opcode, length)) + data
    if length < 1 << 16:
        return bytes((_FINAL | opcode, 126)) + length.to_bytes(2, "big") + data
    return bytes((_FINAL | opcode, 127)) + length.to_bytes(8, "big") + data


def make_masked_frame(opcode: Opcode, data: bytes, mask: bytes) -> bytes:
    """Return one whole frame, masked as a client's are."""
    head = bytearray(make_frame(opcode, data)[: -len(data) or None])
    head[1] |= _MASKED
    return bytes(head) + mask + unmask(mask, data)


def make_close(code: int, reason: str) -> bytes:
    """Return the frame that ends a conversation."""
    text = reason.encode()[: _MOST_CONTROL_BYTES - 2].decode(errors="ignore").encode()
    return make_frame(Opcode.CLOSE, b"" if code == 1005 else code.to_bytes(2, "big") + text)


def unmask(mask: bytes, data: bytes) -> bytes:
    """Apply the mask, which is its own inverse: short data as one number, long data by a table for each octet."""
    length = len(data)
    if length > _LONG_BYTES:
        octets = bytearray(data)
        for at in range(4):
            octets[at::4] = octets[at::4].translate(_XOR[mask[at]])
        return bytes(octets)
    key = (mask * (length // 4 + 1))[:length]
    return (int.from_bytes(data, "little") ^ int.from_bytes(key, "little")).to_bytes(length, "little")


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise WebSocketError(1007, "text must be UTF-8") from None


def _read_close(data: bytes) -> Closed:
    if not data:
        return Closed(1005, "")
    code = int.from_bytes(data[:2], "big")
    if not 1000 <= code < 5000 or code in (1004, 1005, 1006) or 1014 < code < 3000:
        raise WebSocketError(1002, "this is no close code")
    return Closed(code, _decode(data[2:]))
