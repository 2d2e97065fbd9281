"""Answer the DNS queries of a sandbox: an allowed name has one synthetic address, every other does not exist.

What an exact rule names, or a cassette answers for, is answered at once. A name that only a wildcard or `internet`
allows is looked up first, so that one that does not exist fails where programs expect it; that query tells a server
nothing that a connection, which is allowed as well, could not. No other query leaves the machine.
"""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from cove.core.network_policy import Allowed, Refused, Verdict
from cove.egress.resolver import AddressRefused, NameUnknown, Resolver, choose
from cove.model.network import normalize_name
from cove.tasks import Tasks

_TTL_SECONDS = 60
_ID_BYTES = 2
_MOST_KNOWN = 1024
_MOST_QUERY_BYTES = 4096
_MOST_WAITING = 512
_MOST_PER_SECOND = 2000
_MOST_CONNECTIONS = 64
_IDLE_SECONDS = 10.0
_SAME_LOOKUP_SECONDS = 0.5

Judge = Callable[[str], Verdict]


@dataclass(frozen=True, slots=True)
class _Known:
    """An answer that was given: `rest` is all of it but its id."""

    name: str
    address: str
    rest: bytes


def _is_known(verdict: Verdict) -> bool:
    """Return whether a rule names the host itself, or it is replayed: such a name is answered without a lookup."""
    if not isinstance(verdict, Allowed):
        return False
    return verdict.is_replayed or (verdict.rule is not None and not verdict.rule.target.is_wildcard)


class NameServer:
    """One sandbox's. `report` gets every name that was refused."""

    def __init__(
        self,
        resolver: Resolver,
        judge: Judge,
        address_of: Callable[[str], str],
        report: Callable[[str, Refused], None],
    ) -> None:
        self.resolver = resolver
        self._judge = judge
        self._address_of = address_of
        self._report = report
        self._last_refused = ("", dns.rdatatype.A, 0.0)
        self._known: dict[bytes, _Known] = {}
        self._waiting = 0
        self._connections = 0
        self._second = self._queries = 0

    def known_answer(self, query: bytes) -> bytes | None:
        """The answer to a query that was asked before, for a name that is not looked up, if it is still right."""
        known = self._known.get(query[_ID_BYTES:])
        if known is None or not _is_known(self._judge(known.name)) or self._address_of(known.name) != known.address:
            return None
        return query[:_ID_BYTES] + known.rest

    def _remember(self, query: bytes, name: str, reply: bytes) -> None:
        if not _is_known(self._judge(name)):
            return
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[query[_ID_BYTES:]] = _Known(name, self._address_of(name), reply[_ID_BYTES:])

    async def answer(self, query: bytes) -> bytes | None:
        """The answer to one query, or None to what is no query."""
        if (known := self.known_answer(query)) is not None:
            return known
        try:
            message = dns.message.from_wire(query)
        except (dns.exception.DNSException, ValueError):
            return None
        if message.flags & dns.flags.QR or len(message.question) != 1:
            return None
        reply = dns.message.make_response(message, recursion_available=True)
        question = message.question[0]
        if message.opcode() != 0 or question.rdclass != dns.rdataclass.IN:
            reply.set_rcode(dns.rcode.NOTIMP)
            return reply.to_wire()
        rcode, address = await self._look_up(question.name.to_text(omit_final_dot=True), question.rdtype)
        reply.set_rcode(rcode)
        if address is not None and question.rdtype in (dns.rdatatype.A, dns.rdatatype.ANY):
            reply.answer.append(dns.rrset.from_text(question.name, _TTL_SECONDS, "IN", "A", address))
        data = reply.to_wire()
        if address is not None:
            self._remember(query, normalize_name(question.name.to_text(omit_final_dot=True)), data)
        return data

    async def _look_up(self, text: str, kind: dns.rdatatype.RdataType) -> tuple[dns.rcode.Rcode, str | None]:
        try:
            name = normalize_name(text)
        except (ValueError, UnicodeError):
            return dns.rcode.NXDOMAIN, None
        verdict = self._judge(name)
        if isinstance(verdict, Allowed) and not _is_known(verdict):
            verdict, code = await self._check_exists(name, verdict)
            if code is not None:
                return code, None
        if isinstance(verdict, Refused):
            self._report_once(name, kind, verdict)
            return dns.rcode.NXDOMAIN, None
        return dns.rcode.NOERROR, self._address_of(name)

    def _report_once(self, name: str, kind: dns.rdatatype.RdataType, refused: Refused) -> None:
        """Report one lookup once: a program that looks up a name asks for addresses of both kinds."""
        now = asyncio.get_running_loop().time()
        last_name, last_kind, last = self._last_refused
        if last_name != name or last_kind == kind or last < now - _SAME_LOOKUP_SECONDS:
            self._report(name, refused)
            self._last_refused = (name, kind, now)

    async def _check_exists(self, name: str, verdict: Verdict) -> tuple[Verdict, dns.rcode.Rcode | None]:
        if self._waiting >= _MOST_WAITING:
            return verdict, dns.rcode.SERVFAIL
        self._waiting += 1
        try:
            choose(await self.resolver.resolve(name), private=False)
        except NameUnknown:
            return verdict, dns.rcode.NXDOMAIN
        except AddressRefused as error:
            return Refused(f"{name}: {error}"), None
        finally:
            self._waiting -= 1
        return verdict, None

    def admit(self) -> bool:
        """Count a query; whether it is answered. The time of this process is not charged to the sandbox."""
        second = int(asyncio.get_running_loop().time())
        if second != self._second:
            self._second, self._queries = second, 0
        self._queries += 1
        return self._queries <= _MOST_PER_SECOND

    async def serve_datagrams(self, sock: socket.socket) -> None:
        """Answer queries on this UDP socket until cancelled."""
        sock.setblocking(False)
        transport, queries = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: _Datagrams(self), sock=sock
        )
        try:
            await asyncio.Event().wait()
        finally:
            transport.close()
            await queries.aclose()

    async def serve_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer queries of one TCP connection: RFC 7766."""
        if self._connections >= _MOST_CONNECTIONS:
            writer.transport.abort()
            return
        self._connections += 1
        try:
            while True:
                async with asyncio.timeout(_IDLE_SECONDS):
                    size = int.from_bytes(await reader.readexactly(2), "big")
                    query = await reader.readexactly(size)
                    reply = await self.answer(query) if size <= _MOST_QUERY_BYTES and self.admit() else None
                    if reply is None:
                        return
                    writer.write(len(reply).to_bytes(2, "big") + reply)
                    await writer.drain()
        except (OSError, EOFError, TimeoutError):
            return
        finally:
            self._connections -= 1
            writer.transport.abort()


class _Datagrams(asyncio.DatagramProtocol):
    """One task for every query that waits; those beyond the limit are answered with nothing, as a full queue is."""

    def __init__(self, server: NameServer) -> None:
        self._server = server
        self._tasks = Tasks()
        self._waiting = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
        if not self._server.admit():
            return
        if (known := self._server.known_answer(data)) is not None:
            self._transport.sendto(known, sender)
        elif self._waiting < _MOST_WAITING and len(data) <= _MOST_QUERY_BYTES:
            self._waiting += 1
            self._tasks.start(self._answer(data, sender), on_end=self._answered)

    async def _answer(self, data: bytes, sender: tuple[str, int]) -> None:
        if (reply := await self._server.answer(data)) is not None and not self._transport.is_closing():
            self._transport.sendto(reply, sender)

    def _answered(self) -> None:
        self._waiting -= 1

    async def aclose(self) -> None:
        """End the queries that wait."""
        await self._tasks.aclose()
