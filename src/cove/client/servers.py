"""The addresses of a server or of a cluster's nodes: choose one for each call, and remember who does not answer.

Calls go to the address with the fewest under way, in an order of this program's own: one that asks for one thing at a
time stays where it is, many spread. Nothing was sent where a connection failed, so the next address is tried at once.
An address that failed is left out for a while, which doubles; then a single call tries it.
"""

import asyncio
import errno
import os
import random
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from cove import __version__
from cove.client.connection_pool import Address, Pool, parse_address
from cove.client.http_connection import Broken, HttpConnection, NotHttp, NotRead, Vanished
from cove.errors import ConnectionLost, CoveError, Internal, SandboxUnavailable, Unreachable, ValidationFailed
from cove.local.tcp_stream import Streams
from cove.local.threads import in_thread
from cove.model.api_key import check_key_name

T = TypeVar("T")
FindKey = Callable[[], str | None]

_MOST: Final = 256
_SEPARATOR: Final = re.compile(r"\s*,\s*(?=[a-z]+://)")  # a path may have commas
_CONNECT_SECONDS: Final = 10.0
_CONNECT_SECONDS_BESIDE_OTHERS: Final = 2.0
_FIRST_REST: Final = 1.0
_LONGEST_REST: Final = 15.0
_NO_ANSWER: Final = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)


class Server:
    """One address: its connections, the calls under way, and how long it is left out."""

    def __init__(self, address: Address, api_key: str | None, find_key: FindKey) -> None:
        self.address = address
        self.tenant = _tenant_line()
        self._find_key = find_key
        self._show(api_key)
        self.calls = 0
        self.pool: Pool | None = None
        self._has_answered = False
        self._rests_until = 0.0
        self._rest = 0.0

    def _show(self, api_key: str | None) -> None:
        self.authorization = None if api_key is None else f"Bearer {api_key}"
        shown = "" if api_key is None else f"authorization: Bearer {api_key}\r\n"
        agent = f"user-agent: cove/{__version__}\r\n"
        self.headers = f" HTTP/1.1\r\nhost: {self.address.authority}\r\n{agent}{shown}{self.tenant}".encode()

    def has_answered(self) -> None:
        """Remember that it is there."""
        self._has_answered = True
        self._rest = 0.0

    def has_failed(self) -> None:
        """Leave it out for a while."""
        self._rest = min(self._rest * 2, _LONGEST_REST) or _FIRST_REST
        self._rests_until = asyncio.get_running_loop().time() + self._rest

    @property
    def is_resting(self) -> bool:
        """Return whether it failed and is left out."""
        return self._rest > 0 and asyncio.get_running_loop().time() < self._rests_until

    async def begin(self, connecting: Awaitable[T]) -> T:
        """Count a call, unless its connection fails. One that failed is tried by this call alone: the others wait."""
        if self._rest > 0:
            self._rests_until = asyncio.get_running_loop().time() + self._rest
        self.calls += 1
        try:
            return await connecting
        except BaseException:
            self.calls -= 1
            raise

    async def connect(self, seconds: float) -> HttpConnection:
        """Take a connection that is kept, or open one; raises OSError."""
        assert self.pool is not None
        connection = self.pool.take() or await self.pool.connect(seconds)
        await self._find_key_of_new_server(connection.abort)
        return connection

    async def open_streams(self, seconds: float) -> Streams:
        """Open a connection with nothing sent; raises OSError."""
        assert self.pool is not None
        streams = await self.pool.open_streams(seconds)
        await self._find_key_of_new_server(streams[1].transport.abort)
        return streams

    async def _find_key_of_new_server(self, abort: Callable[[], None]) -> None:
        """Look for the key again where none was found and nobody listened: a first start makes it before it listens."""
        if self._rest == 0 or self.authorization is not None:
            return
        try:
            self._show(await in_thread(self._find_key))
        except BaseException:
            abort()
            raise

    def unreachable(self, error: OSError) -> SandboxUnavailable:
        """Return what a failed connection means."""
        url = self.address.url
        code = 0 if isinstance(error, ssl.SSLError) else error.errno or 0  # those have numbers of their own
        reason = os.strerror(code) if code in errno.errorcode else error.strerror or str(error) or "no answer in time"
        if self._is_wrong_address(error):
            return SandboxUnavailable(f"{url} is not the address of a Cove server: {reason}. Check the URL.")
        message = f"no Cove server answers at {url}: {reason}. Is `cove serve` running?"
        is_silent = isinstance(error, TimeoutError) or error.errno in _NO_ANSWER
        return Unreachable(message, is_silent=True) if is_silent else Unreachable(message)

    def _is_wrong_address(self, error: OSError) -> bool:
        """Return whether waiting is of no use: no host has the name, or it speaks no TLS. One that was right is."""
        if self._has_answered or isinstance(error, ssl.SSLEOFError):  # the server is just ending
            return False
        return isinstance(error, socket.gaierror | ssl.SSLError)

    def lost(self, error: Broken, *, has_other: bool) -> CoveError:
        """Return what a broken connection means. A machine that says nothing is not waited for, unless others are."""
        url = self.address.url
        if isinstance(error, NotHttp) and not self._has_answered:
            return Internal(f"what answers at {url} is no Cove server: {error}. Check the URL.")
        if isinstance(error, NotRead):
            return Unreachable(f"the server at {url} ended before it read the call: nothing was started")
        message = f"the connection to {url} broke: {error}"
        is_silent = isinstance(error, Vanished) and not has_other
        return ConnectionLost(message, is_silent=True) if is_silent else ConnectionLost(message)


class Servers:
    """All addresses that a URL names: a server's one, or some of a cluster's."""

    def __init__(self, url: str, api_key: str | None, find_key: FindKey = lambda: None) -> None:
        self.all = [Server(address, api_key, find_key) for address in parse_addresses(url)]
        random.shuffle(self.all)
        self._seconds = _CONNECT_SECONDS if len(self.all) == 1 else _CONNECT_SECONDS_BESIDE_OTHERS

    def make_pools(self) -> list[Pool]:
        """Make the pool of each, which the caller closes."""
        pools = []
        for server in self.all:
            server.pool = Pool(server.address)
            pools.append(server.pool)
        return pools

    def take_pools(self) -> list[Pool]:
        """Take away the pool of each."""
        pools = [server.pool for server in self.all if server.pool is not None]
        for server in self.all:
            server.pool = None
        return pools

    async def connect(self) -> tuple[Server, HttpConnection]:
        """Connect to one that answers, for a call; `calls` counts it there until the caller takes it off."""
        return await self._first(Server.connect)

    async def open_streams(self) -> tuple[Server, Streams]:
        """Open a connection to one that answers, with nothing sent."""
        server, streams = await self._first(Server.open_streams)
        server.calls -= 1
        return server, streams

    def has_other(self, server: Server) -> bool:
        """Return whether any but that one is there to ask, as far as is known."""
        return any(not other.is_resting for other in self.all if other is not server)

    async def _first(self, connect: Callable[[Server, float], Awaitable[T]]) -> tuple[Server, T]:
        failures: list[SandboxUnavailable] = []
        for server in self._in_order():
            try:
                return server, await server.begin(connect(server, self._seconds))
            except OSError as error:
                server.has_failed()
                failures.append(server.unreachable(error))
        raise _worth_waiting(failures)

    def _in_order(self) -> Sequence[Server]:
        """Return those to try: first who has the fewest calls; those that failed when there is nobody else."""
        if len(self.all) == 1:
            return self.all
        return sorted(self.all, key=lambda server: (server.is_resting, server.calls))


def _tenant_line() -> str:
    """Return the header by which an admin acts for the tenant that COVE_TENANT names; nothing without one."""
    name = os.environ.get("COVE_TENANT")
    return f"cove-tenant: {check_key_name(name)}\r\n" if name else ""


def parse_addresses(url: str) -> list[Address]:
    """Return the addresses that a URL names, separated by commas, each once; or ValidationFailed."""
    parts = dict.fromkeys(_SEPARATOR.split(url.strip()))
    if len(parts) > _MOST:
        raise ValidationFailed(f"a URL may name {_MOST} addresses at most, not {len(parts)}")
    return [parse_address(part) for part in parts]


def _worth_waiting(failures: Sequence[SandboxUnavailable]) -> SandboxUnavailable:
    """Return the failure that may pass soonest: of who was refused, then of who is silent, then of a wrong address."""

    def hopelessness(error: SandboxUnavailable) -> int:
        return 2 if not isinstance(error, Unreachable) else int("is_silent" in error.details)

    return min(failures, key=hopelessness)
