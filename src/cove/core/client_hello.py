"""Read the server name (SNI) of a TLS ClientHello, without decrypting anything: RFC 8446, section 4.1.2; RFC 6066.

A hello may come in several records and in any number of pieces. `read_server_name` is given all that has come so far
and says that it is incomplete, or what it names; anything that is no ClientHello raises NotTls. It reads no more than
`MOST_BYTES`: a hello with post-quantum keys and tickets has about 2 KiB.
"""

from collections.abc import Iterator
from dataclasses import dataclass

MOST_BYTES = 32 << 10
_MOST_RECORDS = 64

_HANDSHAKE = 22
_CLIENT_HELLO = 1
_SERVER_NAME = 0
_HOST_NAME = 0


class NotTls(ValueError):
    """These bytes are not the beginning of a TLS connection."""


@dataclass(frozen=True, slots=True)
class ClientHello:
    """A complete one; `server_name` is None when the client names no server."""

    server_name: str | None


def read_server_name(data: bytes) -> ClientHello | None:
    """The hello that begins this stream, or None while it is incomplete. Raises NotTls."""
    message = _join_records(data)
    if message and message[0] != _CLIENT_HELLO:
        raise NotTls("the first handshake message is no ClientHello")
    length = int.from_bytes(message[1:4], "big")
    if length > MOST_BYTES:
        raise NotTls(f"a ClientHello of {length} bytes is too large")
    if len(message) < 4 + length:
        if len(data) > MOST_BYTES:
            raise NotTls("the ClientHello does not end")
        return None
    return ClientHello(_find_server_name(_Fields(message[4 : 4 + length])))


def _join_records(data: bytes) -> bytes:
    """The handshake bytes of all records, the last of which may be incomplete."""
    parts: list[bytes] = []
    start = 0
    while start < len(data):
        if len(parts) == _MOST_RECORDS:
            raise NotTls(f"the ClientHello is in more than {_MOST_RECORDS} records")
        head = data[start : start + 5]
        if head[0] != _HANDSHAKE or head[1:2] not in (b"", b"\3"):
            raise NotTls("this is not a TLS handshake")
        length = int.from_bytes(head[3:], "big")
        if len(head) == 5 and not 0 < length <= 1 << 14:
            raise NotTls(f"a record of {length} bytes is not allowed")
        parts.append(data[start + 5 : start + 5 + length])
        start += 5 + length
    return b"".join(parts)


class _Fields:
    """Take one field after the other; what is too short raises NotTls."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_empty(self) -> bool:
        return self._at == len(self._data)

    def take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) != size:
            raise NotTls("the ClientHello is cut short")
        self._at += size
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, length_size: int) -> "_Fields":
        return _Fields(self.take(self.number(length_size)))


def _find_server_name(hello: _Fields) -> str | None:
    hello.take(2 + 32)  # version, random
    hello.vector(1)  # session
    hello.vector(2)  # cipher suites
    hello.vector(1)  # compression
    if hello.is_empty:
        return None
    extensions = hello.vector(2)
    found: list[str] = []
    while not extensions.is_empty:
        kind = extensions.number(2)
        content = extensions.vector(2)
        if kind == _SERVER_NAME:
            found += _host_names(content.vector(2))
    if len(found) > 1:
        raise NotTls("the ClientHello names more than one server")
    return found[0] if found else None


def _host_names(names: _Fields) -> Iterator[str]:
    while not names.is_empty:
        kind = names.number(1)
        name = names.vector(2)
        if kind == _HOST_NAME:
            try:
                yield name.take(len(name._data)).decode("ascii").lower()
            except UnicodeDecodeError:
                raise NotTls("the server name is not ASCII") from None


def alert(description: int) -> bytes:
    """A fatal alert: what a refused client is told before anything else. 49 is `access_denied`."""
    return bytes((21, 3, 3, 0, 2, 2, description))


ACCESS_DENIED = alert(49)
