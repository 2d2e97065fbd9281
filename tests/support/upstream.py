"""Hosts of a test's own: a certificate authority, a name server and servers on loopback, in a thread."""

import asyncio
import ipaddress
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Upstream:
    """What the world has: `addresses` by name (a list is given in turn), `ca` signs, `requests` came in.

    `aliases` are names (CNAME) of others.
    """

    loop: asyncio.AbstractEventLoop
    directory: Path
    addresses: dict[str, Sequence[str]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)
    bodies: list[int] = field(default_factory=list)
    resolver: str = ""
    _turns: dict[str, int] = field(default_factory=dict)
    _servers: list[asyncio.Server] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        certificate = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = self.directory / "ca.pem"
        self.ca.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
        )

    def context(self, *names: str) -> ssl.SSLContext:
        """A server's, for these names."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        certificate = (
            self._builder(subject, key.public_key())
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        path = self.directory / f"{names[0]}.pem"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    def serve(self, serve: Serve, *names: str, tls: bool = False, address: str = "127.0.0.1", port: int = 0) -> int:
        """Serve connections to these names at that address; returns the port."""
        context = self.context(*names) if tls else None

        async def start() -> asyncio.Server:
            return await asyncio.start_server(serve, address, port, ssl=context)

        server = asyncio.run_coroutine_threadsafe(start(), self.loop).result(10)
        self._servers.append(server)
        for name in names:
            self.addresses.setdefault(name, [address])
        return int(server.sockets[0].getsockname()[1])

    def serve_http(
        self, *names: str, tls: bool = False, body: bytes = b"hello", headers: Mapping[str, str] | None = None
    ) -> int:
        """Answer every request with this body, and keep the heads."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items()).encode()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while head := await reader.readuntil(b"\r\n\r\n"):
                    self.requests.append(head)
                    writer.write(b"HTTP/1.1 200 OK\r\n" + lines + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                    await writer.drain()
            except (asyncio.IncompleteReadError, OSError):
                pass
            finally:
                writer.close()

        return self.serve(serve, *names, tls=tls)

    def serve_site(self, site: Mapping[str, bytes], *names: str, tls: bool = False) -> int:
        """Serve files by path; bodies of requests are read, and their sizes kept in `bodies`."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while head := await reader.readuntil(b"\r\n\r\n"):
                    self.requests.append(head)
                    self.bodies.append(await _read_body(reader, head))
                    path = head.split()[1].decode().partition("?")[0]
                    found = site.get(path)
                    writer.write(_render(path, found, with_body=not head.startswith(b"HEAD ")))
                    await writer.drain()
                    if b"connection: close" in head.lower():
                        break
            except (asyncio.IncompleteReadError, OSError):
                pass
            finally:
                writer.close()

        return self.serve(serve, *names, tls=tls)

    def answer(self, query: bytes) -> bytes:
        """As a name server: names that are not known do not exist."""
        message = dns.message.from_wire(query)
        reply = dns.message.make_response(message, recursion_available=True)
        question = message.question[0]
        name = question.name.to_text(omit_final_dot=True)
        self.asked.append(name)
        owner = question.name
        if (alias := self.aliases.get(name)) is not None:
            reply.answer.append(dns.rrset.from_text(owner, 1, "IN", "CNAME", f"{alias}."))
            name, owner = alias, dns.name.from_text(alias)
        if name not in self.addresses:
            reply.set_rcode(dns.rcode.NXDOMAIN)
            return reply.to_wire()
        for address in self._current(name, question.rdtype):
            version = ipaddress.ip_address(address).version
            kind = "A" if version == 4 else "AAAA"
            if question.rdtype == dns.rdatatype.from_text(kind):
                reply.answer.append(dns.rrset.from_text(owner, 1, "IN", kind, address))
        return reply.to_wire()

    def _current(self, name: str, kind: dns.rdatatype.RdataType) -> Sequence[str]:
        found = self.addresses[name]
        if not any("," in each for each in found):
            return found
        turn = self._turns.get(name, 0)  # "first,then": another answer from the second query for A on
        if kind == dns.rdatatype.A:
            self._turns[name] = turn + 1
        return [each.split(",")[min(turn, each.count(","))] for each in found]


def _render(path: str, found: bytes | None, *, with_body: bool) -> bytes:
    body = found or b""
    status = b"404 Not Found" if found is None else b"200 OK"
    kind = b"text/html" if path.endswith("/") else b"application/octet-stream"
    head = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (status, kind, len(body))
    return head + body if with_body else head


async def _read_body(reader: asyncio.StreamReader, head: bytes) -> int:
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in head.splitlines())}
    if b"chunked" not in fields.get(b"transfer-encoding", b""):
        return len(await reader.readexactly(int(fields.get(b"content-length", 0))))
    total = 0
    while size := int(await reader.readline(), 16):
        await reader.readexactly(size + 2)
        total += size
    await reader.readline()
    return total


class _Names(asyncio.DatagramProtocol):
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
        self._transport.sendto(self._upstream.answer(data), sender)


@contextmanager
def running_upstream(directory: Path) -> Iterator[Upstream]:
    """A world for one test."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="upstream")
    thread.start()
    upstream = Upstream(loop, directory)

    async def open_names() -> asyncio.DatagramTransport:
        transport, _ = await loop.create_datagram_endpoint(lambda: _Names(upstream), ("127.0.0.1", 0))
        return transport

    async def close() -> None:
        names.close()
        for server in upstream._servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    try:
        names = asyncio.run_coroutine_threadsafe(open_names(), loop).result(10)
        host, port = names.get_extra_info("sockname")
        upstream.resolver = f"{host}:{port}"
        try:
            yield upstream
        finally:
            asyncio.run_coroutine_threadsafe(close(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
