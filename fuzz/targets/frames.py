"""Frames of events and answers to upgrades, as a client reads them from a server that is not trusted."""

from collections.abc import Iterator

import msgspec

from cove.errors import CoveError
from cove.model import Exit, Gap, Outcome, Output
from cove.wire.frames import (
    EVENT,
    FAILURE,
    MOST_FRAME_BYTES,
    FrameReader,
    OutputEvent,
    decode_failure,
    decode_output,
    encode_frame,
    parse_upgrade,
)
from fuzz.splitting import cut


def _read(pieces: Iterator[bytes] | list[bytes]) -> list[tuple[int, bytes, bytes]] | None:
    reader = FrameReader()
    frames: list[tuple[int, bytes, bytes]] = []
    try:
        for piece in pieces:
            frames += reader.feed(piece)
    except CoveError:
        return None
    return frames


def check(data: bytes) -> None:
    """Read it as frames, and as the head of an answer."""
    whole = _read([data])
    assert whole == _read(cut(data))
    for kind, head, content in whole or ():
        assert len(head) + len(content) <= MOST_FRAME_BYTES
        _check_frame(kind, head, content)
    try:
        status, length = parse_upgrade(data)
    except CoveError:
        return
    assert status >= 0
    assert length >= 0


def _check_frame(kind: int, head: bytes, content: bytes) -> None:
    try:
        if kind == FAILURE:
            assert isinstance(decode_failure(head), CoveError)
        elif kind == EVENT:
            event = decode_output(head, content)
            assert decode_output(*_parts(encode_frame(event))) == event
    except (CoveError, msgspec.DecodeError, UnicodeDecodeError):
        return


def _parts(frame: bytes) -> tuple[bytes, bytes]:
    (_, head, content) = next(iter(FrameReader().feed(frame)))
    return head, content


def seeds() -> Iterator[bytes]:
    """Frames of each kind, and heads."""
    events: list[OutputEvent] = [
        Output("stdout", b"some\0bytes", "12"),
        Gap(3, "15"),
        Exit(Outcome.EXITED, 0, None, "16"),
    ]
    yield b"".join(map(encode_frame, events))
    body = b'{"code":"NOT_FOUND","message":"m"}'
    yield b"\2" + len(body).to_bytes(4, "big") + bytes(4) + body
    yield b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: tcp\r\n\r\n"
    yield b"HTTP/1.1 404 Not Found\r\nContent-Length: 12\r\n\r\n"
