"""HTTP requests: the same in any pieces, and what a proxy of ours passes on is exactly what was judged."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import h11

from cove.core.exposure import Label
from cove.egress.intercept import Injection
from cove.egress.intercept_relay import InterceptRelay
from cove.http.errors import HttpError
from cove.http.parser import HttpLimits, RequestParser
from cove.http.request import Request
from cove.server.preview.headers import Visit, render_request
from fuzz.loop import in_loop
from fuzz.splitting import cut

_LIMITS = HttpLimits(head_bytes=2048, headers=20, buffered_body_bytes=1 << 20)
_INJECTED = Injection(headers=((b"authorization", b"Bearer secret"),), query="key=secret", values=(b"secret",))
_VISIT = Visit(origin="https://preview.example", prefix="", label=Label(3000, "k" * 16, "token"))


class _Source:
    """A connection that is always read."""

    def want_body(self) -> None:
        """Go on."""

    def pause_body(self) -> None:
        """Go on all the same."""


@dataclass(slots=True)
class _Body:
    """A sink that keeps what comes."""

    data: bytes = b""
    is_whole: bool = False

    def body_data(self, data: bytes) -> None:
        self.data += data

    def body_end(self) -> None:
        self.is_whole = True

    def body_failed(self, error: HttpError) -> None:
        raise AssertionError("nobody fails this body") from error


@dataclass(slots=True)
class _Parsed:
    """All that one connection said, and whether it broke the protocol."""

    requests: list[tuple[Request, _Body]] = field(default_factory=list)
    is_refused: bool = False
    held: bytes = b""

    def take(self, request: Request) -> None:
        body = _Body()
        request.pass_body_to(body)
        self.requests.append((request, body))

    def facts(self) -> list[tuple[object, ...]]:
        """What a reader of the connection knows of each request that is whole."""
        return [_facts(request, body) for request, body in self.requests if body.is_whole]


def _facts(request: Request, body: _Body) -> tuple[object, ...]:
    return request.method, request.path, request.query, tuple(request.raw_headers), body.data


def _parse(pieces: Iterator[bytes] | list[bytes], limits: HttpLimits = _LIMITS) -> _Parsed:
    parsed = _Parsed()
    parser = RequestParser(_Source(), limits, parsed.take)
    try:
        for piece in pieces:
            parser.feed(piece)
            parser.release()
    except HttpError:
        parsed.is_refused = True
    return parsed


@in_loop
def check(data: bytes) -> None:
    """Parse it whole and in pieces, and pass on what was understood."""
    whole, pieces = _parse([data]), _parse(cut(data))
    if pieces.is_refused and len(data) > _LIMITS.head_bytes:  # a head's budget is exact to one read
        assert pieces.facts() == whole.facts()[: len(pieces.facts())]
    else:
        assert whole.is_refused == pieces.is_refused
        assert whole.facts() == pieces.facts()
    for request, body in whole.requests:
        if body.is_whole and not request.is_upgrade:
            _check_passed_on(_intercepted(request), body, request, b"judged.example", b"authorization")
            _check_passed_on(
                render_request(request, _VISIT, peer="192.0.2.7", key="k"), body, request, b"localhost:3000"
            )


def _intercepted(request: Request) -> bytes:
    relay = InterceptRelay(_Interception(), request, _INJECTED)  # type: ignore[arg-type]  # of which it reads two names
    return relay._render_request()


class _Interception:
    """What a relay reads of the connection that it is for."""

    host = host_header = "judged.example"
    is_recorded = False


def _check_passed_on(head: bytes, body: _Body, request: Request, host: bytes, *added: bytes) -> None:
    """Whoever reads what we write, by this parser or another, sees one request: the judged one."""
    is_chunked = b"transfer-encoding" in request.headers
    sent = head + (b"%x\r\n%b\r\n0\r\n\r\n" % (len(body.data), body.data) if is_chunked and body.data else body.data)
    if is_chunked and not body.data:
        sent += b"0\r\n\r\n"
    again = _parse([sent], HttpLimits())
    assert not again.is_refused, sent
    (passed,) = again.facts()
    assert passed[0] == request.method
    assert passed[1] == request.path
    assert passed[4] == body.data
    hosts = [value for name, value in again.requests[0][0].raw_headers if name == b"host"]
    assert hosts == [host]
    for name in added:
        values = [value for known, value in again.requests[0][0].raw_headers if known == name]
        assert values == [b"Bearer secret"]
    assert _as_h11(sent) == (request.method.encode(), again.requests[0][0].path.encode(), body.data), sent


def _as_h11(sent: bytes) -> tuple[bytes, bytes, bytes] | None:
    """The one request that another implementation reads."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    connection.receive_data(sent)
    connection.receive_data(b"")
    request = connection.next_event()
    assert isinstance(request, h11.Request)
    data = b""
    while isinstance(event := connection.next_event(), h11.Data):
        data += event.data
    assert isinstance(event, h11.EndOfMessage)
    assert connection.trailing_data[0] == b""
    return request.method, request.target.partition(b"?")[0], data


def seeds() -> Iterator[bytes]:
    """Requests with every framing, one and several on a connection, and the known ways to smuggle one."""
    yield b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    yield b"GET /a?b=c HTTP/1.1\r\nHost: a.example:80\r\nConnection: close, x-hop\r\nX-Hop: 1\r\n\r\n" * 2
    yield b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET / HTTP/1.1\r\nHost: a\r\n\r\n"
    yield b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nTrailer: t\r\n\r\n"
    yield b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"
    yield b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"
    yield b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"
    yield b"GET http://a/path HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nrest"
    yield (
        b"POST /u HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: U"
        b"pgrade\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\n"
    )
    yield b"OPTIONS * HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n"
    yield b"GET / HTTP/1.0\r\n\r\n"
    yield b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\nContent_Length: 3\r\n\r\n"
