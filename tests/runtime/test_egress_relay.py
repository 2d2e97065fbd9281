"""Bytes between two sockets: whole both ways, halves that end, slow sides, breaks, limits, cancellation."""

import asyncio
import socket
import struct
from collections.abc import Coroutine
from typing import NamedTuple

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from support.event_loops import until_still

from cove.egress import relay as module
from cove.egress.relay import LimitReached, relay

pytestmark = pytest.mark.pure
SECONDS = 60.0


@pytest.fixture(scope="module", autouse=True)
def pipe_of_libuv() -> None:
    """Its first loop makes a pipe for signals, which stays as long as the process."""
    uvloop.run(asyncio.sleep(0))


class Ends(NamedTuple):
    """A program, the relay's two sockets, and a host."""

    program: socket.socket
    inside: socket.socket
    outside: socket.socket
    host: socket.socket

    def relaying(self, most: int = 1 << 60) -> Coroutine[object, object, None]:
        left = [most]

        def count(size: int) -> None:
            left[0] -= size
            if left[0] < 0:
                raise LimitReached("enough")

        return relay(self.inside, self.outside, count, count)

    def close(self) -> None:
        for sock in self:
            sock.close()


def connected() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection: unlike a pair of unix sockets it can be broken."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    one.setblocking(False)
    other.setblocking(False)
    return one, other


def run(test: Coroutine[object, object, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(SECONDS):
            await test

    uvloop.run(bounded())


async def send(sock: socket.socket, chunks: list[bytes]) -> None:
    for chunk in chunks:
        await asyncio.get_running_loop().sock_sendall(sock, chunk)
    sock.shutdown(socket.SHUT_WR)


async def read(sock: socket.socket, size: int = 65536) -> bytes:
    data = b""
    while more := await asyncio.get_running_loop().sock_recv(sock, size):
        data += more
        await asyncio.sleep(0)
    return data


CHUNKS = st.lists(st.binary(min_size=1, max_size=200) | st.just(b"x" * 40_000), max_size=8)


@settings(max_examples=25, deadline=None)
@given(CHUNKS, CHUNKS, st.sampled_from([1000, 65536]))
def test_bytes_pass_both_ways_whole_and_each_side_ends_by_itself(
    there: list[bytes], back: list[bytes], size: int
) -> None:
    async def test() -> None:
        ends = Ends(*connected(), *connected())
        passing = asyncio.ensure_future(ends.relaying())
        try:
            got = await asyncio.gather(
                read(ends.host, size), read(ends.program, size), send(ends.program, there), send(ends.host, back)
            )
            await passing
        finally:
            ends.close()
        assert (got[0], got[1]) == (b"".join(there), b"".join(back))

    run(test())


def test_what_a_slow_host_does_not_take_waits_and_nothing_more_is_read() -> None:
    async def test() -> None:
        ends = Ends(*connected(), *connected())
        sizes: list[int] = []
        passing = asyncio.ensure_future(relay(ends.inside, ends.outside, sizes.append, sizes.append))
        sending = asyncio.ensure_future(send(ends.program, [b"%020d" % n * 50 for n in range(20_000)]))
        while not sizes:
            await asyncio.sleep(0)
        await until_still(lambda: len(sizes))
        assert not sending.done()
        got = await read(ends.host, 1 << 20)
        ends.host.close()
        await sending
        await passing
        ends.close()
        assert got == b"".join(b"%020d" % n * 50 for n in range(20_000))

    run(test())


@pytest.mark.parametrize("side", ["program", "host"])
def test_a_side_that_breaks_ends_both(side: str) -> None:
    async def test() -> None:
        ends = Ends(*connected(), *connected())
        passing = asyncio.ensure_future(ends.relaying())
        await asyncio.sleep(0)
        broken = getattr(ends, side)
        broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        broken.close()
        await passing
        ends.close()

    run(test())


def test_a_limit_ends_it_with_its_reason() -> None:
    async def test() -> None:
        ends = Ends(*connected(), *connected())
        sending = asyncio.ensure_future(send(ends.program, [b"x" * 1000]))
        with pytest.raises(LimitReached, match="enough"):
            await ends.relaying(most=999)
        await sending
        ends.close()

    run(test())


def test_a_cancelled_one_holds_no_socket_and_no_memory() -> None:
    async def test() -> None:
        ends = Ends(*connected(), *connected())
        before = module._large._left
        passing = asyncio.ensure_future(ends.relaying())
        sending = asyncio.ensure_future(send(ends.program, [b"x" * (64 << 20)]))
        while module._large._left == before:
            await asyncio.sleep(0.001)
        passing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await passing
        loop = asyncio.get_running_loop()
        assert not [loop.remove_reader(sock) for sock in ends[1:3] if loop.remove_reader(sock)]
        assert not [loop.remove_writer(sock) for sock in ends[1:3] if loop.remove_writer(sock)]
        assert module._large._left == before
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        ends.close()

    run(test())
