"""A stream of events as the body of an answer, kept alive while nothing happens."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from cove.errors import CoveError
from cove.http import Response
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
_SMALL_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class _Coding:
    """One way to write events."""

    media_type: str
    encode: Callable[[object], tuple[bytes, ...]]
    fail: Callable[[CoveError], bytes]
    ping: bytes


def _encode_frame(event: object) -> tuple[bytes, ...]:
    """Small data in one piece with their head, large ones apart."""
    parts = encode_frame_parts(event)
    return parts if len(parts[-1]) > _SMALL_BYTES else (b"".join(parts),)


_AS_FRAMES = _Coding(FRAMES, _encode_frame, encode_failure_frame, PING_FRAME)
_AS_SERVER_SENT = _Coding(
    SERVER_SENT_EVENTS, lambda event: (encode_server_sent(event),), encode_failure_server_sent, PING_COMMENT
)


def event_stream(events: AsyncGenerator[object, None], accept: bytes) -> Response:
    """Frames for whoever accepts them, server-sent events for all others."""
    coding = _AS_FRAMES if FRAMES.encode() in accept else _AS_SERVER_SENT
    headers = ((b"content-type", coding.media_type.encode()), (b"cache-control", b"no-cache"))
    return Response(200, headers, _write(events, coding))


async def _write(events: AsyncGenerator[object, None], coding: _Coding) -> AsyncGenerator[bytes, None]:
    loop = asyncio.get_running_loop()
    following = loop.create_task(_next(events))
    try:
        while True:
            done, _ = await asyncio.wait([following], timeout=PING_SECONDS)
            if not done:
                yield coding.ping
                continue
            try:
                event = following.result()
            except StopAsyncIteration:
                return
            except CoveError as error:
                yield coding.fail(error)
                return
            following = loop.create_task(_next(events))
            for part in coding.encode(event):
                yield part
    finally:
        following.cancel()
        await asyncio.wait([following])
        if not following.cancelled():
            following.exception()
        await events.aclose()


async def _next(events: AsyncGenerator[object, None]) -> object:
    return await anext(events)
