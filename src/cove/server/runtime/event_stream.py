"""Stream events as a response body, with heartbeats while nothing happens."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from cove.errors import CoveError
from cove.http import Ping, Response
from cove.wire.frames import (
    FRAMES,
    PING_COMMENT,
    PING_FRAME,
    SERVER_SENT_EVENTS,
    encode_failure_frame,
    encode_failure_server_sent,
    encode_frame_parts,
    encode_server_sent,
)

PING_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class _Coding:
    """One way to write events."""

    media_type: str
    encode: Callable[[object], tuple[bytes, ...]]
    fail: Callable[[CoveError], bytes]
    ping: bytes


_AS_FRAMES = _Coding(FRAMES, encode_frame_parts, encode_failure_frame, PING_FRAME)
_AS_SERVER_SENT = _Coding(
    SERVER_SENT_EVENTS, lambda event: (encode_server_sent(event),), encode_failure_server_sent, PING_COMMENT
)


def event_stream(events: AsyncGenerator[object, None], accept: bytes) -> Response:
    """Frames for whoever accepts them, server-sent events for all others."""
    coding = _AS_FRAMES if FRAMES.encode() in accept else _AS_SERVER_SENT
    headers = ((b"content-type", coding.media_type.encode()), (b"cache-control", b"no-cache"))
    return Response(200, headers, _write(events, coding), Ping(coding.ping, PING_SECONDS))


async def _write(events: AsyncGenerator[object, None], coding: _Coding) -> AsyncGenerator[tuple[bytes, ...], None]:
    async with aclosing(events):
        try:
            async for event in events:
                yield coding.encode(event)
        except CoveError as error:
            yield (coding.fail(error),)
