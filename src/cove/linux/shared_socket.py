"""A transport on a TCP socket that hostile code may hold too: no call on it waits, whatever that code does to it.

A socket that came from inside a sandbox is one open file description, which an agent that keeps a copy can change at
any time (fcntl(2), socket(7)): without O_NONBLOCK a transport of asyncio or uvloop would wait in `recv` or `send`, and
with it the whole event loop; with SO_LINGER it would wait in `close`. Here every call says MSG_DONTWAIT by itself.
"""

import asyncio
import socket
import struct
from typing import cast

_READ_BYTES = 256 << 10
_HIGH_BYTES = 64 << 10
_NO_LINGER = struct.pack("ii", 0, 0)


class SharedSocketTransport(asyncio.Transport):
    """Owns the socket. `connection_made` of the protocol is called at once, and reading begins."""

    def __init__(self, sock: socket.socket, protocol: asyncio.Protocol) -> None:
        super().__init__({"socket": sock})
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._protocol = protocol
        self._unsent = bytearray()
        self._high, self._low = _HIGH_BYTES, _HIGH_BYTES // 4
        self._is_full = False
        self._is_reading = False
        self._has_ended = False
        self._owes_eof = False
        self._is_closing = False
        self._is_lost = False
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        protocol.connection_made(self)
        self.resume_reading()

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol that is told what happens."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the protocol."""
        self._protocol = cast("asyncio.Protocol", protocol)

    def is_closing(self) -> bool:
        """Return whether it is closing or closed."""
        return self._is_closing

    def is_reading(self) -> bool:
        """Return whether what comes is taken."""
        return self._is_reading

    def pause_reading(self) -> None:
        """Let the other end wait."""
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._sock)

    def resume_reading(self) -> None:
        """Take from the other end again."""
        if not self._is_reading and not self._is_closing and not self._has_ended:
            self._is_reading = True
            self._loop.add_reader(self._sock, self._on_readable)

    def get_write_buffer_size(self) -> int:
        """Return how much is unsent."""
        return len(self._unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return the low and the high water mark."""
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the water marks."""
        if high is None:
            high = _HIGH_BYTES if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low

    def can_write_eof(self) -> bool:
        """Return that one direction can be ended alone."""
        return True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send, sooner or later."""
        if self._is_closing or self._owes_eof or not data:
            return
        if not self._unsent:
            data = memoryview(data)[self._send(data) :]
            if not data or self._is_closing:
                return
            self._loop.add_writer(self._sock, self._on_writable)
        self._unsent += data
        if len(self._unsent) > self._high and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()

    def write_eof(self) -> None:
        """Half-close when everything is written."""
        if not self._is_closing and not self._owes_eof:
            self._owes_eof = True
            self._end_writing()

    def close(self) -> None:
        """Close when everything is written."""
        if not self._is_closing:
            self._is_closing = True
            self.pause_reading()
            if not self._unsent:
                self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        """Close at once."""
        self._break(None)

    def _on_readable(self) -> None:
        try:
            data = self._sock.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._break(error)
            return
        if data:
            self._protocol.data_received(data)
            return
        self.pause_reading()
        self._has_ended = True
        if not self._protocol.eof_received():
            self.close()

    def _send(self, data: bytes | bytearray | memoryview) -> int:
        try:
            return self._sock.send(data, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self._break(error)
            return len(data)

    def _on_writable(self) -> None:
        del self._unsent[: self._send(self._unsent)]
        if self._is_full and len(self._unsent) <= self._low and not self._is_closing:
            self._is_full = False
            self._protocol.resume_writing()
        if self._unsent or self._is_lost:
            return
        self._loop.remove_writer(self._sock)
        if self._is_closing:
            self._loop.call_soon(self._lose, None)
        else:
            self._end_writing()

    def _end_writing(self) -> None:
        if self._owes_eof and not self._unsent:
            try:
                self._sock.shutdown(socket.SHUT_WR)
            except OSError as error:
                self._break(error)

    def _break(self, error: Exception | None) -> None:
        """Drop what is unsent, and tell the protocol in another turn of the loop."""
        if self._is_lost:
            return
        self.pause_reading()
        if self._unsent:
            self._loop.remove_writer(self._sock)
            self._unsent = bytearray()
        self._is_closing = True
        self._loop.call_soon(self._lose, error)

    def _lose(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self._sock.close()
            self._protocol.connection_lost(error)
