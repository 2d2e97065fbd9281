import ssl
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.core.client_hello import ACCESS_DENIED, MOST_BYTES, ClientHello, NotTls, read_server_name

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


def test_records_may_differ_in_size() -> None:
    message = hello("files.example")[5:]
    data = in_records(message[:10], 10) + in_records(message[10:], 30) + in_records(b"more", 2)
    assert read_server_name(data) == ClientHello("files.example")


def test_all_records_are_of_a_handshake() -> None:
    message = hello("files.example")[5:]
    for other in (b"\x17\x03\x01", b"\x16\x02\x01", b"\x16\x04\x01"):
        with pytest.raises(NotTls, match="handshake"):
            read_server_name(in_records(message[:10], 10) + other + b"\0\1x")


def test_a_record_has_a_byte_at_least_and_16_kibibytes_at_most() -> None:
    for length in (1, 1 << 14):
        assert read_server_name(b"\x16\x03\x01" + length.to_bytes(2, "big") + b"\1") is None
    for length in (0, (1 << 14) + 1):
        with pytest.raises(NotTls, match="not allowed"):
            read_server_name(b"\x16\x03\x01" + length.to_bytes(2, "big") + hello("a.example"))


@pytest.mark.parametrize("count", [2, 5, 64])
def test_a_hello_may_come_in_several_records(count: int) -> None:
    message = hello("files.example")[5:]
    message += bytes(-len(message) % count)
    data = in_records(message, len(message) // count)
    assert read_server_name(data) == ClientHello("files.example")


def test_a_hello_comes_in_64_records_at_most() -> None:
    message = hello("files.example")[5:]
    assert read_server_name(in_records(message[:64], 1)) is None
    with pytest.raises(NotTls, match="64 records"):
        read_server_name(in_records(message[:65], 1))


def named(*entries: bytes, extensions: int = 1) -> bytes:
    """A hello with these entries in its list of servers, in that many equal extensions."""
    names = b"".join(entries)
    extension = b"\0\0" + (len(names) + 2).to_bytes(2, "big") + len(names).to_bytes(2, "big") + names
    body = b"\3\3" + bytes(32) + b"\0" + b"\0\2\x13\1" + b"\1\0"
    body += (len(extension) * extensions).to_bytes(2, "big") + extension * extensions
    return in_records(b"\1" + len(body).to_bytes(3, "big") + body, 1 << 14)


ONE = b"\0\0\5a.com"


def test_a_hello_that_names_two_servers_is_refused() -> None:
    assert read_server_name(named(ONE)) == ClientHello("a.com")
    assert read_server_name(named(b"\7\0\5other", ONE)) == ClientHello("a.com")
    for data in (named(ONE, b"\0\0\5b.com"), named(ONE, ONE), named(ONE, extensions=2)):
        with pytest.raises(NotTls, match="more than one server"):
            read_server_name(data)


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
        b"\x16\x03\x01\x00\x04\x01\x01\x00\x00",
        b"\x16\x03\x01\x00\x04\x01\x00\x00\x00",
        in_records(b"\x01\x00\x00\x02\x03\x03", 6),
        in_records(b"\x01\x00\x00\x28" + bytes(34) + b"\x09abcde", 64),
    ],
)
def test_what_is_no_hello_is_refused(data: bytes) -> None:
    with pytest.raises(NotTls):
        read_server_name(data)


def test_a_hello_that_does_not_end_is_refused() -> None:
    endless = in_records(b"\x01\x00\x7f\xff" + bytes(MOST_BYTES), 1 << 10)
    assert read_server_name(endless[:MOST_BYTES]) is None
    with pytest.raises(NotTls, match="does not end"):
        read_server_name(endless[: MOST_BYTES + 1])


def test_a_hello_that_is_announced_too_large_is_refused_at_once() -> None:
    assert read_server_name(in_records(b"\1" + MOST_BYTES.to_bytes(3, "big"), 4)) is None
    for length in (MOST_BYTES + 1, 1 << 16):
        with pytest.raises(NotTls, match="too large"):
            read_server_name(in_records(b"\1" + length.to_bytes(3, "big"), 4))


def test_a_name_that_is_not_ascii_is_refused() -> None:
    whole = hello("files.example").replace(b"files.example", b"f\xefles.example")
    with pytest.raises(NotTls, match="ASCII"):
        read_server_name(whole)


def test_a_hello_without_extensions_names_no_server() -> None:
    body = bytes(34) + b"\0" + b"\0\2\x13\1" + b"\1\0"
    message = b"\1" + len(body).to_bytes(3, "big") + body
    assert read_server_name(in_records(message, 64)) == ClientHello(None)
    assert read_server_name(in_records(message + b"another message", 64)) == ClientHello(None)


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


def test_a_client_that_is_sent_the_alert_says_that_access_was_denied() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    incoming = ssl.MemoryBIO()
    connection = context.wrap_bio(incoming, ssl.MemoryBIO(), server_hostname="a.example")
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    incoming.write(ACCESS_DENIED)
    with pytest.raises(ssl.SSLError, match="ACCESS_DENIED"):
        connection.do_handshake()
    assert ACCESS_DENIED == b"\x15\x03\x03\x00\x02\x02\x31"
