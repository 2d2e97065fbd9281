"""The Connect protocol with JSON: envelopes of a stream, and errors with their codes.

An envelope is one byte of flags, the length of its message (32 bits, big-endian), and the message. The last one of a
stream has the flag 2; its message is an object, with `error` where the stream failed.
"""

import struct
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from cove.errors import CoveError
from cove.wire.errors import status_of

_HEAD: Final = struct.Struct(">BI")
_COMPRESSED: Final = 1
_LAST: Final = 2


class Code(StrEnum):
    """The codes of the protocol that are used here."""

    CANCELED = "canceled"
    INVALID_ARGUMENT = "invalid_argument"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    PERMISSION_DENIED = "permission_denied"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    FAILED_PRECONDITION = "failed_precondition"
    UNIMPLEMENTED = "unimplemented"
    INTERNAL = "internal"
    UNAVAILABLE = "unavailable"
    UNAUTHENTICATED = "unauthenticated"


STATUS: Final[Mapping[Code, int]] = {
    Code.CANCELED: 499,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.UNAUTHENTICATED: 401,
}
_BY_STATUS: Final[Mapping[int, Code]] = {
    400: Code.INVALID_ARGUMENT,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.NOT_FOUND,
    408: Code.DEADLINE_EXCEEDED,
    409: Code.FAILED_PRECONDITION,
    413: Code.RESOURCE_EXHAUSTED,
    429: Code.RESOURCE_EXHAUSTED,
    503: Code.UNAVAILABLE,
    507: Code.RESOURCE_EXHAUSTED,
}
_BY_ERROR: Final[Mapping[str, Code]] = {
    "USER_UNAVAILABLE": Code.UNAUTHENTICATED,
    "FILE_EXISTS": Code.ALREADY_EXISTS,
    "IS_DIRECTORY": Code.INVALID_ARGUMENT,
    "NOT_DIRECTORY": Code.INVALID_ARGUMENT,
}


class ConnectError(Exception):
    """A failed call: a code, and a text for people."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text

    @classmethod
    def of(cls, error: CoveError) -> "ConnectError":
        """Return an error of Cove's in the words of the protocol."""
        code = _BY_ERROR.get(error.code) or _BY_STATUS.get(status_of(error), Code.INTERNAL)
        return cls(code, error.message)

    @property
    def status(self) -> int:
        """The HTTP status of a call that is not a stream."""
        return STATUS[self.code]

    def encode(self) -> bytes:
        """Return the body of a call that is not a stream."""
        return msgspec.json.encode(self._fields())

    def encode_last(self) -> bytes:
        """Return the last envelope of a stream."""
        return encode_envelope(msgspec.json.encode({"error": self._fields()}), _LAST)

    def _fields(self) -> dict[str, str]:
        return {"code": self.code.value, "message": self.text.encode("utf-8", "replace").decode()}


def encode_envelope(message: bytes, flags: int = 0) -> bytes:
    """Return a message of a stream."""
    return _HEAD.pack(flags, len(message)) + message


LAST_ENVELOPE: Final = encode_envelope(b"{}", _LAST)


class EnvelopeDecoder:
    """Takes a stream in pieces of any size; no message may have more than `most_bytes`."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._buffer = bytearray()
        self._is_over = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that are complete; raises ConnectError for what is no envelope."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= _HEAD.size:
            flags, length = _HEAD.unpack_from(self._buffer)
            self._check(flags, length)
            end = _HEAD.size + length
            if len(self._buffer) < end:
                break
            message = bytes(self._buffer[_HEAD.size : end])
            del self._buffer[:end]
            if flags == _LAST:
                self._is_over = True
            else:
                messages.append(message)
        return messages

    def finish(self) -> None:
        """Check that nothing is missing."""
        if self._buffer:
            raise ConnectError(Code.INVALID_ARGUMENT, "the body ends in the middle of a message")

    def _check(self, flags: int, length: int) -> None:
        if self._is_over:
            raise ConnectError(Code.INVALID_ARGUMENT, "there is more after the last message")
        if flags & _COMPRESSED:
            raise ConnectError(Code.UNIMPLEMENTED, "messages are not compressed here")
        if flags not in (0, _LAST):
            raise ConnectError(Code.INVALID_ARGUMENT, f"a message has the unknown flags {flags}")
        if length > self._most_bytes:
            raise ConnectError(
                Code.RESOURCE_EXHAUSTED, f"a message has {length} bytes, more than the {self._most_bytes} it may have"
            )
