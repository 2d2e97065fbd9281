"""Encode streams of events: as frames for our own client, as server-sent events for browsers and curl.

A frame is one byte for its kind, the lengths of its head and of its data (32 bits each, big-endian), the head as
JSON, and the data as they are. Output carries its bytes as data, so that they are neither escaped nor copied twice.
A connection to a port is an HTTP upgrade, then bytes as they are.
"""

import base64
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from cove.errors import CoveError, Internal
from cove.model import BuildEvent, BuildOutput, BuildStep, Exit, Gap, ImageMade, Output, Ready
from cove.model.event import StreamName
from cove.wire.coding import decode_json, encode_json
from cove.wire.errors import ErrorBody, body_of, encode_error, make_error

OutputEvent = Output | Gap | Ready | Exit
E = TypeVar("E")

FRAMES: Final = "application/vnd.cove.frames"
SERVER_SENT_EVENTS: Final = "text/event-stream"

EVENT: Final = 1
FAILURE: Final = 2
PING: Final = 3

_HEAD = struct.Struct(">BII")
MOST_FRAME_BYTES: Final = 256 << 20
PROTOCOL: Final = b"tcp"
# The same for a gateway, on a unix socket: behind the head comes one byte with the descriptor of the connection, which
# is the gateway's as long as both keep that socket open.
LENDING: Final = b"tcp-descriptor"
END_OF_HEAD: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length"


class OutputHead(msgspec.Struct, frozen=True, tag="output"):
    """Output without its data."""

    stream: StreamName
    cursor: str


_events_decoder = msgspec.json.Decoder(type=OutputHead | Gap | Ready | Exit)


def encode_failure_frame(error: CoveError) -> bytes:
    """The stream cannot go on; nothing follows."""
    head = encode_error(error)
    return _HEAD.pack(FAILURE, len(head), 0) + head


PING_FRAME: Final = _HEAD.pack(PING, 0, 0)
PING_COMMENT: Final = b": ping\n\n"


class FrameReader:
    """Takes bytes in any pieces and gives whole frames as kind, head and data. No input or output of its own.

    The data of a frame are put together once, when the last piece is there.
    """

    def __init__(self) -> None:
        self._head = bytearray()
        self._head_bytes = _HEAD.size
        self._data: list[memoryview] = []
        self._missing = 0

    def feed(self, piece: bytes) -> Iterator[tuple[int, bytes, bytes]]:
        """The frames that are complete with this piece."""
        rest = memoryview(piece)
        while True:
            rest = self._take_head(rest)
            if len(self._head) < self._head_bytes:
                return
            if rest and self._missing:
                self._data.append(rest[: self._missing])
                self._missing, rest = max(0, self._missing - len(rest)), rest[self._missing :]
            if self._missing:
                return
            yield self._head[0], bytes(self._head[_HEAD.size :]), b"".join(self._data)
            self._head.clear()
            self._head_bytes = _HEAD.size
            self._data.clear()

    def _take_head(self, rest: memoryview) -> memoryview:
        while rest and len(self._head) < self._head_bytes:
            size = self._head_bytes - len(self._head)
            self._head += rest[:size]
            rest = rest[size:]
            if len(self._head) == _HEAD.size:
                _, head_bytes, self._missing = _HEAD.unpack(self._head)
                self._head_bytes += head_bytes
                if head_bytes + self._missing > MOST_FRAME_BYTES:
                    raise Internal(f"the server sent a frame of {head_bytes + self._missing} bytes")
        return rest


def decode_failure(head: bytes) -> CoveError:
    """Decode the error that ended a stream."""
    return make_error(decode_json(head, ErrorBody))


def encode_failure_server_sent(error: CoveError) -> bytes:
    """The stream cannot go on; nothing follows."""
    return _server_sent("error", body_of(error), None)


def output_fields(event: Output) -> dict[str, str]:
    """Output as fields of JSON, tagged as other events are."""
    return {"type": "output", "stream": event.stream, **text_or_base64(event.data), "cursor": event.cursor}


def text_or_base64(data: bytes) -> dict[str, str]:
    """Bytes as a field of JSON; which one tells what they are."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _server_sent(name: str, data: object, cursor: str | None) -> bytes:
    head = b"" if cursor is None else b"id: %b\n" % cursor.encode()
    return b"%bevent: %b\ndata: %b\n\n" % (head, name.encode(), encode_json(data))


def render_upgrade(
    target: str, host: str, authorization: str | None = None, upgrade: str = "Upgrade: tcp\r\n", *, more: str = ""
) -> bytes:
    """The head of the request; `upgrade` and `more` are whole lines."""
    key = f"Authorization: {authorization}\r\n" if authorization is not None else ""
    return f"GET {target} HTTP/1.1\r\nHost: {host}\r\n{key}{more}Connection: Upgrade\r\n{upgrade}\r\n".encode()


def parse_upgrade(head: bytes) -> tuple[int, int]:
    """The status of the answer, and how long its body is; after 101 there is none."""
    status, *headers = head.split(b"\r\n")
    words = status.split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise Internal(f"the server answered something that is no HTTP: {head[:200]!r}")
    lengths = [value for name, _, value in (line.partition(b":") for line in headers) if name.lower() == _LENGTH]
    return int(words[1]), int(lengths[0]) if lengths and lengths[0].strip().isdigit() else 0


@dataclass(frozen=True, slots=True)
class EventCodec(Generic[E]):
    """The encoding of one kind of stream.

    `encode` gives the parts of a frame, its data apart: large ones need not be copied.
    """

    encode: Callable[[E], tuple[bytes, ...]]
    decode: Callable[[bytes, bytes], E]
    encode_server_sent: Callable[[E], bytes]


def encode_frame(event: OutputEvent) -> bytes:
    """Encode one event of a process or a terminal."""
    return b"".join(_encode_output(event))


def decode_output(head: bytes, data: bytes) -> OutputEvent:
    """An event of a process or a terminal."""
    event = _events_decoder.decode(head)
    return Output(event.stream, data, event.cursor) if isinstance(event, OutputHead) else event


def _encode_output(event: OutputEvent) -> tuple[bytes, ...]:
    if not isinstance(event, Output):
        return _encode_json(event)
    head = encode_json(OutputHead(event.stream, event.cursor))
    return _HEAD.pack(EVENT, len(head), len(event.data)) + head, event.data


def _encode_output_server_sent(event: OutputEvent) -> bytes:
    """The cursor is the event's `id`; bytes that are not UTF-8 are base64."""
    fields = output_fields(event) if isinstance(event, Output) else event
    return _server_sent(_tag(event), fields, event.cursor)


def _encode_json(event: object) -> tuple[bytes, ...]:
    head = encode_json(event)
    return (_HEAD.pack(EVENT, len(head), 0) + head,)


def _tag(event: msgspec.Struct) -> str:
    return str(event.__struct_config__.tag)


def _decoder(kind: object) -> Callable[[bytes, bytes], Any]:  # what the kind says
    decoder = msgspec.json.Decoder(type=kind)

    def decode(head: bytes, _: bytes) -> object:
        try:
            return decoder.decode(head)
        except msgspec.DecodeError:  # a name that is not UTF-8
            return msgspec.convert(decode_json(head, dict[str, object]), kind)

    return decode


def json_events(kind: object, name: Callable[[Any], str] = _tag) -> EventCodec[Any]:
    """Events that are JSON as they are: of a tagged union, or with another name. A `cursor` is the event's `id`."""
    return EventCodec(
        _encode_json,
        _decoder(kind),
        lambda event: _server_sent(name(event), event, getattr(event, "cursor", None)),
    )


class BuildOutputHead(msgspec.Struct, frozen=True, tag="output"):
    """Output of a build without its data."""

    stream: str


_build_decoder = msgspec.json.Decoder(type=BuildStep | BuildOutputHead | ImageMade)


def _decode_build(head: bytes, data: bytes) -> BuildEvent | ImageMade:
    event = _build_decoder.decode(head)
    return BuildOutput(stream=event.stream, data=data) if isinstance(event, BuildOutputHead) else event


def _encode_build(event: BuildEvent | ImageMade) -> tuple[bytes, ...]:
    if not isinstance(event, BuildOutput):
        return _encode_json(event)
    head = encode_json(BuildOutputHead(event.stream))
    return _HEAD.pack(EVENT, len(head), len(event.data)) + head, event.data


def _encode_build_server_sent(event: BuildEvent | ImageMade) -> bytes:
    fields: object = event
    if isinstance(event, BuildOutput):
        fields = {"type": "output", "stream": event.stream, **text_or_base64(event.data)}
    return _server_sent(_tag(event), fields, None)


BUILD_EVENTS: Final[EventCodec[BuildEvent | ImageMade]] = EventCodec(
    _encode_build, _decode_build, _encode_build_server_sent
)
OUTPUT_EVENTS: Final = EventCodec(_encode_output, decode_output, _encode_output_server_sent)
