"""A sandbox with a network policy beside the same program with the host's network, to the same server on loopback.

The program inside measures: it asks for pages on a kept connection, on new ones, and for many bytes at once.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bench.harness import Figure, Plan, Sample, Target, Unit, at_most, interleave, value_at_most
from cove import AsyncSandbox, NetworkPolicy, NetworkRule, Output
from cove.api import Process

_LARGE = 256 << 20
_NAME = "bench.example"
# Answers every request with as many bytes as its path says; the port and, for TLS, a certificate are arguments.
_SERVER = r"""
import socket, ssl, sys, threading
context = None
if len(sys.argv) > 1:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[1])
listener = socket.create_server(("127.0.0.1", 0), backlog=64)
print(listener.getsockname()[1], flush=True)
block = bytes(1 << 20)
def serve(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is not None:
        connection = context.wrap_socket(connection, server_side=True)
    while head := connection.recv(65536):
        left = int(head.split()[1].rpartition(b"/")[2])
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % left + block[:min(left, 100)])
        left -= min(left, 100)
        while left > 0:
            connection.sendall(block[:left])
            left -= len(block)
    connection.close()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
# Every name is this machine.
_NAMES = r"""
import socket, dns.message, dns.rrset
sock = socket.socket(type=socket.SOCK_DGRAM)
sock.bind(("127.0.0.1", 0))
print(sock.getsockname()[1], flush=True)
while True:
    data, sender = sock.recvfrom(4096)
    query = dns.message.from_wire(data)
    reply = dns.message.make_response(query)
    if query.question[0].rdtype == 1:
        reply.answer.append(dns.rrset.from_text(query.question[0].name, 1, "IN", "A", "127.0.0.1"))
    sock.sendto(reply.to_wire(), sender)
"""
# Does what a line says, and prints how long it took.
_CLIENT = r"""
import socket, ssl, sys, time
host, address, port, ca = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
context = ssl.create_default_context(cafile=ca[0]) if ca else None
def connect():
    sock = socket.create_connection((address, port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is not None:
        sock = context.wrap_socket(sock, server_hostname=host)
    return sock
def get(sock, size):
    sock.sendall(b"GET /%d HTTP/1.1\r\nHost: %s:%d\r\n\r\n" % (size, host.encode(), port))
    left = None
    while left is None or left > 0:
        data = sock.recv(1 << 20)
        if left is None:
            head, _, data = data.partition(b"\r\n\r\n")
            left = size
        left -= len(data)
kept = connect()
print("ready", flush=True)
for line in sys.stdin:
    what, size = line.split()
    began = time.perf_counter()
    if what == "kept":
        get(kept, int(size))
    elif what == "new":
        with connect() as sock:
            get(sock, int(size))
    else:
        socket.getaddrinfo(host, port)
    print(time.perf_counter() - began, flush=True)
"""


async def run(plan: Plan) -> list[Figure]:
    """Measure requests, connections, bytes and lookups, passed through and intercepted."""
    figures = []
    with tempfile.TemporaryDirectory(prefix="cove-bench-") as directory:
        pem = _certificate(Path(directory))
        with _program(_NAMES) as names, _environment(SSL_CERT_FILE=str(pem), COVE_RESOLVER=f"127.0.0.1:{names}"):
            figures.append(await _first_result(plan))
            with _program(_SERVER) as port:
                figures += await _figures("passed through", port, None, plan)
                figures.append(await _neighbour(port, plan))
            with _program(_SERVER, str(pem)) as port:
                figures += await _figures("intercepted", port, pem, plan)
    return figures


async def _first_result(plan: Plan) -> Figure:
    """A sandbox with a policy beside one without: created, and its first command run."""

    def creating(network: str | NetworkPolicy) -> Sample:
        async def sample() -> float:
            began = time.perf_counter()
            sandbox = await AsyncSandbox.create(network=network)  # type: ignore[arg-type]  # a mode by its name
            await sandbox.exec(["true"])
            took = time.perf_counter() - began
            await sandbox.destroy()
            return took

        return sample

    samples = [creating(NetworkPolicy(allow=[_NAME])), creating("none")]
    subject, floor = await interleave(samples, repetitions=plan.times(40, 10), warm_up=2)
    return Figure(
        name="network: first result with a policy", unit=Unit.SECONDS, subject=subject, floor=floor, floor_name="none"
    )


async def _neighbour(port: int, plan: Plan) -> Figure:
    """A command in another sandbox of this program, while bytes flow through the policy of the first, and not."""
    policy = NetworkPolicy(allow=[NetworkRule(f"{_NAME}:{port}", private=True)])
    async with AsyncSandbox.create(network=policy) as busy, AsyncSandbox.create() as neighbour:
        client = await _Client.start(busy, _NAME, port, None)

        async def alone() -> float:
            began = time.perf_counter()
            await neighbour.exec(["true"])
            return time.perf_counter() - began

        async def beside() -> float:
            flowing = asyncio.ensure_future(client.timing(f"kept {_LARGE}")())
            await asyncio.sleep(0.02)
            took = await alone()
            await flowing
            return took

        subject, floor = await interleave([beside, alone], repetitions=plan.times(40, 10), warm_up=2)
    return Figure(
        name="network: exec of a neighbour while bytes flow",
        unit=Unit.SECONDS,
        subject=subject,
        floor=floor,
        floor_name="exec alone",
        target=at_most(1.3),
    )


async def _figures(kind: str, port: int, pem: Path | None, plan: Plan) -> list[Figure]:
    rule = NetworkRule(f"{_NAME}:{port}", private=True, methods=["GET"] if pem else [])
    policy = NetworkPolicy(allow=[rule])
    bundle = None if pem is None else "/etc/ssl/certs/ca-certificates.crt"
    async with (
        AsyncSandbox.create(network=policy) as sandbox,
        AsyncSandbox.create(network="host") as unconfined,
    ):
        if pem is not None:
            await unconfined.files.write("ca.pem", pem.read_bytes())
        ours = await _Client.start(sandbox, _NAME, port, bundle)
        direct = await _Client.start(unconfined, "127.0.0.1", port, None if pem is None else "/workspace/ca.pem")
        times = plan.times(400, 100)
        least = 0.45 if pem is None else 0.25
        figures = [
            await _compare(
                f"a request, {kind}", ours, direct, "kept 100", times, at_most(1.8) if pem is None else None
            ),
            await _compare(f"a new connection, {kind}", ours, direct, "new 100", times // 4, None),
            await _compare(
                f"{_LARGE >> 20} MiB, {kind}", ours, direct, f"kept {_LARGE}", plan.times(8, 3), at_most(1 / least)
            ),
        ]
        if pem is None:
            figures.append(await _lookup(ours, times))
        return figures


async def _compare(
    name: str, ours: "_Client", direct: "_Client", line: str, times: int, target: Target | None
) -> Figure:
    subject, floor = await interleave([ours.timing(line), direct.timing(line)], repetitions=times, warm_up=2)
    return Figure(
        name=f"network: {name}",
        unit=Unit.SECONDS,
        subject=subject,
        floor=floor,
        floor_name="the host's network",
        target=target,
    )


async def _lookup(ours: "_Client", times: int) -> Figure:
    (subject,) = await interleave([ours.timing("name 0")], repetitions=times, warm_up=5)
    return Figure(name="network: a lookup", unit=Unit.SECONDS, subject=subject, target=value_at_most(0.001))


class _Client:
    """The program inside, which does what it is told and says how long it took."""

    def __init__(self, process: Process, lines: AsyncIterator[str]) -> None:
        self._process = process
        self._lines = lines

    @classmethod
    async def start(cls, sandbox: AsyncSandbox, address: str, port: int, bundle: str | None) -> "_Client":
        command = ["python3", "-c", _CLIENT, _NAME, address, str(port), *([bundle] if bundle else [])]
        process = await sandbox.start_process(command, stdin=True)
        client = cls(process, _lines(process))
        assert await anext(client._lines) == "ready"
        return client

    def timing(self, line: str) -> Sample:
        async def sample() -> float:
            await self._process.write_stdin(f"{line}\n")
            return float(await anext(self._lines))

        return sample


async def _lines(process: Process) -> AsyncIterator[str]:
    rest = ""
    async for event in process.logs():
        if isinstance(event, Output):
            *lines, rest = (rest + event.data.decode()).split("\n")
            for line in lines:
                yield line


@contextmanager
def _program(code: str, *arguments: str) -> Iterator[int]:
    """A server of ours, by the port that it prints."""
    with subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _certificate(directory: Path) -> Path:
    """A key and its certificate for the server's name, which is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = directory / "server.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path
