import ssl
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.core.client_hello import MOST_BYTES, ClientHello, NotTls, read_server_name

pytestmark = pytest.mark.pure


def hello(name: str | None, *, protocols: tuple[str, ...] = ("h2", "http/1.1")) -> bytes:
    """What OpenSSL really sends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(list(protocols))
    outgoing = ssl.MemoryBIO()
    connection = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


def in_records(message: bytes, size: int) -> bytes:
    parts = [message[start : start + size] for start in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)


def test_the_name_that_a_client_asks_for_is_read() -> None:
    assert read_server_name(hello("files.example")) == ClientHello("files.example")
    assert read_server_name(hello("FILES.Example")) == ClientHello("files.example")


def test_a_client_may_name_no_server() -> None:
    assert read_server_name(hello(None)) == ClientHello(None)


def test_a_hello_is_incomplete_until_its_last_byte() -> None:
    whole = hello("files.example")
    assert all(read_server_name(whole[:end]) is None for end in range(len(whole)))


@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_hello_may_come_in_many_records(size: int) -> None:
    assert read_server_name(in_records(hello("files.example")[5:], size)) == ClientHello("files.example")


def test_what_follows_the_hello_is_not_read() -> None:
    assert read_server_name(hello("a.example") + b"\x16\x03\x03\x00\x05abcde") == ClientHello("a.example")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"SSH-2.0-x",
        b"\x16\x02",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\xff\xff",
        b"\x16\x03\x01\x00\x01\x02",
        b"\x16\x03\x01\x00\x04\x01\x00\xff\xff",
        in_records(b"\x01\x00\x00\x02\x03\x03", 6),
        in_records(b"\x01\x00\x00\x28" + bytes(34) + b"\x09abcde", 64),
    ],
)
def test_what_is_no_hello_is_refused(data: bytes) -> None:
    with pytest.raises(NotTls):
        read_server_name(data)


def test_a_hello_that_does_not_end_is_refused() -> None:
    endless = in_records(b"\x01\x00\x7f\xff" + bytes(100), 1)
    while len(endless) <= MOST_BYTES:
        endless += b"\x16\x03\x01\x00\x01\x00"
    with pytest.raises(NotTls, match="does not end"):
        read_server_name(endless)


def test_a_name_that_is_not_ascii_is_refused() -> None:
    whole = hello("files.example").replace(b"files.example", b"f\xefles.example")
    with pytest.raises(NotTls, match="ASCII"):
        read_server_name(whole)


def test_a_hello_without_extensions_names_no_server() -> None:
    body = bytes(34) + b"\0" + b"\0\2\x13\1" + b"\1\0"
    assert read_server_name(in_records(b"\1" + len(body).to_bytes(3, "big") + body, 64)) == ClientHello(None)


def test_a_name_of_another_kind_is_passed_over() -> None:
    names = b"\7\0\1x"
    extension = b"\0\0" + (len(names) + 2).to_bytes(2, "big") + len(names).to_bytes(2, "big") + names
    body = bytes(34) + b"\0" + b"\0\2\x13\1" + b"\1\0" + len(extension).to_bytes(2, "big") + extension
    assert read_server_name(in_records(b"\1" + len(body).to_bytes(3, "big") + body, 64)) == ClientHello(None)


@given(st.binary(max_size=200), st.integers(0, 300))
def test_any_bytes_are_read_or_refused(noise: bytes, at: int) -> None:
    whole = hello("files.example")
    with suppress(NotTls):
        read_server_name(whole[:at] + noise + whole[at:])
