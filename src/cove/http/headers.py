"""Hop-by-hop headers: what a proxy does not pass on, because it concerns one connection only (RFC 9110, 7.6.1)."""

from typing import Final

HOP_BY_HOP: Final = frozenset(
    (
        *(b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
        *(b"proxy-authorization", b"proxy-authenticate", b"proxy-connection"),
    )
)
# Removing one of these would smuggle a request, or have it taken for another host's.
_NEVER: Final = frozenset((b"content-length", b"host"))
_OPTIONS: Final = frozenset((b"keep-alive", b"close", b"upgrade", b""))


def hop_by_hop(connection: bytes | None, dropped: frozenset[bytes] = HOP_BY_HOP) -> frozenset[bytes]:
    """Return `dropped` with the headers that a Connection header names besides."""
    if connection is None:
        return dropped
    named = frozenset(name.strip().lower() for name in connection.split(b",")) - _OPTIONS - _NEVER
    return dropped | named if named else dropped


def render_framing(upgrade: bytes | None, *, is_chunked: bool) -> bytes:
    """Return the header lines of our own connection: what it is upgraded to, and how the body is framed."""
    lines = b"connection: upgrade\r\nupgrade: %b\r\n" % upgrade if upgrade is not None else b""
    return lines + b"transfer-encoding: chunked\r\n" if is_chunked else lines
