"""Resolve names as the host does, judge every address, and connect to one that may be reached.

The address that was judged is the one that is connected to: a name that answers something else the next time (DNS
rebinding) gains nothing. The host's own addresses count as private, also its public ones.
"""

import asyncio
import errno
import ipaddress
import os
import socket
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import dns.asyncresolver
import dns.exception
import dns.rdatatype

from cove.core.network_policy import Address, judge_address
from cove.tasks import Tasks, shared

_RESOLVE_SECONDS = 10.0
_CONNECT_SECONDS = 15.0
_ADDRESS_SECONDS = 5.0
_MOST_ADDRESSES = 8
_MOST_RESOLVING = 64
_CACHED_SECONDS = 20.0
_CACHED_NAMES = 4096
_USER_TIMEOUT_MILLISECONDS = 30_000
_HOSTS = Path("/etc/hosts")


class NameUnknown(Exception):
    """There is no such name, or it has no address."""


class AddressRefused(Exception):
    """The name exists, but no address of it may be reached."""


class Unreachable(Exception):
    """No address that may be reached answers."""


class Resolver:
    """Resolve by the host's own means, or by the name server `address:port`."""

    def __init__(self, server: str | None) -> None:
        self._resolve = self._ask_host if server is None else _NameServer(server).resolve
        self._threads = ThreadPoolExecutor(16, thread_name_prefix="resolve")
        self._known: OrderedDict[str, tuple[float, tuple[Address, ...]]] = OrderedDict()
        self._resolving: dict[str, asyncio.Task[tuple[Address, ...]]] = {}
        self._tasks = Tasks(lambda _: None)  # whoever waits hears of a failure

    async def resolve(self, name: str) -> tuple[Address, ...]:
        """All addresses of a name. Raises NameUnknown."""
        loop = asyncio.get_running_loop()
        if (known := self._known.get(name)) is not None and known[0] > loop.time():
            return known[1]
        if (asking := self._resolving.get(name)) is None:
            if len(self._resolving) >= _MOST_RESOLVING:
                raise NameUnknown(f"too many names are being resolved: {name} is not")
            asking = self._resolving[name] = self._tasks.start(
                self._look_up(name), on_end=partial(self._resolving.__delitem__, name)
            )
        return await shared(asking)

    async def _look_up(self, name: str) -> tuple[Address, ...]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_RESOLVE_SECONDS):
                found = await self._resolve(name)
        except TimeoutError:
            raise NameUnknown(f"{name} could not be resolved in {_RESOLVE_SECONDS:.0f} s") from None
        if not found:
            raise NameUnknown(f"{name} has no address")
        found = tuple(dict.fromkeys(map(_unmapped, found)))
        self._known[name] = (loop.time() + _CACHED_SECONDS, found)
        self._known.move_to_end(name)
        if len(self._known) > _CACHED_NAMES:
            self._known.popitem(last=False)
        return found

    async def _ask_host(self, name: str) -> tuple[Address, ...]:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, _look_up_here, name)
        except (OSError, UnicodeError):
            raise NameUnknown(f"{name} is not known") from None

    async def connect(self, name: str, port: int, *, private: bool) -> socket.socket:
        """A connection to that name. Raises NameUnknown, AddressRefused or Unreachable."""
        try:
            addresses: Sequence[Address] = (ipaddress.IPv4Address(name),)
        except ValueError:
            addresses = await self.resolve(name)
        allowed = choose(addresses, private=private)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                return await _connect_first(allowed, port)
        except TimeoutError:
            raise Unreachable(f"{name}:{port} did not answer in {_CONNECT_SECONDS:.0f} s") from None
        except OSError as error:
            reason = str(error) if error.errno is None else os.strerror(error.errno)
            raise Unreachable(f"{name}:{port}: {reason}") from None


def _look_up_here(name: str) -> tuple[Address, ...]:
    """Return the addresses of a name by the host's hosts file, or else by its resolver. Raises OSError. Blocks.

    The dot keeps the resolver from trying search domains, but with it glibc finds no name of the hosts file.
    """
    if listed := tuple(_listed(name)):
        return listed
    found = socket.getaddrinfo(f"{name}.", None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(map(_address, (str(each[4][0]) for each in found))))


def _listed(name: str) -> Iterator[Address]:
    """Find the addresses that hosts(5) has for a name; a line that is none is passed over, as glibc does. Blocks."""
    try:
        lines = _HOSTS.read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in lines:
        address, *names = line.partition("#")[0].lower().split() or [""]
        if name.lower() in names:
            with suppress(ValueError):
                yield _address(address)


def _address(text: str) -> Address:
    return ipaddress.ip_address(text.partition("%")[0])


def _unmapped(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 one stands for, where it does: it is judged and connected to as such."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


def choose(addresses: Sequence[Address], *, private: bool) -> list[Address]:
    """Return those that may be reached, IPv4 first. Raises AddressRefused when there are none."""
    reasons = {address: _judge(address, private=private) for address in addresses}
    allowed = [address for address, reason in reasons.items() if reason is None]
    if not allowed:
        raise AddressRefused(next(reason for reason in reasons.values() if reason is not None))
    return sorted(allowed, key=lambda address: address.version)[:_MOST_ADDRESSES]


def _judge(address: Address, *, private: bool) -> str | None:
    reason = judge_address(address, private=private)
    if reason is None and not private and _is_own(address):
        return f"{address} is an address of this host"
    return reason


def _is_own(address: Address) -> bool:
    """Return whether this host has the address: the kernel would then send from it. A UDP connect sends nothing."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return str(probe.getsockname()[0]) == str(address)
    except OSError:
        return False  # no route: nothing is reached


async def _connect_first(addresses: Sequence[Address], port: int) -> socket.socket:
    failure: OSError = OSError("no address")
    for address in addresses:
        try:
            return await _connect_one(address, port)
        except OSError as error:
            failure = error
    raise failure


async def _connect_one(address: Address, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MILLISECONDS)
        async with asyncio.timeout(_ADDRESS_SECONDS):
            await _connected(sock, (str(address), port))
    except BaseException:
        sock.close()
        raise
    return sock


async def _connected(sock: socket.socket, address: tuple[str, int]) -> None:
    """Connect. uvloop's own `sock_connect` looks up even an address, in a thread, which is half of the time."""
    if (code := sock.connect_ex(address)) == errno.EINPROGRESS:
        await _writable(sock)
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


async def _writable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(sock, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_writer(sock)


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


class _NameServer:
    """One name server instead of the host's own way: for machines whose sandboxes have a resolver of their own."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._resolver = dns.asyncresolver.Resolver(configure=False)
        self._resolver.nameservers = [host]
        self._resolver.port = int(port)
        self._resolver.cache = None

    async def resolve(self, name: str) -> tuple[Address, ...]:
        found: list[Address] = []
        for kind in (dns.rdatatype.A, dns.rdatatype.AAAA):
            try:
                answer = await self._resolver.resolve(f"{name}.", kind, raise_on_no_answer=False)
            except dns.exception.DNSException:
                continue
            found += [ipaddress.ip_address(record.address) for record in answer]
        return tuple(found)
