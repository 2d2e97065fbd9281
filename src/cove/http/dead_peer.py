"""Detect a dead TCP peer: keep-alive probes, and TCP_INFO while data is unacknowledged.

Theory of operation. Keep-alive finds a vanished machine while a connection is idle. While sent data is unacknowledged
the kernel sends no probes: it retransmits for a quarter of an hour. TCP_USER_TIMEOUT would end that sooner, but it also
ends the connection to a living peer that takes nothing for as long (zero window: a paused reader, a program that does
not read its input). So the watch looks itself. With probes every few seconds a living peer is heard of at least that
often, and one that holds us back has acknowledged everything that was sent: unacknowledged data and a long silence
mean that nobody is there (tcp(7)).
"""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Final

# Together the kernel's verdict on an idle connection: 4 + 3 * 3 seconds.
_KEEP_ALIVE: Final = ((socket.TCP_KEEPIDLE, 4), (socket.TCP_KEEPINTVL, 3), (socket.TCP_KEEPCNT, 3))
SILENCE_SECONDS: Final = 11.0
_LOOK_SECONDS: Final = 2.0
_MOST_AT_ONCE: Final = 512
# In linux/tcp.h: tcpi_unacked, and after six other fields tcpi_last_data_recv and tcpi_last_ack_recv.
_INFO: Final = struct.Struct("=24xI24xII")


def keep_alive(sock: socket.socket) -> None:
    """Probe an idle connection. What a listening socket accepts inherits it."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


class DeadPeerDetector:
    """Ends the TCP connections of one event loop whose peer is dead. One timer, which runs while there are any."""

    def __init__(self) -> None:
        self._watched: deque[tuple[asyncio.WriteTransport, Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, transport: asyncio.WriteTransport, end: Callable[[], None]) -> None:
        """Watch a connection that has `keep_alive`, until it is closed; `end` is called when its peer is dead."""
        self._watched.append((transport, end))
        if self._timer is None:
            self._schedule()

    def close(self) -> None:
        """Watch nothing any more."""
        self._watched.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        """A round takes the same time however many there are."""
        rounds = max(len(self._watched) / _MOST_AT_ONCE, 1.0)
        self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS / rounds, self._look)

    def _look(self) -> None:
        self._timer = None
        for _ in range(min(len(self._watched), _MOST_AT_ONCE)):
            transport, end = self._watched.popleft()
            if transport.is_closing() and not transport.get_write_buffer_size():
                continue
            self._watched.append((transport, end))
            if _is_dead(transport.get_extra_info("socket")):
                end()
        if self._watched:
            self._schedule()


def _is_dead(connected: socket.socket) -> bool:
    info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    unacknowledged, since_data, since_acknowledgement = _INFO.unpack(info)
    return bool(unacknowledged) and min(since_data, since_acknowledgement) >= SILENCE_SECONDS * 1000
