"""The rtnetlink messages that give a network namespace its synthetic addresses: rtnetlink(7), as bytes to send."""

import socket
import struct
from collections.abc import Sequence

# 198.18.0.0/15 is for benchmarks (RFC 2544): it is nobody's on the internet, and no private network's either.
ADDRESS = "198.18.0.1"
RANGE = "198.18.0.0"
RANGE_BITS = 15

_HEADER = struct.Struct("=IHHII")
_ADDRESS = struct.Struct("=BBBBI")
_ROUTE = struct.Struct("=BBBBBBBBI")
_ATTRIBUTE = struct.Struct("=HH")

_RTM_NEWADDR, _RTM_NEWROUTE = 20, 24
# Asks, wants an acknowledgement, creates, and replaces what is there: a second time is none.
_FLAGS = 0x1 | 0x4 | 0x400 | 0x100
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_DST, _RTA_OIF, _RTA_PREFSRC = 1, 4, 7
_TABLE_LOCAL, _PROTOCOL_STATIC, _SCOPE_HOST, _TYPE_LOCAL = 255, 4, 254, 2
_HOST_BITS = 32
_LOOPBACK = 1  # the first interface of every namespace


def messages(addresses: Sequence[str] = ()) -> list[bytes]:
    """Build one address, without which glibc looks up no names, and AnyIP: every address of the range is local.

    So are these single addresses.
    """
    return [_address(), _route(RANGE, RANGE_BITS), *(_route(address, _HOST_BITS) for address in addresses)]


def _address() -> bytes:
    head = _ADDRESS.pack(socket.AF_INET, _HOST_BITS, 0, 0, _LOOPBACK)
    address = socket.inet_aton(ADDRESS)
    return _message(_RTM_NEWADDR, head, {_IFA_LOCAL: address, _IFA_ADDRESS: address})


def _route(network: str, bits: int) -> bytes:
    head = _ROUTE.pack(socket.AF_INET, bits, 0, 0, _TABLE_LOCAL, _PROTOCOL_STATIC, _SCOPE_HOST, _TYPE_LOCAL, 0)
    attributes = {
        _RTA_DST: socket.inet_aton(network),
        _RTA_OIF: struct.pack("=I", _LOOPBACK),
        _RTA_PREFSRC: socket.inet_aton(ADDRESS),
    }
    return _message(_RTM_NEWROUTE, head, attributes)


def _message(kind: int, head: bytes, attributes: dict[int, bytes]) -> bytes:
    """Every attribute here has four bytes, so that none needs padding."""
    body = head + b"".join(_ATTRIBUTE.pack(4 + len(data), name) + data for name, data in attributes.items())
    return _HEADER.pack(_HEADER.size + len(body), kind, _FLAGS, 1, 0) + body
