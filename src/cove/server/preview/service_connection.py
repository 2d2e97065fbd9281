"""A connection to a service inside a sandbox, which its runtime makes and lends: bytes do not pass the runtime.

The unix socket on which the runtime sent the descriptor is the lease. The runtime ends it when the exposure is
withdrawn or the sandbox ends, and its end is also how a killed one is noticed; closing it here says that the connection
is no longer used. Whoever is inside may hold the connection's socket too, so nothing here waits for it.
"""

import asyncio
import socket
from typing import Protocol

from cove.http.endpoint import Endpoint
from cove.linux.shared_socket import SharedSocketTransport
from cove.wire.frames import END_OF_HEAD, LENDING, parse_upgrade, render_upgrade

_REFUSED = 502
_MOST_HEAD_BYTES = 64 << 10
_UPGRADE = f"Upgrade: {LENDING.decode()}\r\n"


class ServiceUser(Protocol):
    """Takes what comes from the service, without waiting."""

    def service_opened(self, status: int) -> None:
        """Take the status of the runtime's response: 101 when the service is reached. Called once."""

    def service_data(self, data: bytes) -> None:
        """Receive what the service sent."""

    def service_eof(self) -> None:
        """Note a half-close: the service sends nothing more."""

    def service_lost(self) -> None:
        """Handle the loss: the connection is gone, or the runtime has taken it back."""

    def service_full(self) -> None:
        """Stop writing (backpressure): the service does not take what is written."""

    def service_ready(self) -> None:
        """Write again: the service takes more."""


class ServiceConnection(Endpoint):
    """Nothing is done before `open`."""

    def __init__(self, user: ServiceUser, target: str) -> None:
        self._user = user
        self._target = target
        self._loop = asyncio.get_running_loop()
        self._head = bytearray()
        self._lease: socket.socket | None = None
        self._is_lent = False

    def open(self, path: str) -> None:
        """Ask the runtime that listens there for a connection. Raises OSError when it cannot be asked."""
        lease = socket.socket(socket.AF_UNIX)
        try:
            lease.setblocking(False)
            lease.connect(path)
            lease.send(render_upgrade(self._target, "cove", upgrade=_UPGRADE))
        except BaseException:
            lease.close()
            raise
        self._lease = lease
        self._loop.add_reader(lease, self._on_lease)

    def abort(self) -> None:
        """End at once, unless it is ending; also one that is not connected yet."""
        if not self._is_lent:
            self._end_lease()
        elif not self._transport.is_closing():
            super().abort()

    def data_received(self, data: bytes) -> None:
        """Pass on what the service sent. Called by the transport, as are those below."""
        self._user.service_data(data)

    def eof_received(self) -> bool:
        """Handle a half-close: the user decides; the other direction stays open until then."""
        self._user.service_eof()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """Handle the loss: the service is gone, or nobody needs it any more."""
        self._end_lease()
        self._user.service_lost()

    def pause_writing(self) -> None:
        """Tell the user to stop writing (backpressure)."""
        self._user.service_full()

    def resume_writing(self) -> None:
        """Tell the user to write again."""
        self._user.service_ready()

    def _on_lease(self) -> None:
        assert self._lease is not None
        try:
            data, descriptors, _, _ = socket.recv_fds(self._lease, 4096, 1, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data, descriptors = b"", []
        if self._is_lent:
            self._take_back()
            return
        self._head += data
        if descriptors:
            self._start(descriptors[0])
        elif not data or len(self._head) > _MOST_HEAD_BYTES:
            self._refuse(_REFUSED)
        elif END_OF_HEAD in self._head and (status := parse_upgrade(bytes(self._head))[0]) != 101:
            self._refuse(status)

    def _start(self, descriptor: int) -> None:
        SharedSocketTransport(socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=descriptor), self)
        self._is_lent = True
        self._user.service_opened(101)

    def _refuse(self, status: int) -> None:
        self._end_lease()
        self._user.service_opened(status)

    def _take_back(self) -> None:
        """The runtime says nothing after the descriptor: this is its end."""
        self._end_lease()
        self._transport.abort()
        self._user.service_lost()

    def _end_lease(self) -> None:
        if self._lease is not None:
            self._loop.remove_reader(self._lease)
            self._lease.close()
            self._lease = None
