"""Parse requests with llhttp; reject what could be understood in two ways (request smuggling)."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import httptools

from cove.http.errors import BadRequest, HeadTooLarge, HttpError
from cove.http.request import BodySource, Request

_VERSIONS = ("1.1", "1.0")
_HOST = re.compile(rb"[A-Za-z0-9._~%-]*(:[0-9]*)?|\[[0-9A-Fa-f:.]+\](:[0-9]*)?")


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits on what one client may cost, in bytes, seconds (slowloris) and connections."""

    head_bytes: int = 64 << 10
    headers: int = 100
    head_timeout: float = 10.0
    body_idle_timeout: float = 30.0
    keep_alive_timeout: float = 75.0
    buffered_body_bytes: int = 256 << 10
    drained_bytes: int = 16 << 20
    drain_timeout: float = 5.0
    connections: int = 4096


class RequestParser:
    """Calls `on_request` once per complete head; bodies go into the request. After an upgrade head it holds the rest.

    What it stores of an incomplete head or of framing between pieces of a body is bounded by `limits.head_bytes` and
    one read.
    """

    def __init__(self, source: BodySource, limits: HttpLimits, on_request: Callable[[Request], None]) -> None:
        self._source = source
        self._limits = limits
        self._on_request = on_request
        self._parser = httptools.HttpRequestParser(self)
        self._request: Request | None = None
        self._target = b""
        self._head_bytes = 0
        self._silent_bytes = 0
        self._has_resumed = False
        self._held: list[bytes] | None = None
        self.is_in_head = False
        self.incoming: Request | None = None

    def feed(self, data: bytes) -> None:
        """Parse; raises HttpError, after which nothing more can be fed."""
        if self._held is not None:
            self._hold(data)
            return
        self._silent_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._after_upgrade_head(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, HttpError):
                raise error.__context__ from None
            raise
        except httptools.HttpParserError as error:
            raise BadRequest(f"this is not valid HTTP: {error}") from None
        if self._silent_bytes > self._limits.head_bytes:
            self._check_silence()

    def release(self) -> None:
        """Parse on: the connection stays HTTP. Parse what was held."""
        if self._held is not None:
            data = b"".join(self._held)
            self._held = None
            if data:
                self.feed(data)

    def take_held(self) -> bytes:
        """Return the bytes that came after the head of an upgrade."""
        data = b"".join(self._held or ())
        self._held = []
        return data

    def on_message_begin(self) -> None:
        """Start a request. Called by llhttp, as are those below."""
        if not self._has_resumed:
            self._request = Request(self._source, self._limits.buffered_body_bytes)
            self._target = b""
            self._head_bytes = self._silent_bytes = 0
            self.is_in_head = True

    def on_url(self, part: bytes) -> None:
        """Take a part of the request's target."""
        if self.is_in_head:
            self._target += part
            self._head_bytes += len(part)
            if self._head_bytes > self._limits.head_bytes:
                raise self._too_large()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer, which is dropped."""
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > self._limits.head_bytes:
            raise self._too_large()
        if not self.is_in_head or self._request is None:
            return
        name = name.lower()
        request = self._request
        request.raw_headers.append((name, value))
        if len(request.raw_headers) > self._limits.headers:
            raise HeadTooLarge(f"more than {self._limits.headers} headers")
        before = request.headers.get(name)
        request.headers[name] = value if before is None else before + b", " + value

    def on_headers_complete(self) -> None:
        """Check the complete head, and announce the request."""
        if self._has_resumed or self._request is None:
            return
        request = self._request
        self.is_in_head = False
        request.version = self._parser.get_http_version()
        request.method = self._parser.get_method().decode()
        _check_framing(request)
        _set_target(request, self._target)
        request.is_upgrade = self._parser.should_upgrade()
        self.incoming = request
        self._on_request(request)

    def on_body(self, data: bytes) -> None:
        """Receive some of the body."""
        self._silent_bytes = 0
        if self.incoming is not None:
            self.incoming.receive(data)

    def on_message_complete(self) -> None:
        """Complete the body. The parser says so too early when an upgrade has a body."""
        request = self.incoming
        self._silent_bytes = 0
        if request is None or (request.is_upgrade and _has_body(request) and not self._has_resumed):
            return
        self._has_resumed = False
        self.incoming = None
        request.complete()

    def _after_upgrade_head(self, rest: bytes) -> None:
        """An upgrade with a body is an ordinary request: a new parser is told how long its body is."""
        if self.incoming is None:
            self._held = []
            if rest:
                self._hold(rest)
            return
        self.incoming.is_upgrade = False
        name = b"content-length" if b"content-length" in self.incoming.headers else b"transfer-encoding"
        self._has_resumed = True
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b: %b\r\n\r\n" % (name, self.incoming.headers[name]))
        if rest:
            self.feed(rest)

    def _hold(self, data: bytes) -> None:
        assert self._held is not None
        self._held.append(data)
        if sum(map(len, self._held)) > self._limits.buffered_body_bytes:
            self._source.pause_body()

    def _too_large(self) -> HeadTooLarge:
        return HeadTooLarge(f"the head is larger than {self._limits.head_bytes} bytes")

    def _check_silence(self) -> None:
        if self.is_in_head:
            raise self._too_large()
        if self.incoming is not None:
            raise BadRequest("there is more framing than body")


def _check_framing(request: Request) -> None:
    """Refuse whatever another HTTP implementation could understand differently."""
    headers = request.headers
    if request.version not in _VERSIONS:
        raise BadRequest(f"HTTP/{request.version} is not spoken here")
    host = headers.get(b"host")
    if (host is None and request.version == "1.1") or (host is not None and not _HOST.fullmatch(host)):
        raise BadRequest("there must be exactly one Host header, with a name and perhaps a port")
    encoding = headers.get(b"transfer-encoding")
    if encoding is not None and (
        encoding.lower() != b"chunked" or b"content-length" in headers or request.version == "1.0"
    ):
        raise BadRequest("the only transfer encoding is chunked, in HTTP/1.1 and without a Content-Length")
    if b"," in headers.get(b"content-length", b""):
        raise BadRequest("there is more than one Content-Length")


def _set_target(request: Request, target: bytes) -> None:
    if request.method == "CONNECT" or b"#" in target or not target.isascii():
        raise BadRequest("this request target is not served")
    if target[:7].lower() == b"http://":
        authority, slash, rest = target[7:].partition(b"/")
        if authority != request.headers.get(b"host"):
            raise BadRequest("the request target and the Host header differ")
        target = slash + rest
    if not target.startswith(b"/") and (target != b"*" or request.method != "OPTIONS"):
        raise BadRequest("the request target must be a path")
    path, _, request.query = target.decode("ascii").partition("?")
    request.path = path


def _has_body(request: Request) -> bool:
    headers = request.headers
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0").strip(b"0") != b""
