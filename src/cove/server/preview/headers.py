"""Rewrite headers between visitor and service: hop-by-hop headers, forwarding, redirects, cookies.

The service sees itself at `localhost` and its own port; where it names that address it is the visitor's. What is the
business of one connection, what belongs to Cove (its key, its cookies), and what a visitor could pretend about itself
is not passed on. Pages of different sandboxes share no origin: by path they would, so there they get an opaque one, and
what a browser would remember about their common host is not passed on.
"""

from dataclasses import dataclass

from cove.core.exposure import Label
from cove.http import Request
from cove.http.headers import HOP_BY_HOP, hop_by_hop, render_framing
from cove.http.response_parser import ResponseHead

_NOT_PASSED_ON = HOP_BY_HOP | frozenset(
    (
        *(b"host", b"expect", b"forwarded", b"x-real-ip"),
        *(b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-prefix", b"x-forwarded-port"),
    )
)
_ABOUT_OTHER_HOSTS = frozenset((b"clear-site-data",))  # cookies are cleared for the domain above all previews too
_ABOUT_THE_HOST = _ABOUT_OTHER_HOSTS | frozenset(
    (
        *(b"nel", b"report-to", b"reporting-endpoints", b"alt-svc", b"strict-transport-security"),
        *(b"service-worker-allowed", b"origin-agent-cluster", b"use-as-dictionary", b"accept-ch", b"critical-ch"),
    )
)
_OUR_COOKIES = (b"cove_", b"__Host-cove_")
# All but where a cookie is sent: that is `Domain`, which is dropped, and `Path`.
_COOKIE_ATTRIBUTES = frozenset(
    (b"expires", b"httponly", b"max-age", b"partitioned", b"priority", b"samesite", b"secure")
)
_BLANKS = b" \t"
_OPAQUE_ORIGIN = b"sandbox allow-scripts allow-forms allow-modals allow-popups allow-downloads"
_WITHOUT_LENGTH = (101, 204)
_LENGTH = frozenset((b"content-length",))


@dataclass(frozen=True, slots=True)
class Visit:
    """The way of a visitor to a port: `origin` is what it sees; `prefix` is what stands before the service's paths.

    `peer` is the visitor's address where another node has said it.
    """

    label: Label
    origin: str
    prefix: str
    peer: str = ""

    @property
    def scheme(self) -> str:
        """The scheme that the visitor speaks."""
        return self.origin.partition("://")[0]

    @property
    def host(self) -> str:
        """The host as the visitor calls it."""
        return self.origin.partition("://")[2]

    @property
    def local_host(self) -> str:
        """The host as the service calls itself."""
        return f"localhost:{self.label.port}"


def render_request(request: Request, visit: Visit, *, peer: str, key: str | None) -> bytes:
    """The head of the request, for the service."""
    path = request.path.removeprefix(visit.prefix) or "/"
    target = f"{path}?{request.query}" if request.query else path
    parts = [f"{request.method} {target} HTTP/1.1\r\nhost: {visit.local_host}\r\n".encode()]
    dropped = hop_by_hop(request.headers.get(b"connection"), _NOT_PASSED_ON)
    for name, value in request.raw_headers:
        if not _is_dropped(name, dropped) and (kept := _request_value(name, value, visit, key)) is not None:
            parts.append(b"%b: %b\r\n" % (name, kept))
    parts.append(f"x-forwarded-host: {visit.host}\r\nx-forwarded-proto: {visit.scheme}\r\n".encode("latin-1"))
    if peer:
        parts.append(f"x-forwarded-for: {peer}\r\n".encode())
    if visit.prefix:
        parts.append(f"x-forwarded-prefix: {visit.prefix}\r\n".encode())
    upgrade = request.headers[b"upgrade"] if request.is_upgrade else None
    parts.append(render_framing(upgrade, is_chunked=b"transfer-encoding" in request.headers))
    parts.append(b"\r\n" if request.is_upgrade else b"connection: close\r\n\r\n")
    return b"".join(parts)


def _is_dropped(name: bytes, dropped: frozenset[bytes]) -> bool:
    """Many services, all that speak CGI or WSGI, take `_` in a name for `-`."""
    return name in dropped or (b"_" in name and name.replace(b"_", b"-") in dropped | _LENGTH)


def _request_value(name: bytes, value: bytes, visit: Visit, key: str | None) -> bytes | None:
    """Rewrite a header for the service; None to drop it."""
    if name == b"authorization" and key is not None and key.encode() in value:
        return None
    if name == b"origin" and value.lower() == visit.origin.encode("latin-1"):
        return f"http://{visit.local_host}".encode()
    if name == b"cookie":
        cookies = [cookie for cookie in value.split(b";") if not cookie.strip().startswith(_OUR_COOKIES)]
        return b";".join(cookies).strip() or None
    return value


def render_answer(head: ResponseHead, visit: Visit, *, is_chunked: bool) -> bytes:
    """The head of the answer, for the visitor."""
    parts = [b"HTTP/1.1 %d %b\r\n" % (head.status, head.reason)]
    dropped = hop_by_hop(head.get(b"connection"))
    dropped |= _ABOUT_THE_HOST if visit.prefix else _ABOUT_OTHER_HOSTS
    if head.status in _WITHOUT_LENGTH:
        dropped |= _LENGTH
    for name, value in head.headers:
        if name not in dropped and (kept := _answer_value(name, value, visit)) is not None:
            parts.append(b"%b: %b\r\n" % (name, kept))
    if head.get(b"referrer-policy") is None:
        parts.append(b"referrer-policy: same-origin\r\n")
    if visit.prefix:
        parts.append(b"content-security-policy: %b\r\n" % _OPAQUE_ORIGIN)
    upgrade = (head.get(b"upgrade") or b"") if head.status == 101 else None
    parts.append(render_framing(upgrade, is_chunked=is_chunked) + b"\r\n")
    return b"".join(parts)


def _answer_value(name: bytes, value: bytes, visit: Visit) -> bytes | None:
    """Rewrite a header for the visitor; None to drop it."""
    if name == b"location":
        return _outward(value, visit)
    if name == b"set-cookie":
        return confine_cookie(value, visit.prefix.encode())
    return value


def _outward(location: bytes, visit: Visit) -> bytes:
    """Rewrite a redirect for the visitor: what leads to the service itself leads to its preview."""
    for scheme in (b"http://", b"https://"):
        own = scheme + visit.local_host.encode()
        if location == own or location.startswith((own + b"/", own + b"?")):
            return f"{visit.origin}{visit.prefix}".encode("latin-1") + location[len(own) :]
    if visit.prefix and location.startswith(b"/") and not location.startswith(b"//"):
        return visit.prefix.encode() + location
    return location


def confine_cookie(cookie: bytes, prefix: bytes) -> bytes | None:
    """The cookie, for this host and below the prefix only; None for one that has a name of ours.

    Read as browsers do, RFC 6265 section 5.2: blanks around names and values count for nothing, and a cookie without a
    name is sent as its value. An attribute that is not known here is dropped.
    """
    pair, *attributes = cookie.split(b";")
    name, _, value = pair.partition(b"=")
    if (name.strip(_BLANKS) or value.strip(_BLANKS)).startswith(_OUR_COOKIES):
        return None
    path = b"/"
    kept = [pair]
    for attribute in attributes:
        name, _, value = (part.strip(_BLANKS) for part in attribute.partition(b"="))
        if name.lower() == b"path":
            path = value if value.startswith(b"/") else b"/"
        if name.lower() in _COOKIE_ATTRIBUTES or (name.lower() == b"path" and not prefix):
            kept.append(b" " + attribute.strip(_BLANKS))
    return b";".join([*kept, b" Path=%b%b" % (prefix, path)] if prefix else kept)
