"""DNS queries of programs inside: answers are well formed, and an address is given for the judged name alone."""

import ipaddress
from collections.abc import Iterator

import dns.flags
import dns.message
import dns.name
import dns.rdatatype

from cove.core.network_policy import Allowed, Policy, Refused
from cove.core.synthetic_address import SyntheticAddresses
from cove.egress.name_server import NameServer
from cove.egress.resolver import NameUnknown, Resolver
from cove.model.network import NetworkPolicy, NetworkRule
from fuzz.loop import complete

MOST_BYTES = 512
_POLICY = Policy(
    NetworkPolicy(allow=[NetworkRule("allowed.example"), NetworkRule("*.wild.example")], deny=["no.wild.example"])
)


class _Names(Resolver):
    """A resolver that knows some names, and asks nobody."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:9")
        self.asked: list[str] = []

    async def resolve(self, name: str) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, ...]:
        self.asked.append(name)
        match len(name) % 3:
            case 0:
                raise NameUnknown(name)
            case 1:
                return (ipaddress.IPv4Address("192.168.0.1"),)
        return (ipaddress.IPv4Address("8.8.8.8"),)


def check(data: bytes) -> None:
    """Ask twice: the second answer, which may be remembered, is the same."""
    resolver = _Names()
    addresses = SyntheticAddresses(lambda _: False)
    reported: list[str] = []
    server = NameServer(resolver, _POLICY.judge_name, addresses.address_of, lambda name, _: reported.append(name))
    reply = complete(server.answer(data))
    assert reply == complete(server.answer(data))
    for name in resolver.asked:
        assert isinstance(_POLICY.judge_name(name), Allowed), "a name was looked up that is not allowed"
    for name in reported:
        assert isinstance(_POLICY.judge_name(name), Refused) or name in resolver.asked
    if reply is not None:
        _check_reply(data, reply, addresses)


def _check_reply(data: bytes, reply: bytes, addresses: SyntheticAddresses) -> None:
    assert len(reply) <= len(data) + 64, "an answer that amplifies"
    query, answer = dns.message.from_wire(data), dns.message.from_wire(reply)
    assert answer.id == query.id
    assert answer.flags & dns.flags.QR
    assert answer.question == query.question
    for found in answer.answer:
        (record,) = found
        asked = query.question[0].name
        assert found.name == asked
        name = addresses.name_of(record.address)
        assert name is not None
        assert dns.name.from_text(name) == asked, "the address of another name"
        assert isinstance(_POLICY.judge_name(name), Allowed)


def seeds() -> Iterator[bytes]:
    """Queries of every kind for names of every kind."""
    for name in (
        "allowed.example",
        "ab.wild.example",
        "a.wild.example",
        "no.wild.example",
        "other.example",
        "xn--bcher-kva.example",
    ):
        for kind in ("A", "AAAA", "ANY", "MX"):
            yield dns.message.make_query(name, kind, id=1).to_wire()
    yield dns.message.make_query("allowed.example", "A", use_edns=0, want_dnssec=True, id=1).to_wire()
    yield dns.message.make_query("1.0.0.127.in-addr.arpa", "PTR", id=1).to_wire()
    yield dns.message.make_query(dns.name.Name([b"a.b", b"wild", b"example", b""]), "A", id=1).to_wire()
