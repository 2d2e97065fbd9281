"""WebSocket frames: the same in any pieces, no message beyond the limit, and what we frame is what is read."""

from collections.abc import Iterator

from cove.http.websocket_frames import (
    Closed,
    Event,
    FrameReader,
    Opcode,
    Ping,
    WebSocketError,
    make_close,
    make_frame,
    make_masked_frame,
)
from fuzz.splitting import cut

_LIMIT = 300


def _read(pieces: Iterator[bytes] | list[bytes], *, is_masked: bool) -> list[object]:
    reader = FrameReader(_LIMIT, is_masked=is_masked)
    events: list[Event] = []
    for piece in pieces:
        events += reader.feed(piece)
        if events and isinstance(events[-1], Closed | WebSocketError):
            break
    return [(each.code, each.reason) if isinstance(each, WebSocketError) else each for each in events]


def check(data: bytes) -> None:
    """The first bit chooses the side; the rest are frames, and also a message."""
    is_masked = bool(data[:1] > b"\x7f")
    frames = data[1:]
    whole = _read([frames], is_masked=is_masked)
    assert whole == _read(cut(frames), is_masked=is_masked)
    for event in whole:
        size = len(event.encode()) if isinstance(event, str) else len(event) if isinstance(event, bytes) else 0
        assert size <= _LIMIT
        assert not isinstance(event, Ping) or len(event.data) <= 125
        assert not isinstance(event, Closed) or len(make_close(event.code, event.reason)) <= 127
    if len(frames) <= _LIMIT:
        assert _read([make_masked_frame(Opcode.BINARY, frames, data[:4].ljust(4, b"m"))], is_masked=True) == [frames]
        assert _read([make_frame(Opcode.BINARY, frames)], is_masked=False) == [frames]


def seeds() -> Iterator[bytes]:
    """Frames of every kind, of both sides, whole and in fragments."""
    mask = b"\1\2\3\4"
    for opcode, payload in (
        (Opcode.TEXT, b"text"),
        (Opcode.BINARY, b"\0" * 200),
        (Opcode.PING, b""),
        (Opcode.CLOSE, b"\x03\xe8x"),
    ):
        yield b"\xff" + make_masked_frame(opcode, payload, mask)
        yield b"\0" + make_frame(opcode, payload)
    yield b"\0" + b"\x01\x02ab" + b"\x89\x00" + b"\x80\x02cd"
    yield b"\0" + make_frame(Opcode.BINARY, b"x" * 301) + b"\x82\x7f" + b"\0" * 8
