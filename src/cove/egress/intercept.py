"""Judge the single requests of one connection: end its TLS here, read each request, and write it anew upstream.

Theory of operation. The sandbox's authority signs for the name that the connection is for, whatever the client asks:
one that names another host is refused in the handshake. Every request is parsed by the strict parser of `cove.http`,
so that what is judged is what is sent: method, path and headers are written anew, the framing is our own, `Host` is the
name. Secrets are added here, over TLS that proves the host, and blanked out in what comes back. The answer is parsed
and written anew too, as from an enemy.

HTTP/2 is not offered: clients fall back to HTTP/1.1, and there is one parser on the path of a secret.
"""

import asyncio
import base64
import hashlib
import socket
import ssl
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from cove.core.network_policy import Allowed, Failed, Refused, judge_headers, judge_request
from cove.core.redaction import forms_of
from cove.egress.intercept_relay import InterceptRelay
from cove.egress.refusal import RequestRefused, describe, refusal
from cove.egress.resolver import AddressRefused, NameUnknown, Unreachable
from cove.egress.upstream import Upstream, open_secure_upstream, open_upstream
from cove.http import HttpServer, Relay, Request, Response
from cove.http.connection import HttpConnection
from cove.http.parser import HttpLimits
from cove.model.network import NetworkEventKind, NetworkRule
from cove.tasks import Tasks

if TYPE_CHECKING:
    from cove.egress.connection import Connection
    from cove.egress.gate import Gate

_HANDSHAKE_SECONDS = 15.0
_LIMITS = HttpLimits(connections=1, headers=200, buffered_body_bytes=32 << 10)
# So many connections at a time may have all that the kernel holds for them in our memory; others this much.
MOST_LARGE = 64
_SMALL_BYTES = 8 << 10  # which the kernel doubles


@dataclass(frozen=True, slots=True)
class Injection:
    """Additions of the host to a request: headers, query parameters, and every form of a secret to blank out."""

    headers: tuple[tuple[bytes, bytes], ...] = ()
    query: str = ""
    values: tuple[bytes, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is added."""
        return not self.values


def make_injection(rule: NetworkRule | None, secrets: Mapping[str, str]) -> Injection:
    """Fill in the secrets of a rule. Raises RequestRefused for one that is not to be had: nothing goes out without."""
    if rule is None or not rule.secrets:
        return Injection()
    for secret in rule.secrets:
        if secret.name not in secrets:
            raise RequestRefused(Failed(f"secret {secret.name} is not to be had (SECRET_UNAVAILABLE)"), 503)
    headers = {name: secret.format.replace("{}", secrets[secret.name]) for name, secret in rule.inject.items()}
    if rule.basic_auth is not None:
        pair = rule.basic_auth.format.replace("{}", secrets[rule.basic_auth.name])
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    query = {name: secret.format.replace("{}", secrets[secret.name]) for name, secret in rule.query.items()}
    forms = [form for secret in rule.secrets for form in forms_of(secrets[secret.name])]
    forms += [value.removeprefix("Basic ").rstrip("=") for value in headers.values() if value.startswith("Basic ")]
    return Injection(
        headers=tuple((name.lower().encode("latin-1"), value.encode()) for name, value in headers.items()),
        query="&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query.items()),
        values=tuple(value.encode() for value in dict.fromkeys(forms)),
    )


class Interception:
    """Serves the requests of one connection, with one connection upstream at a time."""

    def __init__(self, connection: "Connection", gate: "Gate") -> None:
        self._connection = connection
        self._gate = gate
        self.host = connection.host
        self._is_tls = self._is_large = True
        self._upstream: Upstream | None = None
        self._server = HttpServer(self._handle, [], describe=describe, limits=_LIMITS, grace=0)
        self._tasks = Tasks()

    async def serve(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        """Answer requests on this socket until it ends. Raises OSError when there is no handshake."""
        self._is_tls = context is not None
        self._is_large = self._gate.take_large()
        self._bound(sock)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: HttpConnection(self._server, _LIMITS),
                sock,
                ssl=context,
                ssl_handshake_timeout=None if context is None else _HANDSHAKE_SECONDS,
            )
            await self._server.until_all_gone()
        finally:
            if self._is_large:
                self._gate.give_back_large()
            self.end()
            await self._tasks.aclose()
            await self._server.aclose()

    def _bound(self, sock: socket.socket) -> None:
        """Let the kernel hold little for one of many connections: what it holds is read, and waits here, at once."""
        if not self._is_large:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BYTES)

    def end(self) -> None:
        """End everything at once."""
        if self._upstream is not None:
            self._upstream.abort()
        self._server.abort()

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Own a task of a request."""
        self._tasks.start(work)

    def _handle(self, request: Request) -> Response | Relay | Coroutine[object, object, Response]:
        started = time.monotonic()
        try:
            rule = self._check(request)
            if self._gate.policy.replay is not None:
                return self._replay(request)
            injection = make_injection(rule, self._gate.secrets)
        except RequestRefused as error:
            self.report(request, error.refused, error.status, time.monotonic() - started)
            return refusal(error)
        return InterceptRelay(self, request, injection)

    def _check(self, request: Request) -> NetworkRule | None:
        """The rule that allows the request. Raises RequestRefused."""
        verdict = self._connection.judge()
        if isinstance(verdict, Refused):
            raise RequestRefused(verdict)
        if (refused := self._gate.admit_request()) is not None:
            raise RequestRefused(refused, 429)
        host = request.headers.get(b"host", b"").decode("latin-1").lower()
        if host not in (self.host_header, f"{self.host}:{self._connection.port}"):
            raise RequestRefused(Refused(f"the request is for {host or 'no host'}, the connection for {self.host}"))
        if verdict.rule is not None:
            self._check_rule(verdict.rule, request)
        return verdict.rule

    def _check_rule(self, rule: NetworkRule, request: Request) -> None:
        if (refused := judge_request(rule, self.host, request.method, request.path)) is not None:
            raise RequestRefused(refused)
        names = (name.decode("latin-1") for name in request.headers)
        if (refused := judge_headers(rule, self.host, names)) is not None:
            raise RequestRefused(refused)
        if request.is_upgrade:
            self._check_upgrade(rule, request.headers.get(b"upgrade", b""))
        if rule.secrets and not self._is_tls:
            raise RequestRefused(Refused(f"secrets go to {self.host} over TLS only"))

    def _check_upgrade(self, rule: NetworkRule, protocol: bytes) -> None:
        """Any other protocol (h2c) would carry requests that nobody judges."""
        if protocol.lower() != b"websocket":
            raise RequestRefused(Refused(f"an upgrade of {self.host} to {protocol.decode('latin-1')} is not allowed"))
        if not rule.websocket:
            raise RequestRefused(Refused(f"an upgrade to {self.host} is not allowed", f"{rule.host}, websocket=True"))

    @property
    def host_header(self) -> str:
        """Value of the Host header of a request."""
        port = self._connection.port
        return self.host if port == (443 if self._is_tls else 80) else f"{self.host}:{port}"

    def url_of(self, request: Request) -> str:
        """Return the URL by which a cassette knows the request: without what is injected."""
        query = f"?{request.query}" if request.query else ""
        return f"{'https' if self._is_tls else 'http'}://{self.host_header}{request.path}{query}"

    async def open(self) -> Upstream:
        """The connection of the last request if it can be used again, or a new one. Raises RequestRefused."""
        if self._upstream is not None and not self._upstream.is_lost:
            return self._upstream
        verdict = self._connection.judge()
        if isinstance(verdict, Refused):
            raise RequestRefused(verdict)
        self._upstream = await self._connect(verdict)
        return self._upstream

    async def _connect(self, allowed: Allowed) -> Upstream:
        port = self._connection.port
        if allowed.is_replayed:
            raise RequestRefused(Refused(f"{self.host}:{port}: a policy that replays reaches nothing"))
        try:
            sock = await self._gate.resolver.connect(self.host, port, private=allowed.is_private)
            self._bound(sock)
            make = partial(Upstream, self._count_sent, self._count_received)
            if not self._is_tls:
                return await open_upstream(sock, make)
            return await open_secure_upstream(sock, self.host, self._gate.trust.context, make)
        except AddressRefused as error:
            raise RequestRefused(Refused(str(error))) from None
        except (NameUnknown, Unreachable, OSError) as error:
            raise RequestRefused(Failed(f"{self.host}:{port} cannot be reached: {error}"), 502) from None

    def _count_sent(self, size: int) -> None:
        if not self._connection.count_sent(size):
            self.end()

    def _count_received(self, size: int) -> None:
        if not self._connection.count_received(size):
            self.end()

    @property
    def is_recorded(self) -> bool:
        """Return whether answers are recorded."""
        return self._gate.policy.record is not None

    @property
    def gate(self) -> "Gate":
        """The gate that the sandbox's connections share."""
        return self._gate

    async def _replay(self, request: Request) -> Response:
        started = time.monotonic()
        digest = hashlib.sha256()
        async for data in request.chunks():
            digest.update(data)
        recorded = self._gate.replay(request.method, self.url_of(request), digest.hexdigest())
        if recorded is None:
            error = RequestRefused(
                Refused(f"the cassette has no answer left to {request.method} {self.url_of(request)}")
            )
            self.report(request, error.refused, error.status, time.monotonic() - started)
            return refusal(error)
        self.report(request, None, recorded.status, time.monotonic() - started)
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in recorded.headers]
        return Response(recorded.status, headers, recorded.body)

    def report(self, request: Request, refused: Refused | None, status: int | None, duration: float) -> None:
        """Say what became of a request."""
        self._gate.report_connection(
            NetworkEventKind.REQUEST,
            self.host,
            self._connection.port,
            self._connection.judge() if refused is None else refused,
            method=request.method,
            path=request.path[:256],
            status=status,
            duration=duration,
        )
