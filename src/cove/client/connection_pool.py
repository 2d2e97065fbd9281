"""The connection pool of one server: parse its address, connect (TCP, TLS or unix), reuse idle connections."""

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from cove.client.http_connection import HttpConnection
from cove.errors import ValidationFailed
from cove.http.dead_peer import DeadPeerDetector, keep_alive
from cove.local.tcp_stream import Streams

_UNIX: Final = "unix://"
_PORTS: Final = {"http": 80, "https": 443}
_NEXT_ADDRESS_SECONDS: Final = 0.25
_IDLE_SECONDS: Final = 30.0  # less than a server keeps a connection: it does not close one that is just being used
_LIMIT_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server: a TCP port, perhaps with TLS, or a unix socket; all paths are below `prefix`."""

    url: str
    host: str
    port: int
    is_encrypted: bool
    prefix: str
    socket_path: str | None

    @property
    def authority(self) -> str:
        """Return the value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host.encode("idna").decode()
        return host if self.port == _PORTS["https" if self.is_encrypted else "http"] else f"{host}:{self.port}"

    @property
    def is_literal(self) -> bool:
        """Return whether the host is an IP address: there is no other one to try."""
        return ":" in self.host or self.host.replace(".", "").isdigit()


def parse_address(url: str) -> Address:
    """Return the address that a URL names, or ValidationFailed."""
    url = url.rstrip("/")
    if url.startswith(_UNIX):
        return Address(url, "cove.localhost", _PORTS["http"], False, "", url.removeprefix(_UNIX))
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in _PORTS or not url.isprintable() or " " in url:
        raise ValidationFailed(f"{url} is not the address of a server: write it as http://127.0.0.1:8787")
    return Address(url, host, port or _PORTS[parts.scheme], parts.scheme == "https", parts.path, None)


class Pool:
    """The connections of one event loop to one server; owns all of them, also those in use."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[HttpConnection] = []
        self._open: set[HttpConnection] = set()
        self._all_gone = asyncio.Event()
        self._watch = DeadPeerDetector()

    def take(self) -> HttpConnection | None:
        """Return a kept-alive connection, if there is one: the one used last."""
        while self._idle:
            connection = self._idle.pop()
            is_fresh = asyncio.get_running_loop().time() - connection.idle_since < _IDLE_SECONDS
            if is_fresh and connection.is_open():
                return connection
            connection.abort()
        return None

    def give_back(self, connection: HttpConnection) -> None:
        """Return a connection to the pool: its response is complete, or nobody wants the rest."""
        if connection.is_reusable:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.abort()

    async def connect(self, seconds: float) -> HttpConnection:
        """Open a fresh connection; raises OSError."""
        loop, address = asyncio.get_running_loop(), self._address
        async with asyncio.timeout(seconds):
            if address.socket_path is not None:
                _, connection = await loop.create_unix_connection(self._make, address.socket_path)
            elif isinstance(loop, asyncio.BaseEventLoop) and not address.is_literal:
                _, connection = await loop.create_connection(
                    self._make, address.host, address.port, ssl=self._ssl, happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS
                )
            else:  # asyncio leaks a connected socket when a race of addresses is cancelled; uvloop has no race
                _, connection = await loop.create_connection(self._make, address.host, address.port, ssl=self._ssl)
        if connection.is_lost:  # nothing was sent
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        self._open.add(connection)
        self._keep_alive(connection.transport, connection.give_up)
        return connection

    async def open_streams(self, seconds: float) -> Streams:
        """Return a connection that is not of the pool, with nothing sent; raises OSError."""
        address = self._address
        async with asyncio.timeout(seconds):
            if address.socket_path is not None:
                return await asyncio.open_unix_connection(address.socket_path, limit=_LIMIT_BYTES)
            streams = await asyncio.open_connection(address.host, address.port, ssl=self._ssl, limit=_LIMIT_BYTES)
        self._keep_alive(streams[1].transport, partial(_give_up, *streams))
        return streams

    @property
    def _ssl(self) -> bool | None:
        return True if self._address.is_encrypted else None

    def _make(self) -> HttpConnection:
        return HttpConnection(self)

    def _keep_alive(self, transport: asyncio.WriteTransport, give_up: Callable[[], None]) -> None:
        sock = transport.get_extra_info("socket")
        if sock.family != socket.AF_UNIX and not transport.is_closing():
            keep_alive(sock)
            self._watch.add(transport, give_up)

    def forget(self, connection: HttpConnection) -> None:
        """Forget a connection that is lost."""
        self._open.discard(connection)
        with suppress(ValueError):
            self._idle.remove(connection)
        if not self._open:
            self._all_gone.set()

    async def aclose(self) -> None:
        """End every connection."""
        self._watch.close()
        while self._open:
            for connection in self._open:
                connection.abort()
            self._all_gone.clear()
            await self._all_gone.wait()


def _give_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The server's machine is gone: that is no end of what it sent."""
    reader.set_exception(ConnectionResetError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))
    writer.transport.abort()
