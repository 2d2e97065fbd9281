"""A transport on a socket whose other holder is hostile: no call on it waits."""

import asyncio
import os
import socket
from collections.abc import Iterator

import pytest

from cove.linux.shared_socket import SharedSocketTransport

pytestmark = pytest.mark.anyio

_MUCH = bytes(64 << 20)


class Recorder(asyncio.Protocol):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.told: list[str] = []
        self.changed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.changed.set()

    def eof_received(self) -> bool:
        self._tell("eof")
        return True

    def pause_writing(self) -> None:
        self._tell("full")

    def resume_writing(self) -> None:
        self._tell("ready")

    def connection_lost(self, error: Exception | None) -> None:
        self._tell(f"lost: {type(error).__name__}")

    def _tell(self, what: str) -> None:
        self.told.append(what)
        self.changed.set()

    async def until(self, what: str) -> None:
        while what not in self.told:
            self.changed.clear()
            await self.changed.wait()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection; the second does not wait."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


async def read_all(sock: socket.socket) -> int:
    count = 0
    while data := await asyncio.get_running_loop().sock_recv(sock, 1 << 20):
        count += len(data)
    return count


@pytest.mark.parametrize("is_blocking", [False, True])
async def test_neither_writing_nor_reading_waits_when_the_other_holder_makes_the_socket_blocking(
    pair: tuple[socket.socket, socket.socket], is_blocking: bool
) -> None:
    ours, theirs = pair
    copy = os.dup(ours.fileno())
    protocol = Recorder()
    transport = SharedSocketTransport(ours, protocol)
    os.set_blocking(copy, is_blocking)
    try:
        transport.write(_MUCH)
        assert protocol.told == ["full"]
        reading = asyncio.ensure_future(read_all(theirs))
        await protocol.until("ready")
        transport.write_eof()
        assert await reading == len(_MUCH)
        transport._on_readable()  # as after a wakeup for bytes that the other holder took first
        await asyncio.get_running_loop().sock_sendall(theirs, b"answer")
        theirs.shutdown(socket.SHUT_WR)
        await protocol.until("eof")
        assert protocol.data == b"answer"
    finally:
        os.close(copy)
        transport.close()
        await protocol.until("lost: NoneType")


async def test_closing_waits_for_nobody_who_was_told_to_linger(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    protocol = Recorder()
    transport = SharedSocketTransport(ours, protocol)
    transport.write(_MUCH)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, (1).to_bytes(4, "little") + (600).to_bytes(4, "little"))
    transport.abort()
    await protocol.until("lost: NoneType")
    assert ours.fileno() == -1


async def test_what_was_written_before_closing_arrives(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    protocol = Recorder()
    transport = SharedSocketTransport(ours, protocol)
    transport.write(_MUCH)
    transport.close()
    transport.write(b"nobody sees this")
    assert transport.is_closing()
    assert await read_all(theirs) == len(_MUCH)
    await protocol.until("lost: NoneType")


async def test_a_reset_is_told_with_its_reason(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    protocol = Recorder()
    SharedSocketTransport(ours, protocol).write(b"unread")
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, (1).to_bytes(4, "little") + bytes(4))
    theirs.close()
    await protocol.until("lost: ConnectionResetError")


async def test_nothing_comes_while_reading_is_paused(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    protocol = Recorder()
    transport = SharedSocketTransport(ours, protocol)
    transport.pause_reading()
    await asyncio.get_running_loop().sock_sendall(theirs, b"early")
    for _ in range(10):
        await asyncio.sleep(0)
    assert not protocol.data
    assert not transport.is_reading()
    transport.resume_reading()
    while protocol.data != b"early":
        await protocol.changed.wait()
    transport.abort()
    await protocol.until("lost: NoneType")
