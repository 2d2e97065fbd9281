"""The cases of the Autobahn test suite, by their numbers there, against a real server that echoes.

Left out: 6.x beyond one case per kind of UTF-8 error, 9.x (throughput), 12.x and 13.x (compression, never agreed on).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.raw_http import TIMEOUT_SECONDS, Client, connect, serve

from cove.http import Answer, Request
from cove.http.websocket import WebSocket, accept
from cove.http.websocket_frames import unmask

pytestmark = [pytest.mark.anyio, pytest.mark.pure]

TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG = 1, 2, 0, 8, 9, 10
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
MASK = b"\x12\x34\x56\x78"


def frame(opcode: int, data: bytes = b"", *, final: bool = True, reserved: int = 0) -> bytes:
    length = len(data)
    head = bytes([final << 7 | reserved << 4 | opcode])
    if length < 126:
        head += bytes([0x80 | length])
    elif length < 1 << 16:
        head += bytes([0x80 | 126]) + length.to_bytes(2, "big")
    else:
        head += bytes([0x80 | 127]) + length.to_bytes(8, "big")
    return head + MASK + unmask(MASK, data)


def closing(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, code.to_bytes(2, "big") + reason)


class Peer:
    """A client that reads whole frames."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def receive(self) -> tuple[int, bytes]:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            first, length = await self.client.reader.readexactly(2)
            assert first & 0xF0 == 0x80, "a server's frames here are whole, without extensions"
            assert not length & 0x80, "a server masks nothing"
            if length >= 126:
                length = int.from_bytes(await self.client.reader.readexactly(2 if length == 126 else 8), "big")
            return first & 0x0F, await self.client.reader.readexactly(length)

    async def is_closed_with(self, code: int) -> bool:
        """Whether the server says this code and then ends the connection."""
        opcode, data = await self.receive()
        assert opcode == CLOSE
        return int.from_bytes(data[:2], "big") == code and await self.client.rest() == b""


async def echo(websocket: WebSocket) -> None:
    while (message := await websocket.receive()) is not None:
        await websocket.send(message)


def answer(request: Request) -> Answer:
    return accept(request, echo, limit=1 << 20)


@asynccontextmanager
async def peer() -> AsyncIterator[Peer]:
    async with serve(answer) as port, connect(port) as client:
        client.send(
            b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n" % KEY.encode()
        )
        reply = await client.reply()
        assert reply.status == 101
        assert reply.headers["sec-websocket-accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        yield Peer(client)


@pytest.mark.parametrize("opcode", [TEXT, BINARY], ids=["1.1", "1.2"])
@pytest.mark.parametrize("length", [0, 1, 125, 126, 127, 128, 65535, 65536, 1 << 20])
@pytest.mark.parametrize("piece", [None, 997], ids=["whole", "chopped"])
async def test_a_message_of_any_length_comes_back(opcode: int, length: int, piece: int | None) -> None:
    data = (b"*" if opcode == TEXT else b"\xfe") * length
    async with peer() as one:
        sent = frame(opcode, data)
        for at in range(0, len(sent), piece or len(sent)):
            one.client.send(sent[at : at + (piece or len(sent))])
        assert await one.receive() == (opcode, data)


PINGS = {
    "2.1 empty": b"",
    "2.2 text": b"Hello, world!",
    "2.3 binary": b"\x00\xff\xfe\xfd\xfc\xfb\x00\xff",
    "2.4 the most": b"\xfe" * 125,
}


@pytest.mark.parametrize("data", PINGS.values(), ids=PINGS.keys())
async def test_a_ping_is_answered_with_its_data(data: bytes) -> None:
    async with peer() as one:
        one.client.send(frame(PING, data))
        assert await one.receive() == (PONG, data)


async def test_2_6_a_ping_in_single_octets_is_answered() -> None:
    async with peer() as one:
        for octet in frame(PING, b"x" * 125):
            one.client.send(bytes([octet]))
        assert await one.receive() == (PONG, b"x" * 125)


async def test_2_7_to_2_9_an_unsolicited_pong_is_ignored() -> None:
    async with peer() as one:
        one.client.send(frame(PONG) + frame(PONG, b"unsolicited") + frame(PING, b"then"))
        assert await one.receive() == (PONG, b"then")


async def test_2_10_ten_pings_get_ten_pongs_in_order() -> None:
    async with peer() as one:
        one.client.send(b"".join(frame(PING, b"%d" % number) for number in range(10)))
        assert [await one.receive() for _ in range(10)] == [(PONG, b"%d" % number) for number in range(10)]


VIOLATIONS = {
    "2.5 a ping of 126 bytes": frame(PING, b"x" * 126),
    **{f"3.{bits} reserved bits {bits}": frame(TEXT, b"x", reserved=bits) for bits in range(1, 8)},
    **{f"4.1 opcode {opcode}": frame(opcode, b"x") for opcode in range(3, 8)},
    **{f"4.2 opcode {opcode}": frame(opcode, b"x") for opcode in range(11, 16)},
    "5.1 a ping in fragments": frame(PING, b"a", final=False) + frame(CONTINUATION, b"b"),
    "5.2 a pong in fragments": frame(PONG, b"a", final=False) + frame(CONTINUATION, b"b"),
    "5.9 a continuation of nothing": frame(CONTINUATION, b"x") + frame(TEXT, b"y"),
    "5.12 an unfinished continuation of nothing": frame(CONTINUATION, b"x", final=False) + frame(TEXT, b"y"),
    "5.18 a text within a text": frame(TEXT, b"a", final=False) + frame(TEXT, b"b"),
    "7.3.2 a close of one byte": frame(CLOSE, b"a"),
    "7.3.6 a close of 126 bytes": closing(1000, b"*" * 124),
    "unmasked": b"\x81\x01x",
}


@pytest.mark.parametrize("data", VIOLATIONS.values(), ids=VIOLATIONS.keys())
async def test_a_violation_is_answered_with_1002_and_the_end(data: bytes) -> None:
    async with peer() as one:
        one.client.send(data)
        assert await one.is_closed_with(1002)


async def test_what_came_before_a_violation_is_answered() -> None:
    async with peer() as one:
        one.client.send(frame(TEXT, b"before") + frame(TEXT, b"x", reserved=4))
        assert await one.receive() == (TEXT, b"before")
        assert await one.is_closed_with(1002)


FRAGMENTS = {
    "5.3 two": [frame(TEXT, b"fragment1", final=False), frame(CONTINUATION, b"fragment2")],
    "5.6 a ping between them": [
        frame(TEXT, b"fragment1", final=False),
        frame(PING, b"between"),
        frame(CONTINUATION, b"fragment2"),
    ],
    "6.1.2 empty ones around": [
        frame(TEXT, b"", final=False),
        frame(CONTINUATION, b"fragment1fragment2", final=False),
        frame(CONTINUATION, b""),
    ],
    "5.19 many, with pings": [
        frame(TEXT, b"frag", final=False),
        frame(CONTINUATION, b"ment1", final=False),
        frame(PING, b"between"),
        frame(CONTINUATION, b"frag", final=False),
        frame(CONTINUATION, b"ment2"),
    ],
}


@pytest.mark.parametrize("at_once", [True, False], ids=["in one write", "one by one"])
@pytest.mark.parametrize("frames", FRAGMENTS.values(), ids=FRAGMENTS.keys())
async def test_fragments_make_one_message(frames: list[bytes], at_once: bool) -> None:
    async with peer() as one:
        for data in [b"".join(frames)] if at_once else frames:
            one.client.send(data)
        if len(frames) != 2 and any(data[0] & 0x0F == PING for data in frames):
            assert await one.receive() == (PONG, b"between")
        assert await one.receive() == (TEXT, b"fragment1fragment2")


UTF_8 = {
    "6.2 split within a character": ([frame(TEXT, b"\xce", final=False), frame(CONTINUATION, b"\xba")], "κ"),
    "6.2 greek": ([frame(TEXT, "Hello-µ@ßöäüàá-UTF-8!!".encode())], "Hello-µ@ßöäüàá-UTF-8!!"),
    "6.9 the last code point": ([frame(TEXT, b"\xf4\x8f\xbf\xbf")], "\U0010ffff"),
}


@pytest.mark.parametrize(("frames", "text"), UTF_8.values(), ids=UTF_8.keys())
async def test_text_is_utf_8(frames: list[bytes], text: str) -> None:
    async with peer() as one:
        one.client.send(b"".join(frames))
        assert await one.receive() == (TEXT, text.encode())


NOT_UTF_8 = {
    "6.3 a surrogate": b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited",
    "6.6 cut off": b"\xce",
    "6.8 five bytes": b"\xf8\x88\x80\x80\x80",
    "6.10 beyond the last code point": b"\xf4\x90\x80\x80",
    "6.12 lonely continuation": b"\x80",
    "6.14 lonely start": b"\xc0 ",
    "6.18 overlong": b"\xc0\xaf",
    "6.21 fffe is fine, a surrogate pair is not": b"\xed\xa0\x80\xed\xb0\x80",
}


@pytest.mark.parametrize("data", NOT_UTF_8.values(), ids=NOT_UTF_8.keys())
@pytest.mark.parametrize("is_split", [False, True])
async def test_text_that_is_no_utf_8_is_answered_with_1007(data: bytes, is_split: bool) -> None:
    async with peer() as one:
        frames = frame(TEXT, data[:1], final=False) + frame(CONTINUATION, data[1:]) if is_split else frame(TEXT, data)
        one.client.send(frames)
        assert await one.is_closed_with(1007)


async def test_7_5_a_close_reason_that_is_no_utf_8_is_answered_with_1007() -> None:
    async with peer() as one:
        one.client.send(closing(1000, b"\xed\xa0\x80"))
        assert await one.is_closed_with(1007)


@pytest.mark.parametrize("code", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999])
async def test_7_7_a_valid_close_code_comes_back(code: int) -> None:
    async with peer() as one:
        one.client.send(closing(code, b"bye"))
        assert await one.is_closed_with(code)


@pytest.mark.parametrize("code", [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535])
async def test_7_9_an_invalid_close_code_is_answered_with_1002(code: int) -> None:
    async with peer() as one:
        one.client.send(closing(code))
        assert await one.is_closed_with(1002)


async def test_7_3_1_a_close_without_a_code_is_answered_without_one() -> None:
    async with peer() as one:
        one.client.send(frame(CLOSE))
        assert await one.receive() == (CLOSE, b"")
        assert await one.client.rest() == b""


@pytest.mark.parametrize("late", [frame(TEXT, b"late"), frame(PING), closing(1000), b"\xff\xff"], ids=range(4))
async def test_7_1_nothing_that_comes_after_a_close_is_answered(late: bytes) -> None:
    async with peer() as one:
        one.client.send(closing(1000) + late)
        assert await one.is_closed_with(1000)


async def test_9_a_message_that_is_too_large_is_answered_with_1009() -> None:
    async with peer() as one:
        one.client.send(frame(BINARY, bytes((1 << 20) + 1)))
        assert await one.is_closed_with(1009)


async def test_9_fragments_that_are_too_large_together_are_answered_with_1009() -> None:
    async with peer() as one:
        one.client.send(frame(BINARY, bytes(1 << 19), final=False) + frame(CONTINUATION, bytes((1 << 19) + 1)))
        assert await one.is_closed_with(1009)


HANDSHAKES = {
    "no key": b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
    "a short key": b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: aGk=\r\n",
    "no version": b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: %b\r\n" % KEY.encode(),
    "another version": b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 8\r\n"
    b"Sec-WebSocket-Key: %b\r\n" % KEY.encode(),
    "no upgrade": b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n" % KEY.encode(),
}


@pytest.mark.parametrize("headers", HANDSHAKES.values(), ids=HANDSHAKES.keys())
async def test_what_is_no_handshake_is_refused(headers: bytes) -> None:
    async with serve(answer) as port, connect(port) as client:
        client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n%b\r\n" % headers)
        assert (await client.reply()).status == 400
