"""HTTP upgrade from a connection to a server to a connection to a port: then bytes as they are."""

from typing import Final

from cove.errors import Internal

PROTOCOL: Final = b"tcp"
END_OF_HEAD: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length"


def render_upgrade(
    target: str, host: str, authorization: str | None = None, upgrade: str = "Upgrade: tcp\r\n"
) -> bytes:
    """The head of the request; `upgrade` is whole lines."""
    key = f"Authorization: {authorization}\r\n" if authorization is not None else ""
    return f"GET {target} HTTP/1.1\r\nHost: {host}\r\n{key}Connection: Upgrade\r\n{upgrade}\r\n".encode()


def parse_upgrade(head: bytes) -> tuple[int, int]:
    """The status of the answer, and how long its body is; after 101 there is none."""
    status, *headers = head.split(b"\r\n")
    words = status.split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise Internal(f"the server answered something that is no HTTP: {head[:200]!r}")
    lengths = [value for name, _, value in (line.partition(b":") for line in headers) if name.lower() == _LENGTH]
    return int(words[1]), int(lengths[0]) if lengths and lengths[0].strip().isdigit() else 0
