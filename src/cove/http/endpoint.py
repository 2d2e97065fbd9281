"""A transport as one end of a connection: write, pause, half-close and abort in whatever state it is."""

import asyncio
import socket
from contextlib import suppress
from typing import cast


class _NotConnected(asyncio.Transport):
    """The transport of an end that has none yet: whatever is written to it is dropped."""

    def is_closing(self) -> bool:
        return True

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


_UNIX_BYTES = 1 << 20


def widen(connection: socket.socket) -> None:
    """The kernel gives a unix socket room for less than what is written in one go, and widens it only when asked."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNIX_BYTES)


class Endpoint(asyncio.Protocol):
    """Writes; takes what comes, or lets the other end wait. All calls are idempotent, also when it is closing."""

    _transport: asyncio.Transport = _NotConnected()
    _is_reading = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)

    @property
    def peer(self) -> str:
        """The address of the other end; nothing on a unix socket."""
        address = self._transport.get_extra_info("peername")
        return str(address[0]) if isinstance(address, tuple) else ""

    def write(self, data: bytes) -> None:
        """Send, sooner or later."""
        self._transport.write(data)

    def write_eof(self) -> None:
        """Half-close: nothing more will be written. A TLS connection has no half-closed state: there it is the end."""
        if not self._transport.can_write_eof():
            self._transport.close()
        elif not self._transport.is_closing():
            with suppress(OSError):  # the other end is gone, which the transport is about to say
                self._transport.write_eof()

    def pause_reading(self) -> None:
        """Let the other end wait."""
        if self._is_reading and not self._transport.is_closing():
            self._is_reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take from it again."""
        if not self._is_reading and not self._transport.is_closing():
            self._is_reading = True
            self._transport.resume_reading()

    def close(self) -> None:
        """End when everything is written."""
        self._transport.close()

    def abort(self) -> None:
        """End at once."""
        self._transport.abort()
