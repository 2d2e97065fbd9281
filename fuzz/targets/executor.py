"""Frames of executors: the same in any pieces, within the budget of a message, or a broken protocol."""

from collections.abc import Iterator

import msgspec

from cove.agent.protocol import ProtocolError
from cove.core.executor_protocol import EVENT_BYTES, MOST_MESSAGE_BYTES, FrameDecoder, Raised, Shown
from fuzz.splitting import cut


def _read(pieces: Iterator[bytes] | list[bytes]) -> list[object] | None:
    decoder = FrameDecoder()
    said: list[object] = []
    try:
        for piece in pieces:
            decoder.feed(piece)
            while decoder.has_frame:
                said += decoder.take()
    except ProtocolError:
        return None
    return said


def check(data: bytes) -> None:
    """Repair lengths that are too long for the input, then read it."""
    frames = _frames(data)
    whole = _read([frames])
    assert _known(whole) == _known(_read(cut(frames)))
    for each in whole or ():
        if isinstance(each, Shown | Raised):
            assert EVENT_BYTES <= each.size <= MOST_MESSAGE_BYTES + EVENT_BYTES
        if isinstance(each, Shown):
            msgspec.json.encode(each.result, enc_hook=str)


def _known(said: list[object] | None) -> str:
    return repr(said)  # NaN is equal to itself there


def _frames(data: bytes) -> bytes:
    """Take the two last bytes of a length for it: no mutation would find four that fit."""
    made = bytearray()
    at = 0
    while at + 3 <= len(data):
        kind, length = data[at], int.from_bytes(data[at + 1 : at + 3], "big") % 300
        made += bytes((b"RDVXTJ+.PEFN"[kind % 12] if kind < 200 else kind,)) + length.to_bytes(4, "big")
        made += data[at + 3 : at + 3 + length].ljust(length, b"x")
        at += 3 + length
    return bytes(made)


def seeds() -> Iterator[bytes]:
    """Whole messages: displays with text and JSON, errors, ends."""

    def frame(kind: bytes, payload: bytes = b"") -> bytes:
        return bytes((b"RDVXTJ+.PEFN".index(kind),)) + len(payload).to_bytes(2, "big") + payload

    text = frame(b"T", b"text/plain") + frame(b"+", "häß".encode())
    tokens = frame(b"J", b"application/json") + frame(b"+", b'["{","\\"a","[",1,2.5,null,true,"]","\\"b","("]')
    tokens += frame(b"+", b'["\\"long","]","]"]')
    yield frame(b"R") + frame(b"D") + text + frame(b".") + frame(b"E", b"12")
    yield frame(b"V") + tokens + frame(b".", b"cut")
    yield (
        frame(b"X")
        + frame(b"T", b"name")
        + frame(b"+", b"E")
        + frame(b"T", b"traceback")
        + frame(b"+", b"t")
        + frame(b".")
    )
    yield frame(b"P") + frame(b"F", b"123") + frame(b"N", b"threads\0a\0b") + frame(b"N", b"error\0" + b"12")
