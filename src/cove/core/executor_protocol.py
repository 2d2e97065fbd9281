"""Frames between the runtime and an executor, without either: see executor/channel.py."""

import msgspec

from cove.agent.protocol import ProtocolError
from cove.model.code import CodeError, Result

_LENGTH_BYTES = 4
_MOST_FRAME_BYTES = 96 << 20
# What an empty result takes.
_RESULT_BYTES = 512


class Ready(msgspec.Struct, frozen=True, tag="ready", tag_field="kind"):
    """The executor waits for code."""


class Shown(msgspec.Struct, frozen=True, tag="display", tag_field="kind"):
    """Something was displayed."""

    data: dict[str, object]
    truncated: bool = False

    def result(self) -> Result:
        """As the caller sees it."""
        return Result(data=self.data, truncated=self.truncated)


class Returned(msgspec.Struct, frozen=True, tag="result", tag_field="kind"):
    """The last expression has a value."""

    data: dict[str, object]
    truncated: bool = False

    def result(self) -> Result:
        """As the caller sees it."""
        return Result(data=self.data, truncated=self.truncated, is_main=True)


class Raised(msgspec.Struct, frozen=True, tag="error", tag_field="kind"):
    """The code failed."""

    name: str
    message: str
    traceback: str

    def error(self) -> CodeError:
        """As the caller sees it."""
        return CodeError(name=self.name, message=self.message, traceback=self.traceback)


class Finished(msgspec.Struct, frozen=True, tag="done", tag_field="kind"):
    """The run is over; everything it printed is in the pipes."""

    count: int


Said = Ready | Shown | Returned | Raised | Finished

_encode = msgspec.json.encode
_decoder: msgspec.json.Decoder[Said] = msgspec.json.Decoder(Said)


def encode_run(code: str) -> bytes:
    """Tell the executor to run this."""
    body = msgspec.json.encode({"kind": "run", "code": code})
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def weigh(result: Result) -> int:
    """About how many bytes a result takes."""
    values = result.data.values()
    return _RESULT_BYTES + sum(len(each) if isinstance(each, str) else len(_encode(each)) for each in values)


class FrameDecoder:
    """Bytes in, what the executor said out. Anything else is a ProtocolError: user code can write here too."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Said]:
        """What these bytes complete."""
        self._buffer += data
        said: list[Said] = []
        while len(self._buffer) >= _LENGTH_BYTES:
            length = int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
            if length > _MOST_FRAME_BYTES:
                raise ProtocolError(f"a frame of {length} bytes")
            if len(self._buffer) < _LENGTH_BYTES + length:
                break
            said.append(_decode(bytes(self._buffer[_LENGTH_BYTES : _LENGTH_BYTES + length])))
            del self._buffer[: _LENGTH_BYTES + length]
        return said


def _decode(body: bytes) -> Said:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a frame of an executor: {error}") from None
