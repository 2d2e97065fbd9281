"""WebSockets: spoken with an independent client, and with frames that no client should send."""

import asyncio
import os
from collections.abc import Callable
from itertools import pairwise

import pytest
import websockets
from hypothesis import given
from hypothesis import strategies as st
from support.event_loops import each_event_loop, until_still
from support.raw_http import TIMEOUT_SECONDS, Client, connect, serve
from websockets.asyncio.client import connect as open_websocket
from websockets.typing import Subprotocol

from cove.http import Answer, HttpLimits, Request
from cove.http.websocket import WebSocket, accept
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
    unmask,
)

pytestmark = [pytest.mark.anyio, pytest.mark.pure]
anyio_backend = each_event_loop

MASK = b"\x01\x02\x03\x04"
LIMIT = 1 << 20


async def echo(websocket: WebSocket) -> None:
    while (message := await websocket.receive()) is not None:
        await websocket.send(message)


def handler(request: Request) -> Answer:
    return accept(request, echo, subprotocols=(b"second", b"first"))


def frame(first: int, data: bytes, *, mask: bytes = MASK) -> bytes:
    """A frame as a client sends it."""
    length = len(data)
    if length < 126:
        size = bytes((0x80 | length,))
    elif length < 1 << 16:
        size = bytes((0x80 | 126,)) + length.to_bytes(2, "big")
    else:
        size = bytes((0x80 | 127,)) + length.to_bytes(8, "big")
    return bytes((first,)) + size + mask + unmask(mask, data)


async def shake_hands(client: Client) -> None:
    reply = await client.ask(
        Connection="Upgrade",
        Upgrade="websocket",
        Sec_WebSocket_Version="13",
        Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==",
    )
    assert reply.status == 101
    assert reply.headers["sec-websocket-accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # RFC 6455 § 1.3


async def test_an_independent_client_gets_back_what_it_sent() -> None:
    async with serve(handler) as port, open_websocket(f"ws://127.0.0.1:{port}/") as websocket:
        for message in (
            "",
            "text ü",
            b"",
            b"\0\xff",
            os.urandom(200),
            os.urandom(70_000),
            os.urandom(LIMIT),
            "é" * 1000,
        ):
            await websocket.send(message)
            assert await websocket.recv() == message
        await websocket.send(["frag", "men", "", "ted"])
        assert await websocket.recv() == "fragmented"
        await asyncio.wait_for(await websocket.ping(b"there?"), TIMEOUT_SECONDS)


async def test_a_subprotocol_that_both_know_is_chosen() -> None:
    async with (
        serve(handler) as port,
        open_websocket(
            f"ws://127.0.0.1:{port}/", subprotocols=[Subprotocol("other"), Subprotocol("first")]
        ) as websocket,
    ):
        assert websocket.subprotocol == "first"


async def test_the_server_can_close_with_a_code_and_a_reason() -> None:
    async def close(websocket: WebSocket) -> None:
        await websocket.close(4001, "enough ü" * 30)

    async with serve(lambda request: accept(request, close)) as port, asyncio.timeout(TIMEOUT_SECONDS):
        async with open_websocket(f"ws://127.0.0.1:{port}/") as websocket:
            with pytest.raises(websockets.ConnectionClosedError) as caught:
                await websocket.recv()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 4001
        assert ("enough ü" * 30).startswith(caught.value.rcvd.reason)
        assert len(caught.value.rcvd.reason.encode()) > 115


async def test_the_client_can_close_and_the_server_sees_its_code() -> None:
    codes = []

    async def watch(websocket: WebSocket) -> None:
        assert await websocket.receive() is None
        codes.append(websocket.close_code)
        await websocket.send("too late")

    async with serve(lambda request: accept(request, watch)) as port, asyncio.timeout(TIMEOUT_SECONDS):
        async with open_websocket(f"ws://127.0.0.1:{port}/") as websocket:
            await websocket.close(4002, "bye")
        assert websocket.close_code == 4002
    assert codes == [4002]


async def test_a_client_that_vanishes_ends_the_conversation() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def wait(websocket: WebSocket) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    limits = HttpLimits(drain_timeout=0.1)
    async with serve(lambda request: accept(request, wait), limits=limits) as port, asyncio.timeout(TIMEOUT_SECONDS):
        async with connect(port) as client:
            await shake_hands(client)
            await started.wait()
        await ended.wait()


async def test_a_handler_that_fails_closes_with_1011(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(websocket: WebSocket) -> None:
        raise RuntimeError("secret")

    async with (
        serve(lambda request: accept(request, fail)) as port,
        open_websocket(f"ws://127.0.0.1:{port}/") as client,
    ):
        with pytest.raises(websockets.ConnectionClosedError) as caught:
            await asyncio.wait_for(client.recv(), TIMEOUT_SECONDS)
    assert caught.value.rcvd is not None
    assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1011, "the server failed")
    assert len(caplog.records) == 1


async def test_a_sender_waits_for_a_client_that_does_not_read() -> None:
    sent = 0

    async def flood(websocket: WebSocket) -> None:
        nonlocal sent
        for _ in range(100):
            await websocket.send(bytes(LIMIT))
            sent += 1

    async with serve(lambda request: accept(request, flood)) as port, connect(port) as client:
        await shake_hands(client)
        await until_still(lambda: sent)
        assert sent < 30
        for _ in range(100):
            await client.reader.readexactly(10 + LIMIT)
        assert sent >= 99


BROKEN = {
    "not masked": (b"\x81\x01a", 1002),
    "a reserved bit": (frame(0xC1, b"a"), 1002),
    "an unknown opcode": (frame(0x83, b""), 1002),
    "an unknown control opcode": (frame(0x8B, b""), 1002),
    "a fragmented ping": (frame(0x09, b""), 1002),
    "a fragmented close": (frame(0x08, b""), 1002),
    "a long close": (frame(0x88, b"\x03\xe8" + bytes(124)), 1002),
    "a long ping": (frame(0x89, bytes(126)), 1002),
    "a continuation of nothing": (frame(0x80, b"a"), 1002),
    "a message inside a message": (frame(0x01, b"a") + frame(0x81, b"b"), 1002),
    "a close code of one byte": (frame(0x88, b"\x03"), 1002),
    "a close code that is not for the wire": (frame(0x88, b"\x03\xed"), 1002),
    "an unassigned close code": (frame(0x88, b"\x07\xd0"), 1002),
    "a close reason that is not UTF-8": (frame(0x88, b"\x03\xe8\xff"), 1007),
    "text that is not UTF-8": (frame(0x81, b"\xff"), 1007),
    "text that ends in the middle": (frame(0x01, b"\xc3") + frame(0x80, b""), 1007),
    "a message that is too large": (frame(0x82, bytes(LIMIT + 1))[:20], 1009),
    "fragments that are too large": (frame(0x02, bytes(LIMIT)) + frame(0x80, b"x"), 1009),
    "a length of 63 bits": (b"\x82\xff" + b"\x7f" + b"\xff" * 7 + MASK, 1009),
    "a length of 64 bits": (b"\x82\xff" + b"\xff" * 8 + MASK, 1009),
}


@pytest.mark.parametrize(("data", "code"), BROKEN.values(), ids=BROKEN.keys())
async def test_what_breaks_the_protocol_closes_with_its_code(data: bytes, code: int) -> None:
    async with serve(handler) as port, connect(port) as client:
        await shake_hands(client)
        client.send(frame(0x81, b"before") + data)
        assert await client.reader.readexactly(8) == b"\x81\x06before"
        rest = await client.rest()
        assert rest[0] == 0x88
        assert int.from_bytes(rest[2:4], "big") == code


HANDSHAKES: dict[str, Callable[[bytes], bytes]] = {
    "without an upgrade": lambda head: head.replace(b"Upgrade: websocket\r\n", b""),
    "to something else": lambda head: head.replace(b"Upgrade: websocket", b"Upgrade: h2c"),
    "of another version": lambda head: head.replace(b": 13", b": 12"),
    "without a key": lambda head: head.replace(b"Sec-WebSocket-Key", b"X"),
    "with a short key": lambda head: head.replace(b"dGhlIHNhbXBsZSBub25jZQ==", b"dGhl"),
    "with a key that is not base64": lambda head: head.replace(b"dGhlIHNhbXBsZSBub25jZQ==", b"\xff*"),
    "by POST": lambda head: head.replace(b"GET", b"POST"),
}


@pytest.mark.parametrize("change", HANDSHAKES.values(), ids=HANDSHAKES.keys())
async def test_a_handshake_that_is_none_is_refused(change: Callable[[bytes], bytes]) -> None:
    head = (
        b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    async with serve(handler) as port, connect(port) as client:
        client.send(change(head))
        assert (await client.reply()).status == 400


# Frames without input or output


EVENTS = st.one_of(st.text(max_size=300), st.binary(max_size=300), st.binary(max_size=125).map(Ping))


def encode(event: Event, mask: bytes) -> bytes:
    match event:
        case str():
            return frame(0x80 | Opcode.TEXT, event.encode(), mask=mask)
        case bytes():
            return frame(0x80 | Opcode.BINARY, event, mask=mask)
        case Ping(data):
            return frame(0x80 | Opcode.PING, data, mask=mask)
        case _:
            raise AssertionError


@given(
    events=st.lists(st.tuples(EVENTS, st.binary(min_size=4, max_size=4))),
    cuts=st.lists(st.integers(0, 3000), max_size=20),
)
def test_the_pieces_in_which_frames_come_make_no_difference(events: list[tuple[Event, bytes]], cuts: list[int]) -> None:
    data = b"".join(encode(event, mask) for event, mask in events) + frame(0x88, b"\x03\xe8bye")
    ends = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    reader = FrameReader(LIMIT)
    found = [event for start, end in pairwise(ends) for event in reader.feed(data[start:end])]
    assert found == [*(event for event, _ in events), Closed(1000, "bye")]


@given(data=st.lists(st.binary(max_size=50), max_size=10))
def test_any_bytes_are_messages_or_an_error(data: list[bytes]) -> None:
    reader = FrameReader(100)
    for piece in data:
        events = reader.feed(piece)
        if events and isinstance(events[-1], (Closed, WebSocketError)):
            break


@given(data=st.binary(max_size=1000), mask=st.binary(min_size=4, max_size=4))
def test_a_mask_is_applied_byte_by_byte(data: bytes, mask: bytes) -> None:
    assert unmask(mask, data) == bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))


@pytest.mark.parametrize("length", [4095, 4096, 4097, 4099])
@pytest.mark.parametrize("mask", [b"\x00\x01\xfe\xff", b"\xff\x80\x7f\x00"])
def test_a_mask_is_applied_to_long_data_as_to_short(mask: bytes, length: int) -> None:
    data = bytes(at * 7 % 256 for at in range(length))
    assert unmask(mask, data) == bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))


@pytest.mark.parametrize("length", [0, 125, 126, 65535, 65536])
def test_a_frame_of_ours_says_its_length(length: int) -> None:
    made = make_frame(Opcode.BINARY, bytes(length))
    assert len(made) == length + (2 if length < 126 else 4 if length < 65536 else 10)


@pytest.mark.parametrize("length", [0, 1, 125, 126, 65535, 65536])
def test_either_side_reads_what_the_other_makes_and_not_what_its_own_does(length: int) -> None:
    data = bytes(at % 251 for at in range(length))
    unmasked, masked = make_frame(Opcode.BINARY, data), make_masked_frame(Opcode.BINARY, data, MASK)
    assert FrameReader(LIMIT, is_masked=False).feed(unmasked + unmasked) == [data, data]
    assert FrameReader(LIMIT).feed(masked + masked) == [data, data]
    for reader, frames in ((FrameReader(LIMIT, is_masked=False), masked), (FrameReader(LIMIT), unmasked)):
        assert [error_code(event) for event in reader.feed(frames)] == [1002]


def error_code(event: Event) -> int | None:
    return event.code if isinstance(event, WebSocketError) else None


@pytest.mark.parametrize(("data", "code"), BROKEN.values(), ids=BROKEN.keys())
def test_a_reader_tells_what_breaks_the_protocol(data: bytes, code: int) -> None:
    assert error_code(FrameReader(LIMIT).feed(data)[-1]) == code


@pytest.mark.parametrize("limit", [0, 1, 125, 126, 70_000])
def test_a_message_is_as_long_as_the_limit_and_no_longer(limit: int) -> None:
    whole = bytes(limit)
    assert FrameReader(limit).feed(frame(0x82, whole)) == [whole]
    assert FrameReader(limit).feed(frame(0x02, whole) + frame(0x80, b"")) == [whole]
    assert [error_code(event) for event in FrameReader(limit).feed(frame(0x82, whole + b"x"))] == [1009]
    assert [error_code(event) for event in FrameReader(limit).feed(frame(0x02, whole) + frame(0x80, b"x"))] == [1009]


def test_after_a_fragmented_message_the_next_has_the_whole_limit_and_no_more() -> None:
    fragments = frame(0x01, b"ab") + frame(0x89, b"x" * 125) + frame(0x00, b"") + frame(0x80, b"cd")
    expected = [Ping(b"x" * 125), "abcd"]
    assert FrameReader(4).feed(fragments * 2 + frame(0x82, b"1234")) == [*expected, *expected, b"1234"]
    assert error_code(FrameReader(4).feed(fragments + frame(0x82, b"12345"))[-1]) == 1009


def test_frames_may_come_byte_by_byte() -> None:
    data = frame(0x81, b"a" * 126) + frame(0x01, b"b") + frame(0x80, b"c") + frame(0x89, b"") + frame(0x82, b"")
    reader = FrameReader(LIMIT)
    found = [event for at in range(len(data)) for event in reader.feed(data[at : at + 1])]
    assert found == ["a" * 126, "bc", Ping(b""), b""]


def test_nothing_is_read_after_a_close() -> None:
    for late in (frame(0x81, b"late"), frame(0x88, b""), b"\xff\xff"):
        assert FrameReader(LIMIT).feed(frame(0x88, b"\x03\xe8") + late) == [Closed(1000, "")]


@pytest.mark.parametrize(("control", "event"), [(0x89, Ping(b"\x03\xe8")), (0x88, Closed(1000, ""))])
def test_the_limit_of_messages_is_none_of_control_frames(control: int, event: Event) -> None:
    assert FrameReader(1).feed(frame(0x02, b"a") + frame(control, b"\x03\xe8")) == [event]


def test_a_pong_is_dropped() -> None:
    assert FrameReader(LIMIT).feed(frame(0x8A, b"x") + frame(0x81, b"a")) == ["a"]


@pytest.mark.parametrize("code", [1000, 1003, 1007, 1011, 1014, 3000, 4999])
def test_a_close_code_for_the_wire_is_read(code: int) -> None:
    assert FrameReader(LIMIT).feed(frame(0x88, code.to_bytes(2, "big") + b"bye")) == [Closed(code, "bye")]
    assert FrameReader(LIMIT).feed(frame(0x88, code.to_bytes(2, "big"))) == [Closed(code, "")]


@pytest.mark.parametrize("code", [0, 3, 999, 1004, 1005, 1006, 1015, 2999, 5000, 65535])
def test_a_close_code_that_is_not_for_the_wire_is_refused(code: int) -> None:
    assert [error_code(event) for event in FrameReader(LIMIT).feed(frame(0x88, code.to_bytes(2, "big")))] == [1002]


def test_a_close_frame_has_125_bytes_at_most_and_no_half_character() -> None:
    assert make_close(1000, "x" * 200) == b"\x88\x7d\x03\xe8" + b"x" * 123
    assert make_close(1000, "x" * 122 + "ü") == b"\x88\x7c\x03\xe8" + b"x" * 122
    assert make_close(1005, "not sent") == b"\x88\x00"
    assert FrameReader(LIMIT).feed(frame(0x88, b"")) == [Closed(1005, "")]
