"""Connect to a service inside a sandbox through its runtime: an upgrade, then what either side sends."""

import asyncio
from typing import Protocol, cast

from cove.wire.frames import END_OF_HEAD, parse_upgrade, render_upgrade

_REFUSED = 502


class ServiceUser(Protocol):
    """Takes what comes from the service, without waiting."""

    def service_data(self, data: bytes) -> None:
        """The service sent this."""

    def service_eof(self) -> None:
        """The service has half-closed: it sends nothing more."""

    def service_lost(self) -> None:
        """The connection is gone. Called once."""

    def service_full(self) -> None:
        """Stop writing (backpressure): the service does not take what is written."""

    def service_ready(self) -> None:
        """Write again: the service takes more."""


class ServiceConnection(asyncio.Protocol):
    """`opened` is the status of the runtime's answer: 101 when the service is reached."""

    def __init__(self, user: ServiceUser, target: str) -> None:
        self.opened: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._user = user
        self._target = target
        self._head = bytearray()
        self._transport: asyncio.Transport | None = None
        self._is_reading = True
        self._is_aborted = False

    def write(self, data: bytes) -> None:
        """Towards the service."""
        if self._transport is not None:
            self._transport.write(data)

    def write_eof(self) -> None:
        """Half-close: nothing more goes to the service."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()

    def pause_reading(self) -> None:
        """Let the service wait."""
        if self._is_reading and self._transport is not None and not self._transport.is_closing():
            self._is_reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take from the service again."""
        if not self._is_reading and self._transport is not None and not self._transport.is_closing():
            self._is_reading = True
            self._transport.resume_reading()

    def close(self) -> None:
        """End when everything is written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End at once, unless it is ending; also one that is not connected yet."""
        self._is_aborted = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport. Called by it, as are those below."""
        self._transport = cast("asyncio.Transport", transport)
        if self._is_aborted:
            self._transport.abort()
        else:
            self._transport.write(render_upgrade(self._target, "cove"))

    def data_received(self, data: bytes) -> None:
        """Receive bytes, from the runtime first, then from the service."""
        if not self.opened.done():
            data = self._take_head(data)
        if data:
            self._user.service_data(data)

    def eof_received(self) -> bool:
        """The user decides what that means; the other direction stays open until then."""
        self._user.service_eof()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """The runtime or the service is gone, or nobody needs them any more."""
        if not self.opened.done():
            self.opened.set_result(_REFUSED)
        self._user.service_lost()

    def pause_writing(self) -> None:
        """The service does not take what is written."""
        self._user.service_full()

    def resume_writing(self) -> None:
        """The service takes more."""
        self._user.service_ready()

    def _take_head(self, data: bytes) -> bytes:
        """The runtime is one of ours: its head is small and comes whole."""
        self._head += data
        head, found, rest = bytes(self._head).partition(END_OF_HEAD)
        if not found:
            return b""
        status, _ = parse_upgrade(head)
        self.opened.set_result(status)
        return rest if status == 101 else b""
