"""TLS ClientHello: incremental, bounded, and the same name as OpenSSL sees."""

import ssl
from collections.abc import Iterator
from contextlib import suppress

from cove.core.client_hello import ClientHello, NotTls, read_server_name

MOST_BYTES = 2048


def check(data: bytes) -> None:
    """What is judged is what a TLS server would understand, and no byte more decides."""
    try:
        hello = read_server_name(data)
    except NotTls:
        hello = None
    _check_prefixes(data, hello)
    if hello is None:
        return
    seen = _seen_by_openssl(data)
    if seen is not None:
        assert hello.server_name == seen[0], (hello, seen)


def _check_prefixes(data: bytes, whole: ClientHello | None) -> None:
    """Nothing is decided before the end that is decided otherwise at it."""
    for size in {1, 5, 9, len(data) // 2, len(data) - 1} & set(range(len(data))):
        try:
            hello = read_server_name(data[:size])
        except NotTls:
            assert whole is None
            return
        if hello is not None:
            assert whole is None or hello == whole


def _seen_by_openssl(data: bytes) -> tuple[str | None] | None:
    """The name that OpenSSL reads from a hello that it takes; None for one that it does not."""
    seen: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.sni_callback = lambda _socket, name, _context: seen.append(name)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(incoming, outgoing, server_side=True)
    incoming.write(data)
    with suppress(ssl.SSLError):
        server.do_handshake()
    return (seen[0] if seen[0] is None else seen[0].lower(),) if seen else None


def seeds() -> Iterator[bytes]:
    """Hellos of this machine's OpenSSL, whole and in several records."""
    for name, versions in (("example.com", None), ("A.B-c.Example", ssl.TLSVersion.TLSv1_2), (None, None)):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2", "http/1.1"])
        if versions is not None:
            context.maximum_version = versions
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing, server_hostname=name)
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
        hello = outgoing.read()
        yield hello
        body = hello[5:]
        yield b"".join(
            b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part
            for part in (body[at : at + 100] for at in range(0, len(body), 100))
        )
