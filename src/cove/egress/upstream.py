"""A connection to a host outside that carries one intercepted request after the other."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

from cove.http.endpoint import Endpoint

_HANDSHAKE_SECONDS = 15.0


class UpstreamUser(Protocol):
    """Takes what comes from outside, without waiting."""

    def upstream_data(self, data: bytes) -> None:
        """The host sent this."""

    def upstream_lost(self, is_whole: bool) -> None:
        """Take the end of the connection: an orderly one, or a break. Called once for one that was in use."""

    def upstream_full(self) -> None:
        """Send less: the host does not take what is written."""

    def upstream_ready(self) -> None:
        """Send again: the host takes more."""


class Upstream(Endpoint):
    """`user` is the request that it is used for; None between two."""

    def __init__(self, count_sent: Callable[[int], None], count_received: Callable[[int], None]) -> None:
        self.user: UpstreamUser | None = None
        self.is_lost = False
        self.has_been_used = False
        self._count_sent = count_sent
        self._count_received = count_received

    def write(self, data: bytes) -> None:
        """Send, and count it."""
        self._count_sent(len(data))
        super().write(data)

    def data_received(self, data: bytes) -> None:
        """Count it and hand it on; what comes when nothing was asked for ends the connection."""
        self._count_received(len(data))
        if self.user is None:
            self.abort()
        else:
            self.user.upstream_data(data)

    def eof_received(self) -> bool:
        """End: the host sends nothing more."""
        self._lose(is_whole=True)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """End: the host is gone."""
        self._lose(is_whole=False)

    def pause_writing(self) -> None:
        """Send less: the host does not take what is written."""
        if self.user is not None:
            self.user.upstream_full()

    def resume_writing(self) -> None:
        """Send again: the host takes more."""
        if self.user is not None:
            self.user.upstream_ready()

    def _lose(self, *, is_whole: bool) -> None:
        self.is_lost = True
        user, self.user = self.user, None
        if user is not None:
            user.upstream_lost(is_whole)


async def open_upstream(sock: socket.socket, make: Callable[[], Upstream]) -> Upstream:
    """Speak with the host behind a connected socket. Raises OSError."""
    _, upstream = await asyncio.get_running_loop().create_connection(make, sock=sock)
    return upstream


async def open_secure_upstream(
    sock: socket.socket, name: str, trust: ssl.SSLContext, make: Callable[[], Upstream]
) -> Upstream:
    """Speak TLS with the host behind a connected socket, once it has proved its name. Raises OSError."""
    _, upstream = await asyncio.get_running_loop().create_connection(
        make, sock=sock, ssl=trust, server_hostname=name, ssl_handshake_timeout=_HANDSHAKE_SECONDS
    )
    return upstream
