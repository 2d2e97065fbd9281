"""Messages between a runtime and the egress process arrive as they were sent."""

import sys

import msgspec
import pytest

from cove.core import egress_protocol
from cove.core.egress_protocol import Configure, Configured, FromEgress, Report, Sync, Synced, Totals, decode_totals
from cove.model.network import Network, NetworkPolicy, NetworkRule

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    "message",
    [
        Configure(network=Network.INTERNET),
        Configure(
            network=NetworkPolicy(allow=("a.example", NetworkRule("b.example:22", private=True))),
            sockets=(443, egress_protocol.DNS_UDP),
            secrets={"KEY": "v\u00e9"},
        ),
    ],
)
def test_a_configuration_arrives_whole(message: Configure) -> None:
    assert egress_protocol.decode_configuration(egress_protocol.encode(message)) == message


def test_a_sync_is_answered_by_its_tag() -> None:
    assert egress_protocol.decode_sync(egress_protocol.encode(Sync(tag=7))).tag == 7


@pytest.mark.parametrize("message", [Configured(certificate="c"), Synced(tag=7), Report(events=(), lost=3)])
def test_what_the_egress_process_says_arrives_as_what_it_is(message: FromEgress) -> None:
    assert egress_protocol.decode_from_egress(egress_protocol.encode(message)) == message


@pytest.mark.parametrize("data", [b"", b"{}", b'{"type":"sync","tag":1}', b'{"type":"report"}', b"\xff"])
def test_nothing_else_is_taken_from_the_egress_process(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        egress_protocol.decode_from_egress(data)


def test_totals_are_numbers_of_eight_bytes_and_what_is_missing_is_zero() -> None:
    data = b"".join(number.to_bytes(8, sys.byteorder) for number in (1, 2, 3, 4, 5))
    expected = Totals(sent_bytes=1, received_bytes=2, connections=3, requests=4, refused=5)
    assert decode_totals(data) == decode_totals(data + b"more") == expected
    assert decode_totals(data[:16]) == Totals(sent_bytes=1, received_bytes=2)
    assert decode_totals(b"") == Totals()
