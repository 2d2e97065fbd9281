"""Tunnel a client's upgraded connection to a port inside."""

from cove.api import TcpConnection
from cove.errors import ValidationFailed
from cove.http import Request, Stream, Upgrade
from cove.local.tcp_stream import TcpStream, splice
from cove.wire.upgrade import PROTOCOL

_SWITCH = ((b"connection", b"upgrade"), (b"upgrade", PROTOCOL))


async def port_socket(request: Request, inside: TcpStream) -> Upgrade:
    """The answer, once the port is reached."""
    if not request.is_upgrade or request.headers.get(b"upgrade", b"").lower() != PROTOCOL:
        raise ValidationFailed("a port is reached by `Connection: Upgrade` and `Upgrade: tcp`")

    async def run(stream: Stream) -> None:
        try:
            await splice(_Client(stream), inside)
        finally:
            await inside.close()

    await inside.open()
    return Upgrade(_SWITCH, run, release=inside.abort, outlives_eof=True)


class _Client(TcpConnection):
    """The client's raw connection; whoever runs the upgrade opens and closes it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def open(self) -> None:
        """Do nothing: it is open."""

    async def read(self, most: int = 65536) -> bytes:
        """Return all that has come: it is only passed on."""
        return await self._stream.read()

    async def write(self, data: bytes) -> None:
        self._stream.write(data)
        await self._stream.drain()

    async def write_eof(self) -> None:
        self._stream.write_eof()

    async def close(self) -> None:
        """Do nothing: the server closes it."""
