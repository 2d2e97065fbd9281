"""Carry one intercepted request: written anew upstream, its answer read as from an enemy and written anew inside."""

import hashlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from cove.core.cassette import MOST_BODY_BYTES, make_recorded
from cove.core.network_policy import Refused
from cove.core.redaction import Redactor
from cove.egress.refusal import RequestRefused
from cove.egress.upstream import Upstream
from cove.http import Exchange, HttpError, Relay, Request
from cove.http.deadline import Deadline
from cove.http.headers import HOP_BY_HOP, hop_by_hop, render_framing
from cove.http.response import has_body
from cove.http.response_parser import BadResponse, ResponseHead, ResponseParser

if TYPE_CHECKING:
    from cove.egress.intercept import Injection, Interception

_ANSWER_SECONDS = 300.0
_REPEATABLE = frozenset(("GET", "HEAD", "OPTIONS"))
_NOT_PASSED_ON = HOP_BY_HOP | {b"expect"}
_NOT_SHOWN = HOP_BY_HOP | {b"alt-svc"}  # no other protocol leads here
_WITHOUT_BODY = (204, 304)


class InterceptRelay(Relay):
    """One request to `interception.host`. `url` is what the log and a cassette call it: without what is injected."""

    _exchange: Exchange
    _parser: ResponseParser
    _upstream: Upstream

    def __init__(self, interception: "Interception", request: Request, injection: "Injection") -> None:
        self._interception = interception
        self._request = request
        self._injection = injection
        self._redactor = Redactor(injection.values)
        self._deadline = Deadline(self._expire)
        self._digest = hashlib.sha256()
        self._head: ResponseHead | None = None
        self._body: list[bytes] | None = [] if interception.is_recorded else None
        self._body_bytes = 0
        self._started = time.monotonic()
        self._is_over = self._is_chunked = self._is_raw = self._has_repeated = self._is_sent = False

    def begin(self, exchange: Exchange) -> None:
        """Connect, in a task of the connection's."""
        self._exchange = exchange
        self._interception.start(self._connect())

    async def _connect(self) -> None:
        try:
            upstream = await self._interception.open()
        except RequestRefused as error:
            failure = error
            self._finish(failure.refused, lambda: self._exchange.fail(failure), status=failure.status)
            return
        if self._is_over:
            return
        self._parser = ResponseParser(self, is_head_only=self._request.method == "HEAD")
        self._upstream = upstream
        upstream.user = self
        self._deadline.set(_ANSWER_SECONDS)
        upstream.write(self._render_request())
        self._request.pass_body_to(self)

    def _render_request(self) -> bytes:
        request, injection = self._request, self._injection
        query = "&".join(filter(None, (request.query, injection.query)))
        target = f"{request.path}?{query}" if query else request.path
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
        """The body goes upstream."""
        if self._is_over:
            return
        self._digest.update(data)
        is_chunked = b"transfer-encoding" in self._request.headers
        self._upstream.write(b"%x\r\n%b\r\n" % (len(data), data) if is_chunked else data)
        if self._head is None:
            self._deadline.set(_ANSWER_SECONDS)

    def body_end(self) -> None:
        """All of it."""
        self._is_sent = True
        if b"transfer-encoding" in self._request.headers and not self._is_over:
            self._upstream.write(b"0\r\n\r\n")

    def body_failed(self, error: HttpError) -> None:
        """The client will not send the rest."""
        self._finish(Refused(str(error)), self._exchange.cut if self._head else lambda: self._exchange.fail(error))

    def upstream_data(self, data: bytes) -> None:
        """Take a part of the response, or of what follows an upgrade."""
        if self._is_raw:
            self._exchange.write(data)
            return
        try:
            self._parser.feed(data)
        except BadResponse as error:
            self._break_off(f"{self._interception.host} gave no valid answer: {error}")

    def upstream_lost(self) -> None:
        """The end of the answer, or of the connection before it."""
        if self._is_over:
            return
        if self._is_raw:
            self._finish(None, self._exchange.cut)
        elif self._head is None and self._can_repeat():
            self._has_repeated = True
            self._interception.start(self._connect())
        else:
            try:
                self._parser.end()
            except BadResponse as error:
                self._break_off(f"{self._interception.host} gave no valid answer: {error}")

    def _can_repeat(self) -> bool:
        """A kept connection may have been closed while the request was on its way: RFC 9110, section 9.2.2."""
        is_plain = self._request.method in _REPEATABLE and self._request.is_complete and not self._request.is_upgrade
        return is_plain and self._upstream.has_been_used and not self._has_repeated

    def upstream_full(self) -> None:
        """The host does not take what is sent."""
        self._exchange.pause_reading() if self._is_raw else self._request.pause()

    def upstream_ready(self) -> None:
        """The host takes more."""
        self._exchange.resume_reading() if self._is_raw else self._request.resume()

    def answer_head(self, head: ResponseHead) -> None:
        """The answer begins."""
        self._deadline.clear()
        self._head = head
        follows = has_body(self._request.method, head.status)
        self._is_chunked = follows and not head.has_length and self._request.version == "1.1"
        self._exchange.write(self._render_head(head))

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
        """Pass on a part of its body."""
        self._write_body(self._redactor.feed(data))

    def _write_body(self, data: bytes) -> None:
        if not data:
            return
        if self._body is not None:
            self._body_bytes += len(data)
            if self._body_bytes <= MOST_BODY_BYTES:
                self._body.append(data)
        self._exchange.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)

    def answer_end(self) -> None:
        """Complete the response."""
        head = self._head
        assert head is not None
        self._write_body(self._redactor.end())
        if self._is_chunked:
            self._exchange.write(b"0\r\n\r\n")
        if self._body is not None:
            self._record(head, b"".join(self._body))
        is_framed = head.has_length or head.get(b"transfer-encoding") is not None or head.status in _WITHOUT_BODY
        if is_framed and self._is_sent and b"close" not in (head.get(b"connection") or b"").lower():
            self._upstream.user = None
            self._upstream.has_been_used = True
        self._finish(None, lambda: self._exchange.finish(keep_alive=True))

    def _record(self, head: ResponseHead, body: bytes) -> None:
        if self._body_bytes > MOST_BODY_BYTES:
            return
        shown = [header for header in self._shown_headers(head) if header[0] != b"content-length"]
        self._interception.record(
            make_recorded(self._request.method, self._url, self._digest.hexdigest(), head.status, shown, body)
        )

    @property
    def _url(self) -> str:
        return self._interception.url_of(self._request)

    def answer_switch(self, head: ResponseHead, rest: bytes) -> None:
        """The host speaks another protocol from here on, if that was asked for."""
        if not self._request.is_upgrade or head.status != 101:
            raise BadResponse("it changed the protocol without being asked")
        self._deadline.clear()
        self._head = head
        self._is_raw = True
        self._exchange.write(self._render_head(head) + rest)
        self._exchange.switch()

    def client_full(self) -> None:
        """The client does not take what the host sends."""
        if not self._is_over:
            self._upstream.pause_reading()

    def client_ready(self) -> None:
        """The client takes more."""
        if not self._is_over:
            self._upstream.resume_reading()

    def client_gone(self) -> None:
        """Drop the request: nobody waits for the response."""
        self._finish(None, lambda: None)

    def client_cancelled(self) -> None:
        """The client has closed its side: it is told by the end of the connection."""
        self._finish(None, self._exchange.cut)

    def client_data(self, data: bytes) -> None:
        """Pass on to the host, after an upgrade."""
        self._upstream.write(data)

    def client_eof(self) -> None:
        """End an upgraded connection: TLS has no half-closed ones."""
        self._finish(None, self._exchange.cut)

    def _expire(self) -> None:
        self._break_off(f"{self._interception.host} does not answer")

    def _break_off(self, reason: str) -> None:
        refused = Refused(reason)
        if self._head is not None:
            self._finish(refused, self._exchange.cut)
        else:
            self._finish(refused, lambda: self._exchange.fail(RequestRefused(refused, 502)), status=502)

    def _finish(self, refused: Refused | None, say: Callable[[], None], status: int | None = None) -> None:
        """The last word; there is only one."""
        if self._is_over:
            return
        self._is_over = True
        self._deadline.close()
        upstream = getattr(self, "_upstream", None)
        if upstream is not None and upstream.user is self:
            upstream.user = None
            upstream.abort()
        head = self._head
        taken = time.monotonic() - self._started
        self._interception.report(self._request, refused, status if head is None else head.status, taken)
        say()
