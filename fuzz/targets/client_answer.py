"""HTTP answers of a server as the client reads them: the same in any pieces, and never waited for after an end."""

import asyncio
import logging
from collections.abc import Iterable, Iterator

from cove.client.http_connection import Broken, HttpConnection
from fuzz.loop import complete
from fuzz.splitting import cut

_MOST = 1 << 20


class _Carrier(asyncio.Transport):
    """A transport that takes all."""

    is_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take it."""

    def is_closing(self) -> bool:
        """Return whether it was ended."""
        return self.is_aborted

    def abort(self) -> None:
        """End."""
        self.is_aborted = True

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Know nothing."""
        return default


class _Pool:
    """An owner that forgets at once."""

    def forget(self, connection: HttpConnection) -> None:
        """It has."""


async def _hear(pieces: Iterable[bytes]) -> tuple[int, bytes | None]:
    """Return the status and the body; None for one that never came whole."""
    connection, carrier = HttpConnection(_Pool()), _Carrier()
    connection.connection_made(carrier)
    connection.send(b"GET / HTTP/1.1\r\n\r\n")
    for piece in pieces:
        if carrier.is_aborted:
            break
        connection.data_received(piece)
    connection.connection_lost(None)
    assert not connection.is_reusable or connection.is_complete, "an answer that has not ended can follow"
    try:
        async with asyncio.timeout(1):
            status = await connection.begun()
            return status, await connection.read(_MOST)
    except Broken:
        return connection.status, None


def check(data: bytes) -> None:
    """Hear one answer in one piece, and in many."""
    logging.getLogger("cove.client").disabled = True
    whole = complete(_hear([data]))
    assert whole == complete(_hear(cut(data)))
    assert whole[0] == 0 or 200 <= whole[0] < 1000


def seeds() -> Iterator[bytes]:
    """Answers of every form."""
    yield b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
    yield b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\ncove-trailer: 1\r\n\r\n"
    yield b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"
    yield b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\nxx"
    yield b"HTTP/1.1 503 Busy\r\ncove-unreachable: b\r\ncove-unreachable: c\r\nconnection: close\r\n\r\nrest"
    yield b"HTTP/1.0 404 Gone\r\n\r\nuntil the end"
