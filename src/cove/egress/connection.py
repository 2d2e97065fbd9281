"""Carry one connection of a sandbox: find its name, judge it, connect outside, pass bytes, report.

The address that the program connected to is the accepted socket's own, or the one that the kernel remembers for it
(attach/nftables), and stands for exactly one name. Nothing that
the program sends decides where the connection goes. On port 443 the name in its TLS hello must be the same, so that an
allowed address is no door to other names of a shared front.
"""

import asyncio
import socket
import ssl
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from cove.core.client_hello import ACCESS_DENIED, NotTls, read_server_name
from cove.core.network_policy import Allowed, Failed, Refused, Verdict
from cove.egress.intercept import Interception
from cove.egress.refusal import render_refusal
from cove.egress.relay import LimitReached, relay
from cove.egress.resolver import AddressRefused, NameUnknown, Unreachable
from cove.model.network import NetworkEventKind, NetworkRule

if TYPE_CHECKING:
    from cove.egress.gate import Gate

_HELLO_SECONDS = 15.0
_GOODBYE_SECONDS = 2.0
_READ_BYTES = 16 << 10
_HANDSHAKE_RECORD = b"\x16"
_TLS_PORT = 443
_HTTP_PORT = 80
_SO_ORIGINAL_DST = 80
_OTHER_NAME = "CALLBACK_FAILED"  # the one that compares the name has refused


class _Way(NamedTuple):
    """The way a connection is carried: another one needs another connection. `rule` judges the requests on it."""

    is_intercepted: bool
    is_private: bool
    is_replayed: bool
    rule: NetworkRule | None


class Connection:
    """One accepted connection, to `host`:`port`. `run` ends it in any case."""

    def __init__(self, gate: "Gate", sock: socket.socket, address: str, port: int) -> None:
        self._gate = gate
        self._sock = sock
        self.port = port
        self.host = gate.name_of(address) or ""
        self._address = address
        self._sent = self._received = 0
        self._started = time.monotonic()
        self._is_told = self._is_reported = False
        self._way: _Way | None = None

    async def run(self) -> None:
        """Carry it to its end, and report it."""
        verdict: Verdict = self.judge()
        try:
            if isinstance(verdict, Allowed):
                verdict = await self._carry(verdict)
            if isinstance(verdict, Refused) and not self._is_told:
                self._report(verdict)  # first: a command may end as soon as it is told, and its result lists this
                await self._say_refused(verdict)
        except LimitReached as error:
            verdict = Refused(str(error))
        except OSError as error:  # one side broke it
            verdict = Refused(error.strerror or str(error)) if isinstance(verdict, Refused) else verdict
        except asyncio.CancelledError:
            verdict = Refused("the policy was changed")
            raise
        finally:
            if isinstance(verdict, Refused) and not self._is_told:
                reset(self._sock)
            self._sock.close()
            self._report(verdict)

    def judge(self) -> Verdict:
        """Judge it by the policy that holds now."""
        if not self.host:
            return Refused(f"{self._address} has no name: names are allowed, not addresses")
        return self._gate.policy.judge(self.host, self.port)

    @property
    def is_allowed_still(self) -> bool:
        """Return whether the policy that holds now lets it go on the way that it goes."""
        verdict = self.judge()
        return isinstance(verdict, Allowed) and self._way in (None, self._way_of(verdict))

    def _way_of(self, allowed: Allowed) -> "_Way":
        is_intercepted = self._gate.policy.intercepts(allowed)
        rule = allowed.rule if is_intercepted else None
        return _Way(is_intercepted, allowed.is_private, allowed.is_replayed, rule)

    async def _carry(self, allowed: Allowed) -> Verdict:
        self._way = self._way_of(allowed)
        if self._way.is_intercepted:
            return await self._intercept(allowed)
        if allowed.is_replayed:
            return Refused(f"{self.host}:{self.port}: a policy that replays reaches nothing")
        first = b""
        if self.port == _TLS_PORT:
            try:
                async with asyncio.timeout(_HELLO_SECONDS):
                    first = await self._read_hello()
            except (NotTls, TimeoutError) as error:
                return Refused(f"{self.host}:443: {str(error) or 'no TLS hello came'}")
            if not first:
                return allowed  # it ended before it said anything
        try:
            outside = await self._gate.resolver.connect(self.host, self.port, private=allowed.is_private)
        except AddressRefused as error:
            return Refused(str(error))
        except (NameUnknown, Unreachable) as error:
            return Failed(str(error))
        with outside:
            if first:
                self._take_sent(len(first))
                await asyncio.get_running_loop().sock_sendall(outside, first)
            await relay(self._sock, outside, self._take_sent, self._take_received)
        return allowed

    async def _intercept(self, allowed: Allowed) -> Verdict:
        """Judge its requests. On a port of neither kind, what comes first says whether it is TLS."""
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                is_tls = self.port == _TLS_PORT or (
                    self.port != _HTTP_PORT and await _peek(self._sock) == _HANDSHAKE_RECORD
                )
        except TimeoutError:
            return Refused(f"{self.host}:{self.port}: nothing came")
        context = self._gate.authority_context(self.host) if is_tls else None
        try:
            await Interception(self, self._gate).serve(self._sock.dup(), context)
        except OSError as error:
            self._is_told = True  # by TLS itself
            return Refused(f"{self.host}:{self.port}: {_describe_handshake(error)}")
        if self._gate.is_exhausted is not None:
            return Refused(self._gate.is_exhausted)
        return allowed

    async def _read_hello(self) -> bytes:
        """Everything up to the end of the TLS hello, which must name this host. Empty: it ended at once."""
        data = b""
        hello = None
        while hello is None:
            try:
                more = await asyncio.get_running_loop().sock_recv(self._sock, _READ_BYTES)
            except OSError:
                return b""
            if not more:
                if data:
                    raise NotTls("it ended within the TLS hello")
                return b""
            data += more
            hello = read_server_name(data)
        if hello.server_name != self.host:
            named = "no server" if hello.server_name is None else hello.server_name
            raise NotTls(f"the TLS hello names {named}")
        return data

    def count_sent(self, size: int) -> bool:
        """Count bytes that go out; whether more may."""
        self._sent += size
        return self._gate.count_sent(size)

    def count_received(self, size: int) -> bool:
        """Count bytes that come in; whether more may."""
        self._received += size
        return self._gate.count_received(size)

    def _take_sent(self, size: int) -> None:
        if not self.count_sent(size):
            raise LimitReached(self._gate.is_exhausted)

    def _take_received(self, size: int) -> None:
        if not self.count_received(size):
            raise LimitReached(self._gate.is_exhausted)

    async def _say_refused(self, refused: Refused) -> None:
        """Tell the program why, where its protocol has words for it. What it sent is read, so that it can read us."""
        message = b""
        if self.port == _TLS_PORT:
            message = ACCESS_DENIED
        elif self.port == _HTTP_PORT:
            message = render_refusal(refused)
        if not message:
            return
        loop = asyncio.get_running_loop()
        if self.port == _HTTP_PORT:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(_HELLO_SECONDS):
                    await loop.sock_recv(self._sock, _READ_BYTES)
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_GOODBYE_SECONDS):
                await loop.sock_sendall(self._sock, message)
                self._sock.shutdown(socket.SHUT_WR)
                self._is_told = True
                while await loop.sock_recv(self._sock, _READ_BYTES):
                    pass

    def _report(self, verdict: Verdict) -> None:
        if self._is_reported:
            return
        self._is_reported = True
        self._gate.report_connection(
            NetworkEventKind.CONNECTION,
            self.host or self._address,
            self.port,
            verdict,
            sent_bytes=self._sent,
            received_bytes=self._received,
            duration=time.monotonic() - self._started,
        )


def own_address(sock: socket.socket) -> tuple[str, int]:
    """Return the address and port of the socket itself: those that the program connected to."""
    address, port = sock.getsockname()[:2]
    return str(address), int(port)


def original_destination(sock: socket.socket) -> tuple[str, int]:
    """Return the address and port that the program connected to, of a connection that the kernel led here.

    One that the kernel has forgotten has no name, and is refused.
    """
    try:
        _, port, address = struct.unpack("!HH4s8x", sock.getsockopt(socket.IPPROTO_IP, _SO_ORIGINAL_DST, 16))
    except OSError:
        return own_address(sock)
    return socket.inet_ntoa(address), port


def _describe_handshake(error: OSError) -> str:
    if isinstance(error, ssl.SSLError) and error.reason == _OTHER_NAME:
        return "the TLS hello names another server or none"
    return f"no TLS handshake: {error.strerror or error}"


def reset(sock: socket.socket) -> None:
    """Make its end a reset: the program inside sees a broken connection, never an orderly end of a stream."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _peek(sock: socket.socket) -> bytes:
    """The first byte, which stays there; nothing at the end."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def on_readable() -> None:
        loop.remove_reader(sock)
        readable.set_result(None)

    loop.add_reader(sock, on_readable)
    try:
        await readable
    finally:
        loop.remove_reader(sock)
    return sock.recv(1, socket.MSG_PEEK)
