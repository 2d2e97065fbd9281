"""Connect to a port inside the sandbox: the agent connects in its network namespace and passes the socket out."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

from cove.errors import ServiceNotResponding
from cove.linux.descriptors import Kind
from cove.linux.shared_socket import SharedSocketTransport
from cove.local.tcp_stream import Streams, TcpStream
from cove.runtime.link import Link

Connect = Callable[[int], Awaitable[socket.socket]]

_LOOPBACKS = (b"127.0.0.1", b"::1")


class PortConnection(TcpStream):
    """A connection to a port inside: for this process, or lent to another one that passes its bytes itself."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[socket.socket]],
        *,
        on_open: Callable[["PortConnection"], None],
        on_close: Callable[["PortConnection"], None],
    ) -> None:
        super().__init__(self._connect_streams, on_open=lambda _: on_open(self), on_close=lambda _: on_close(self))
        self._connect_socket = connect
        self._lent: socket.socket | None = None
        self.is_over = False
        self.on_end: Callable[[], None] = lambda: None

    async def _connect_streams(self) -> Streams:
        return open_streams(await self._connect_socket())

    async def lend(self) -> socket.socket:
        """Connect for another process, which gets a copy of the socket. `abort` ends it for both, and calls `on_end`.

        This copy is kept until then: the last to close a socket from inside may have to wait, and that is this process.
        """
        self._lent = await self._connect_socket()
        self._on_open(self)
        return self._lent

    def abort(self) -> None:
        super().abort()
        if self._lent is not None and not self.is_over:
            self.is_over = True
            with suppress(OSError):  # the service has ended it
                self._lent.shutdown(socket.SHUT_RDWR)
            self._lent.close()
            self._on_close(self)
            self.on_end()


def open_streams(sock: socket.socket) -> Streams:
    """Read and write a socket that came from inside."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport = SharedSocketTransport(sock, protocol)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def connect_inside(link: Link, port: int) -> socket.socket:
    """Connect to whatever listens on that port, IPv4 first; raises ServiceNotResponding when nothing does."""
    failure: ServiceNotResponding | None = None
    for host in _LOOPBACKS:
        try:
            descriptor = await link.request_descriptor(
                Kind.STREAM, b"connect", host, b"%d" % port, subject=f"port {port} inside the sandbox"
            )
        except ServiceNotResponding as error:
            failure = failure or error
            continue
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=descriptor)
    assert failure is not None
    raise failure
