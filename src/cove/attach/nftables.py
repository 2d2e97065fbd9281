"""The nf_tables transaction that leads all TCP connections of a jail but its own to one socket, as bytes to send.

It makes, in the jail's own network namespace, what `nft` makes of this, and changes nothing when done again:

    table ip cove {
        chain track { type filter hook output priority raw
            meta l4proto != tcp notrack
            ip saddr 127.0.0.53 accept
            ip daddr 127.0.0.53 accept
            ip daddr 127.0.0.0/8 notrack }
        chain lead { type nat hook output priority dstnat
            ip daddr 127.0.0.0/8 accept
            ip daddr 198.18.0.1 accept
            meta l4proto tcp dnat to 127.0.0.53:54 }
    }

No other packets get that far: the namespace has routes to its synthetic addresses alone. The kernel remembers where a
connection wanted to go (SO_ORIGINAL_DST), also one straight to that socket; no others are tracked, so that what the
sandbox does on its loopback costs what it did. The port is one that nothing inside may bind.

The messages are those of nfnetlink, with the numbers of <linux/netfilter/nf_tables.h>: the program `nft` is not needed,
and would cost a start of its own.
"""

import socket
import struct

from cove.attach.netlink import ADDRESS

LEAD_PORT = 54

_HEADER = struct.Struct("=IHHII")
_FAMILY = struct.Struct("!BBH")
_ATTRIBUTE = struct.Struct("=HH")
_NESTED = 0x8000

_REQUEST, _ACKNOWLEDGE, _CREATE, _APPEND = 0x1, 0x4, 0x400, 0x800
_BATCH_BEGIN, _BATCH_END = 16, 17
_SUBSYSTEM = 10
_NEW_TABLE, _NEW_CHAIN, _NEW_RULE, _DELETE_RULE = (_SUBSYSTEM << 8 | kind for kind in (0, 3, 6, 8))
_TABLE = "cove"
_HOOK_OUTPUT = 3
_PRIORITY_RAW, _PRIORITY_DSTNAT = -300, -100
_VERDICT_REGISTER, _FIRST, _SECOND = 0, 1, 2
_META_PROTOCOL = 16
_NETWORK_HEADER, _SOURCE, _DESTINATION = 1, 12, 16
_EQUAL, _NOT_EQUAL = 0, 1
_NAT_DESTINATION = 1
_ACCEPT = 1


def transaction(address: str) -> bytes:
    """Build one batch, which the kernel takes whole or not at all; its last message is acknowledged."""
    loopback = _match(_DESTINATION, "127.0.0.0", 8)
    lead = (_immediate(_FIRST, socket.inet_aton(address)), _immediate(_SECOND, struct.pack("!H", LEAD_PORT)), _dnat())
    parts = [
        (_NEW_TABLE, _CREATE, _text(1, _TABLE)),
        *_chain("track", "filter", _PRIORITY_RAW),
        _rule("track", _protocol(_NOT_EQUAL), _expression("notrack")),
        _rule("track", _match(_SOURCE, address, 32), _accept()),
        _rule("track", _match(_DESTINATION, address, 32), _accept()),
        _rule("track", loopback, _expression("notrack")),
        *_chain("lead", "nat", _PRIORITY_DSTNAT),
        _rule("lead", loopback, _accept()),
        _rule("lead", _match(_DESTINATION, ADDRESS, 32), _accept()),
    ]
    return b"".join(
        [
            _message(_BATCH_BEGIN, 0, b"", 0, _SUBSYSTEM),
            *(_message(*part, socket.AF_INET) for part in parts),
            _message(*_rule("lead", _protocol(_EQUAL), *lead, flags=_ACKNOWLEDGE), socket.AF_INET),
            _message(_BATCH_END, 0, b"", 0, _SUBSYSTEM),
        ]
    )


Part = tuple[int, int, bytes]


def _chain(name: str, kind: str, priority: int) -> list[Part]:
    """A chain that every packet of this namespace passes on its way out, and that is empty."""
    hook = _nest(4, _number(1, _HOOK_OUTPUT), _attribute(2, struct.pack("!i", priority)))
    return [
        (_NEW_CHAIN, _CREATE, _text(1, _TABLE) + _text(3, name) + hook + _text(7, kind)),
        (_DELETE_RULE, 0, _text(1, _TABLE) + _text(2, name)),
    ]


def _rule(chain: str, *expressions: bytes, flags: int = 0) -> Part:
    return _NEW_RULE, _CREATE | _APPEND | flags, _text(1, _TABLE) + _text(2, chain) + _nest(4, *expressions)


def _protocol(comparison: int) -> bytes:
    load = _expression("meta", _number(2, _META_PROTOCOL), _number(1, _FIRST))
    return load + _compare(comparison, bytes([socket.IPPROTO_TCP]))


def _match(offset: int, address: str, bits: int) -> bytes:
    """Compare the address at that offset of the packet's header."""
    mask = struct.pack("!I", (0xFFFFFFFF << (32 - bits)) & 0xFFFFFFFF)
    load = (_number(1, _FIRST), _number(2, _NETWORK_HEADER), _number(3, offset), _number(4, 4))
    masked = (_number(1, _FIRST), _number(2, _FIRST), _number(3, 4), _data(4, mask), _data(5, bytes(4)))
    network = _compare(_EQUAL, socket.inet_aton(address))
    return _expression("payload", *load) + _expression("bitwise", *masked) + network


def _compare(comparison: int, data: bytes) -> bytes:
    return _expression("cmp", _number(1, _FIRST), _number(2, comparison), _data(3, data))


def _immediate(register: int, data: bytes) -> bytes:
    return _expression("immediate", _number(1, register), _data(2, data))


def _accept() -> bytes:
    return _expression("immediate", _number(1, _VERDICT_REGISTER), _nest(2, _nest(2, _number(1, _ACCEPT))))


def _dnat() -> bytes:
    return _expression(
        "nat", _number(1, _NAT_DESTINATION), _number(2, socket.AF_INET), _number(3, _FIRST), _number(5, _SECOND)
    )


def _expression(name: str, *attributes: bytes) -> bytes:
    return _nest(1, _text(1, name), _nest(2, *attributes))


def _message(kind: int, flags: int, body: bytes, family: int, resource: int = 0) -> bytes:
    size = _HEADER.size + _FAMILY.size + len(body)
    return _HEADER.pack(size, kind, flags | _REQUEST, 0, 0) + _FAMILY.pack(family, 0, resource) + body


def _attribute(kind: int, data: bytes) -> bytes:
    size = _ATTRIBUTE.size + len(data)
    return _ATTRIBUTE.pack(size, kind) + data + bytes(-size % 4)


def _nest(kind: int, *attributes: bytes) -> bytes:
    return _attribute(kind | _NESTED, b"".join(attributes))


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack("!I", value))


def _text(kind: int, text: str) -> bytes:
    return _attribute(kind, text.encode() + b"\0")


def _data(kind: int, data: bytes) -> bytes:
    return _nest(kind, _attribute(1, data))
