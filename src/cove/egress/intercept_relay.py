"""Carry one intercepted request: secrets added on the way out, and blanked out of what comes back."""

import hashlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from cove.core.cassette import MOST_BODY_BYTES, make_recorded
from cove.core.network_policy import Failed, Refused
from cove.core.redaction import Redactor
from cove.egress.refusal import RequestRefused
from cove.egress.upstream import Upstream
from cove.http import Exchange, HttpError, Request
from cove.http.headers import HOP_BY_HOP, hop_by_hop, render_framing
from cove.http.proxy_relay import ProxyRelay
from cove.http.response_parser import ResponseHead

if TYPE_CHECKING:
    from cove.egress.intercept import Injection, Interception

_REPEATABLE = frozenset(("GET", "HEAD", "OPTIONS"))
_NOT_PASSED_ON = HOP_BY_HOP | {b"expect"}
_NOT_SHOWN = HOP_BY_HOP | {b"alt-svc"}  # no other protocol leads here
_WITHOUT_BODY = (204, 304)


class InterceptRelay(ProxyRelay):
    """One request to `interception.host`, on a connection that carries others before and after it."""

    _origin: Upstream

    def __init__(self, interception: "Interception", request: Request, injection: "Injection") -> None:
        super().__init__(interception.host)
        self._interception = interception
        self._request = request
        self._injection = injection
        self._redactor = Redactor(injection.values)
        self._digest = hashlib.sha256()
        self._head: ResponseHead | None = None
        self._body: list[bytes] | None = [] if interception.is_recorded else None
        self._body_bytes = 0
        self._started = time.monotonic()
        self._is_connected = self._has_repeated = self._is_sent = False
        self._refused: Refused | None = None
        self._status: int | None = None

    def begin(self, exchange: Exchange) -> None:
        """Connect, in a task of the connection's."""
        self._exchange = exchange
        self._interception.start(self._connect())

    async def _connect(self) -> None:
        try:
            upstream = await self._interception.open()
        except RequestRefused as error:
            self._fail(error)
            return
        if not self._is_over:
            self._origin = upstream
            self._is_connected = True
            upstream.user = self
            self._pass_request(self._render_request())

    def _render_request(self) -> bytes:
        request, injection = self._request, self._injection
        query = "&".join(filter(None, (request.query, injection.query)))
        target = f"{request.path}?{query}" if query and request.path != "*" else request.path
        parts = [f"{request.method} {target} HTTP/1.1\r\nhost: {self._interception.host_header}\r\n".encode()]
        own = {b"host", *(name for name, _ in injection.headers)}
        if not injection.is_empty:
            own.add(b"accept-encoding")
        dropped = hop_by_hop(request.headers.get(b"connection"), _NOT_PASSED_ON | own)
        parts += [b"%b: %b\r\n" % header for header in request.raw_headers if header[0] not in dropped]
        parts += [b"%b: %b\r\n" % header for header in injection.headers]
        if not injection.is_empty:
            parts.append(b"accept-encoding: identity\r\n")  # what is compressed could not be searched for secrets
        upgrade = request.headers[b"upgrade"] if request.is_upgrade else None
        parts.append(render_framing(upgrade, is_chunked=b"transfer-encoding" in request.headers) + b"\r\n")
        return b"".join(parts)

    def body_data(self, data: bytes) -> None:
        """Pass on a part of the request's body."""
        if self._body is not None:
            self._digest.update(data)
        super().body_data(data)

    def body_end(self) -> None:
        """End the request's body."""
        self._is_sent = True
        super().body_end()

    def body_failed(self, error: HttpError) -> None:
        """Give up: the client will not send the rest of its body."""
        self._refused = Refused(str(error))
        super().body_failed(error)

    def upstream_data(self, data: bytes) -> None:
        """Take a part of the response, or of what follows an upgrade."""
        self._take(data)

    def upstream_lost(self, is_whole: bool) -> None:
        """Take the end of the connection: of the response, or in the middle of it."""
        if self._is_over:
            return
        if self._is_raw:
            self._finish(self._exchange.cut)
        elif not self._has_answered and self._can_repeat():
            self._has_repeated = True
            self._interception.start(self._connect())
        elif is_whole:
            self._take_end()
        else:
            self._break_off(f"{self._name} broke the connection")

    def _can_repeat(self) -> bool:
        """A kept connection may have been closed while the request was on its way: RFC 9110, section 9.2.2."""
        is_plain = self._request.method in _REPEATABLE and self._request.is_complete and not self._request.is_upgrade
        return is_plain and self._origin.has_been_used and not self._has_repeated

    def upstream_full(self) -> None:
        """Read less from the client."""
        self._hold_back()

    def upstream_ready(self) -> None:
        """Read from the client again."""
        self._let_come()

    def answer_head(self, head: ResponseHead) -> None:
        """Pass on the head."""
        self._head = head
        super().answer_head(head)

    def answer_switch(self, head: ResponseHead, rest: bytes) -> None:
        """Speak another protocol from here on, if that was asked for."""
        self._head = head
        super().answer_switch(head, rest)

    def _render_head(self, head: ResponseHead) -> bytes:
        parts = [b"HTTP/1.1 %d %b\r\n" % (head.status, self._redactor.whole(head.reason))]
        parts += [b"%b: %b\r\n" % header for header in self._shown_headers(head)]
        upgrade = head.get(b"upgrade") or b"" if head.status == 101 else None
        parts.append(render_framing(upgrade, is_chunked=self._is_chunked) + b"\r\n")
        return b"".join(parts)

    def _shown_headers(self, head: ResponseHead) -> list[tuple[bytes, bytes]]:
        dropped = hop_by_hop(head.get(b"connection"), _NOT_SHOWN)
        return [(name, self._redactor.whole(value)) for name, value in head.headers if name not in dropped]

    def answer_body(self, data: bytes) -> None:
        """Pass on a part of the body, as far as it is known to have no secret."""
        self._show(self._redactor.feed(data))

    def _show(self, data: bytes) -> None:
        if data:
            if self._body is not None:
                self._keep(self._body, data)
            super().answer_body(data)

    def _keep(self, body: list[bytes], data: bytes) -> None:
        """Keep what is recorded; an answer that is too large, alone or beside others, is not."""
        if self._body_bytes + len(data) <= MOST_BODY_BYTES and self._interception.gate.reserve(len(data)):
            self._body_bytes += len(data)
            body.append(data)
        else:
            self._drop_body()

    def _drop_body(self) -> None:
        self._interception.gate.release(self._body_bytes)
        self._body, self._body_bytes = None, 0

    def answer_end(self) -> None:
        """End the response; its connection is kept where both sides are through."""
        head = self._head
        assert head is not None
        self._show(self._redactor.end())
        if self._body is not None:
            self._record(head, b"".join(self._body))
        is_framed = head.has_length or head.get(b"transfer-encoding") is not None or head.status in _WITHOUT_BODY
        if is_framed and self._is_sent and head.is_kept:
            self._origin.user = None
            self._origin.has_been_used = True
        super().answer_end()

    def _record(self, head: ResponseHead, body: bytes) -> None:
        shown = [header for header in self._shown_headers(head) if header[0] != b"content-length"]
        url = self._interception.url_of(self._request)
        self._interception.gate.record(
            make_recorded(self._request.method, url, self._digest.hexdigest(), head.status, shown, body)
        )

    def client_full(self) -> None:
        """Read less from the host: the client does not take what it sends."""
        if not self._is_over:
            super().client_full()

    def client_ready(self) -> None:
        """Read from the host again."""
        if not self._is_over:
            super().client_ready()

    def client_gone(self) -> None:
        """Drop the request: nobody waits for the response."""
        self._finish(lambda: None)

    def client_eof(self) -> None:
        """End an upgraded connection: TLS has no half-closed ones."""
        self._finish(self._exchange.cut)

    def _break_off(self, reason: str) -> None:
        self._fail(RequestRefused(Failed(reason), 502))

    def _fail(self, error: RequestRefused) -> None:
        self._refused = error.refused
        if self._has_answered:
            self._finish(self._exchange.cut)
        else:
            self._status = error.status
            self._finish(lambda: self._exchange.fail(error))

    def _finish(self, say: Callable[[], None]) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._deadline.close()
        self._drop_body()
        if self._is_connected and self._origin.user is self:
            self._origin.user = None
            self._origin.abort()
        status = self._status if self._head is None else self._head.status
        self._interception.report(self._request, self._refused, status, time.monotonic() - self._started)
        say()
