"""Messages between a sandbox's runtime and the egress process that carries its connections: JSON, one per packet.

The runtime sends a `Configure` with the listening sockets that are new, in order, and `Sync`. The egress process
answers each in turn, and reports what happened in between. Both are ours, yet the egress process reads what hostile
programs and hosts send: the runtime takes from it only these, within the limits of a packet.
"""

import msgspec

from cove.model.network import Network, NetworkEvent, NetworkPolicy

DNS_UDP = "udp"
DNS_TCP = "tcp"
ANY_PORT = "any"


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the sandbox was created.

    They are kept in a file that the egress process writes as it counts: eight bytes each, in this order. Who reads it
    needs nobody's answer, and a process that was killed has lost none.
    """

    sent_bytes: int = 0
    received_bytes: int = 0
    connections: int = 0
    requests: int = 0
    refused: int = 0


class Configure(msgspec.Struct, frozen=True, kw_only=True, tag="configure"):
    """Let this policy hold from now on, for open connections too.

    Descriptors come along: the file of the authority's key, that of the totals, the cassette if `has_cassette`, and for
    each of `sockets` one that listens on that port, on every port, or is one of the name server's. `secrets` are those
    that the policy names.
    """

    network: Network | NetworkPolicy
    sockets: tuple[int | str, ...] = ()
    has_cassette: bool = False
    secrets: dict[str, str] = {}
    resolver: str | None = None


class Sync(msgspec.Struct, frozen=True, kw_only=True, tag="sync"):
    """Report all that has happened, then answer."""

    tag: int


class Configured(msgspec.Struct, frozen=True, kw_only=True, tag="configured"):
    """The policy holds: what it forbids is closed. `certificate` is that of the authority, where it intercepts."""

    certificate: str | None = None


class Synced(msgspec.Struct, frozen=True, kw_only=True, tag="synced"):
    """All before `Sync` has been reported."""

    tag: int


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """Events, in order; `lost` events before these did not fit."""

    events: tuple[NetworkEvent, ...]
    lost: int = 0


FromEgress = Configured | Synced | Report

# A packet with this content carries a file with a Configure, which can be large, and then the sockets.
CONFIGURE = b"configure"

TOTALS_BYTES = 8 * len(Totals.__struct_fields__)

_encoder = msgspec.json.Encoder()
_configure = msgspec.json.Decoder(Configure)
_sync = msgspec.json.Decoder(Sync)
_from_egress: msgspec.json.Decoder[FromEgress] = msgspec.json.Decoder(FromEgress)


def encode(message: Configure | Sync | FromEgress) -> bytes:
    """One message."""
    return _encoder.encode(message)


def decode_totals(data: bytes) -> Totals:
    """The content of the file of totals; of one that is too short, zeros."""
    counters = memoryview(data[:TOTALS_BYTES].ljust(TOTALS_BYTES, b"\0")).cast("Q")
    return Totals(**dict(zip(Totals.__struct_fields__, counters, strict=True)))


def decode_configuration(data: bytes) -> Configure:
    """The content of the file that comes with a configuration."""
    return _configure.decode(data)


def decode_sync(data: bytes) -> Sync:
    """The only other packet of a runtime."""
    return _sync.decode(data)


def decode_from_egress(data: bytes) -> FromEgress:
    """Decode a message of the egress process. Raises msgspec.DecodeError."""
    return _from_egress.decode(data)
