"""HTTP answers of services and hosts: the same in any pieces, and a client gets one answer, a cut one, or an error."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import h11

from cove.core.exposure import Label
from cove.http.proxy_relay import ProxyRelay
from cove.http.request import Request
from cove.http.response import Exchange, Response
from cove.http.response_parser import BadResponse, ResponseHead, ResponseParser
from cove.server.preview.headers import Visit, render_answer
from fuzz.loop import in_loop
from fuzz.splitting import cut

_VISIT = Visit(origin="https://preview.example", prefix="/p", label=Label(3000, "k" * 16, "token"))


@dataclass(slots=True)
class _Heard:
    """All that a parser says of one answer."""

    head: ResponseHead | None = None
    body: bytes = b""
    is_whole: bool = False
    is_bad: bool = False
    rest: bytes | None = None

    def answer_head(self, head: ResponseHead) -> None:
        assert self.head is None, "two heads of one answer"
        self.head = head

    def answer_body(self, data: bytes) -> None:
        assert self.head is not None
        assert not self.is_whole
        self.body += data

    def answer_end(self) -> None:
        assert self.head is not None
        assert not self.is_whole
        self.is_whole = True

    def answer_switch(self, head: ResponseHead, rest: bytes) -> None:
        assert self.head is None
        self.head, self.rest = head, rest


def _parse(pieces: Iterator[bytes] | list[bytes], *, is_head_only: bool) -> _Heard:
    heard = _Heard()
    parser = ResponseParser(heard, is_head_only=is_head_only)
    try:
        for piece in pieces:
            if heard.rest is not None:
                heard.rest += piece
            else:
                parser.feed(piece)
        if heard.rest is None:
            parser.end()
    except BadResponse:
        heard.is_bad = True
    return heard


class _Origin:
    """The connection to a service that takes all."""

    def write(self, data: bytes) -> None:
        """Take it."""

    def pause_reading(self) -> None:
        """Go on all the same."""

    def resume_reading(self) -> None:
        """Go on."""


@dataclass(slots=True)
class _Client:
    """One exchange: what the client gets, and its end."""

    request: Request
    peer: str = ""
    sent: bytes = b""
    ends: list[str] = field(default_factory=list)

    def write(self, data: bytes) -> None:
        assert not self.ends, "bytes after the end of an answer"
        self.sent += data

    def respond(self, response: Response) -> None:
        self.ends.append("respond")

    def fail(self, error: Exception) -> None:
        assert not self.sent, "an error after the beginning of an answer"
        self.ends.append("fail")

    def finish(self, *, keep_alive: bool) -> None:
        self.ends.append("finish")

    def cut(self) -> None:
        self.ends.append("cut")

    def switch(self) -> None:
        """Nobody asked for another protocol."""
        raise AssertionError("a switch that nobody asked for")

    def pause_reading(self) -> None:
        """Go on all the same."""

    def resume_reading(self) -> None:
        """Go on."""

    def write_eof(self) -> None:
        """End."""


class _Relay(ProxyRelay):
    """The relay of previews without its connection."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__("the service")
        self._exchange = exchange
        self._origin = _Origin()
        self._parser = ResponseParser(self, is_head_only=exchange.request.method == "HEAD")

    def begin(self, exchange: Exchange) -> None:
        """It has begun."""

    def client_gone(self) -> None:
        """It stays."""

    def client_eof(self) -> None:
        """It sends on."""

    def _render_head(self, head: ResponseHead) -> bytes:
        return render_answer(head, _VISIT, is_chunked=self._is_chunked)

    def _break_off(self, reason: str) -> None:
        self._finish(self._exchange.cut if self._has_answered else lambda: self._exchange.fail(BadResponse(reason)))

    def _finish(self, say: Callable[[], None]) -> None:
        if not self._is_over:
            self._is_over = True
            self._deadline.close()
            say()

    def take_all(self, pieces: Iterator[bytes]) -> None:
        for piece in pieces:
            self._take(piece)
        if not self._is_over:
            self._take_end()


@in_loop
def check(data: bytes) -> None:
    """The first byte chooses the method of the request; the rest is what the service says."""
    method = "HEAD" if data[:1] == b"H" else "GET"
    said = data[1:]
    whole = _parse([said], is_head_only=method == "HEAD")
    pieces = _parse(cut(said), is_head_only=method == "HEAD")
    assert whole == pieces, (whole, pieces)
    request = Request(_Source(), 1 << 20)
    request.method, request.path, request.version = method, "/", "1.1"
    client = _Client(request)
    relay = _Relay(client)
    relay.take_all(cut(said))
    assert len(client.ends) == 1
    _check_client(client, method, whole)


class _Source:
    """A client's connection."""

    def want_body(self) -> None:
        """Go on."""

    def pause_body(self) -> None:
        """Go on all the same."""


def _check_client(client: _Client, method: str, heard: _Heard) -> None:
    """A client of another implementation reads the answer that was parsed, and nothing behind it."""
    if client.ends != ["finish"]:
        assert client.ends == ["cut"] if client.sent else ["fail"]
        return
    assert heard.head is not None
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    connection.send(h11.Request(method=method, target="/", headers=[("host", "a")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(client.sent)
    answer = connection.next_event()
    assert isinstance(answer, h11.Response), client.sent
    assert answer.status_code == heard.head.status
    body = b""
    while isinstance(event := connection.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage), client.sent
    assert body == heard.body
    assert connection.trailing_data[0] == b"", client.sent


def seeds() -> Iterator[bytes]:
    """Answers with every framing, interim ones, and the known ways to split one in two."""
    yield b"GHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    yield b"HHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
    yield b"GHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nT: x\r\n\r\n"
    yield b"GHTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\nuntil the end"
    yield b"GHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\n"
    yield b"GHTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"
    yield b"GHTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nraw"
    yield b"GHTTP/1.1 302 Found\r\nLocation: http://localhost:3000/x\r\nSet-Cookie: a=b; Path=/; Domain=x\r\n\r\n"
    yield b"GHTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n"
    yield b"GHTTP/1.1 200\r\nX: a\r\n b\r\nConnection: content-length, close\r\nContent-Length: 1\r\n\r\na"
