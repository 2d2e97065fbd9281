"""Connect to a port inside the sandbox: the agent connects in its network namespace and passes the socket out."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

from cove.errors import ServiceNotResponding
from cove.linux.descriptors import Kind
from cove.local.tcp_stream import Streams
from cove.runtime.link import Link

Connect = Callable[[int], Awaitable[Streams]]

_LOOPBACKS = (b"127.0.0.1", b"::1")


async def connect_inside(link: Link, port: int) -> Streams:
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
        sock = socket.socket(fileno=descriptor)
        try:
            return await asyncio.open_connection(sock=sock)
        except BaseException:
            sock.close()
            raise
    assert failure is not None
    raise failure
