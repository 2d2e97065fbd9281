"""Answer calls of the Connect protocol: one message each way, or a stream of them."""

import asyncio
import base64
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from cove.errors import CoveError
from cove.http import HttpError, Ping, Request, Response
from cove.server.e2b.protocol import JSON, MOST_BODY_BYTES, USER, USER_HEADER, plain
from cove.wire.connect import LAST_ENVELOPE, Code, ConnectError, EnvelopeDecoder, encode_envelope

Message = Mapping[str, object]
Events = AsyncGenerator[Message, None]
M = TypeVar("M", bound=msgspec.Struct)

_STREAM: Final = ((b"content-type", b"application/connect+json"),)
_DEFAULT_PING_SECONDS: Final = 90.0
_LEAST_PING_SECONDS: Final = 1.0
_MOST_MILLISECONDS: Final = 10**10
_OVER: Final = "the time of the call is over"
KEEPALIVE: Final[Message] = {"keepalive": {}}


class Wire(msgspec.Struct, rename="camel"):
    """A message of a client; fields that are not known are ignored."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller, by the headers: as whom, and for how many seconds. `user` is None for the sandbox's own."""

    user: str | None
    timeout: float | None
    ping: float

    @classmethod
    def of(cls, request: Request) -> "Caller":
        """Read the headers."""
        milliseconds = _number(request, b"connect-timeout-ms")
        interval = _number(request, b"keepalive-ping-interval")
        ping = _DEFAULT_PING_SECONDS if not interval else max(float(interval), _LEAST_PING_SECONDS)
        return cls(user_of(request), None if not milliseconds else milliseconds / 1000, ping)


Unary = Callable[[bytes, Caller], Awaitable[Message]]
Stream = Callable[[bytes, Caller], Events]


def user_of(request: Request) -> str | None:
    """Return the user that the gateway has read from the request."""
    name = request.headers.get(USER_HEADER, b"").decode("latin-1")
    return None if name in ("", USER) else name


def _number(request: Request, name: bytes) -> int:
    text = request.headers.get(name, b"")
    return min(int(text), _MOST_MILLISECONDS) if text.isdigit() and len(text) < 20 else 0


def decode(body: bytes, kind: type[M]) -> M:
    """Decode a message; ConnectError for what is none."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConnectError(Code.INVALID_ARGUMENT, plain(f"the message is not valid: {error}")) from None


async def answer_unary(call: Unary, request: Request) -> Response:
    """Answer one message with one."""
    caller = Caller.of(request)
    try:
        async with asyncio.timeout(caller.timeout):
            result = await call(await request.read(MOST_BODY_BYTES), caller)
    except TimeoutError:
        error = ConnectError(Code.DEADLINE_EXCEEDED, _OVER)
    except ConnectError as failed:
        error = failed
    except CoveError as failed:
        error = ConnectError.of(failed)
    else:
        return Response(200, JSON, encode_message(result))
    return Response(error.status, JSON, error.encode())


async def answer_stream(call: Stream, request: Request, keepalive: Message) -> Response:
    """Answer one message with a stream; whatever goes wrong is its last message."""
    caller = Caller.of(request)
    try:
        events = call(await _read_one(request), caller)
    except ConnectError as error:
        return Response(200, _STREAM, error.encode_last())
    written = _write(events)
    # Nothing may come before the first message: it is waited for here, where no heartbeat is sent.
    first = await anext(written)
    ping = Ping(encode_envelope(encode_message(keepalive)), caller.ping)
    return Response(200, _STREAM, _continued(first, written), ping)


async def answer_input(take: Callable[[bytes], Awaitable[None]], request: Request) -> Response:
    """Take a stream of messages, and answer with one."""
    decoder = EnvelopeDecoder(MOST_BODY_BYTES)
    try:
        async with asyncio.timeout(Caller.of(request).timeout):
            async for data in request.chunks():
                for message in decoder.feed(data):
                    await take(message)
        decoder.finish()
    except TimeoutError:
        return Response(200, _STREAM, ConnectError(Code.DEADLINE_EXCEEDED, _OVER).encode_last())
    except ConnectError as error:
        return Response(200, _STREAM, error.encode_last())
    except CoveError as error:
        return Response(200, _STREAM, ConnectError.of(error).encode_last())
    return Response(200, _STREAM, encode_envelope(b"{}") + LAST_ENVELOPE)


async def _read_one(request: Request) -> bytes:
    decoder = EnvelopeDecoder(MOST_BODY_BYTES)
    messages: list[bytes] = []
    try:
        async for data in request.chunks():
            messages += decoder.feed(data)
            if len(messages) > 1:
                raise ConnectError(Code.INVALID_ARGUMENT, "a call of this kind has one message")
    except HttpError as error:
        raise ConnectError(Code.INVALID_ARGUMENT, str(error)) from None
    decoder.finish()
    if not messages:
        raise ConnectError(Code.INVALID_ARGUMENT, "the call has no message")
    return messages[0]


async def _write(events: Events) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        try:
            async for event in events:
                yield encode_envelope(encode_message(event))
            yield LAST_ENVELOPE
        except ConnectError as error:
            yield error.encode_last()
        except CoveError as error:
            yield ConnectError.of(error).encode_last()


async def _continued(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        yield first
        async for data in rest:
            yield data


async def until(events: Events, seconds: float | None) -> Events:
    """Pass events on for so long; then the call's time is over."""
    loop = asyncio.get_running_loop()
    deadline = None if seconds is None else loop.time() + seconds
    async with aclosing(events):
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    event = await anext(events, None)
            except TimeoutError:
                raise ConnectError(Code.DEADLINE_EXCEEDED, _OVER) from None
            if event is None:
                return
            yield event


def encode_message(message: Message) -> bytes:
    """Encode a message; a name that is not UTF-8 has question marks."""
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError:
        return msgspec.json.encode(_readable(message))


def _readable(value: object) -> object:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Mapping):
        return {name: _readable(each) for name, each in value.items()}
    return [_readable(each) for each in value] if isinstance(value, list) else value


def base64_of(data: bytes) -> str:
    """Return bytes as a message carries them."""
    return base64.b64encode(data).decode()
