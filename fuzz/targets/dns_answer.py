"""DNS answers of a name server outside: addresses of the name that was asked for, or an error that is expected."""

import ipaddress
from collections.abc import Iterator

import dns.message
import dns.name
import dns.nameserver
import dns.query
import dns.rcode
import dns.rdatatype
import dns.rrset

from cove.core.network_policy import Address
from cove.egress.resolver import NameUnknown, Resolver, _NameServer
from fuzz.loop import complete

MOST_BYTES = 1024
_NAME = "host.example"


class _Answering(dns.nameserver.Nameserver):
    """A name server that answers every query with the same bytes, as far as they are an answer to it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.said: set[Address] = set()

    def __str__(self) -> str:
        return "a fuzzer"

    def kind(self) -> str:
        return "fuzz"

    def is_always_max_size(self) -> bool:
        return True

    def answer_nameserver(self) -> str:
        return "127.0.0.1"

    def answer_port(self) -> int:
        return 9

    async def async_query(self, request: dns.message.QueryMessage, *_: object, **__: object) -> dns.message.Message:
        wire = request.id.to_bytes(2, "big") + self._data[2:]
        response = dns.message.from_wire(wire, ignore_trailing=False, raise_on_truncation=True)
        if not request.is_response(response):
            raise dns.query.BadResponse
        self.said.update(
            _meant(ipaddress.ip_address(record.address))
            for rrset in response.answer
            for record in rrset
            if record.rdtype in (dns.rdatatype.A, dns.rdatatype.AAAA)
        )
        return response


def check(data: bytes) -> None:
    """Resolve a name by a server that says this."""
    resolver = Resolver("127.0.0.1:9")
    server = _NameServer("127.0.0.1:9")
    answering = _Answering(data)
    server._resolver.nameservers = [answering]
    server._resolver.lifetime = 0.05  # it is asked again after an answer that is none
    resolver._resolve = server.resolve  # without a socket
    try:
        found = complete(resolver.resolve(_NAME))
    except NameUnknown:
        return
    assert found
    assert all(isinstance(each, ipaddress.IPv4Address | ipaddress.IPv6Address) for each in found)
    assert set(found) <= answering.said


def _meant(address: Address) -> Address:
    return getattr(address, "ipv4_mapped", None) or address


def seeds() -> Iterator[bytes]:
    """Answers with addresses, names of names, nothing, and errors."""
    for kind, texts in (("A", ["192.0.2.1", "10.0.0.1"]), ("AAAA", ["2001:db8::1", "::ffff:10.0.0.1"])):
        query = dns.message.make_query(_NAME, kind, id=1)
        response = dns.message.make_response(query)
        response.answer.append(dns.rrset.from_text(_NAME + ".", 60, "IN", kind, *texts))
        yield response.to_wire()
        response = dns.message.make_response(query)
        response.answer.append(dns.rrset.from_text(_NAME + ".", 60, "IN", "CNAME", "other.example."))
        response.answer.append(dns.rrset.from_text("other.example.", 60, "IN", kind, *texts))
        yield response.to_wire()
        response = dns.message.make_response(query)
        response.set_rcode(dns.rcode.NXDOMAIN)
        response.authority.append(dns.rrset.from_text("example.", 60, "IN", "SOA", "a. b. 1 2 3 4 5"))
        yield response.to_wire()
