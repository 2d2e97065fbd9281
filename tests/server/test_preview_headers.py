"""What a service and its visitor are told about each other, without a connection."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.core.exposure import Label
from cove.errors import Internal, ValidationFailed
from cove.http import HttpLimits, Request
from cove.http.headers import HOP_BY_HOP, hop_by_hop, render_framing
from cove.http.parser import RequestParser
from cove.http.response_parser import BadResponse, ResponseHead, ResponseParser
from cove.server.configuration import Configuration
from cove.server.preview.exposures import PreviewAddress, address_of
from cove.server.preview.headers import Visit, confine_cookie, render_answer, render_request
from cove.wire.frames import parse_upgrade

pytestmark = pytest.mark.pure


class Taken:
    """An answer as it was taken."""

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self.body = b""
        self.ends = 0
        self.raw: bytes | None = None

    def answer_head(self, head: ResponseHead) -> None:
        assert self.head is None
        self.head = head

    def answer_body(self, data: bytes) -> None:
        assert not self.ends
        self.body += data

    def answer_end(self) -> None:
        self.ends += 1

    def answer_switch(self, head: ResponseHead, rest: bytes) -> None:
        self.head, self.raw = head, rest


def parse(*pieces: bytes, is_head_only: bool = False) -> Taken:
    taken = Taken()
    parser = ResponseParser(taken, is_head_only=is_head_only)
    for piece in pieces:
        parser.feed(piece)
    parser.end()
    return taken


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nX: trailer\r\n\r\n"


@given(st.lists(st.integers(0, len(CHUNKED)), max_size=10))
def test_an_answer_is_the_same_in_whatever_pieces_it_comes(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(CHUNKED)]
    taken = parse(*(CHUNKED[start:end] for start, end in pairwise(edges) if start < end))
    assert taken.head is not None
    assert (taken.head.status, taken.body, taken.ends) == (200, b"abcde", 1)


@given(st.binary(max_size=300))
def test_no_bytes_give_anything_but_an_answer_or_a_refusal(data: bytes) -> None:
    for start in (b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"):
        try:
            taken = parse(start + data)
        except BadResponse:
            continue
        assert taken.ends == 1 or taken.raw is not None


def test_interim_answers_are_dropped() -> None:
    taken = parse(b"HTTP/1.1 199 Early\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No\r\nA: b\r\n\r\n")
    assert taken.head is not None
    assert (taken.head.status, taken.head.headers, taken.ends) == (204, [(b"a", b"b")], 1)


def test_an_answer_to_head_ends_with_its_head() -> None:
    taken = parse(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", is_head_only=True)
    assert (taken.body, taken.ends) == (b"", 1)


def test_after_a_switch_everything_is_raw() -> None:
    taken = parse(b"HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x00")
    assert taken.raw == b"\x81\x00"
    assert taken.head is not None
    assert (taken.head.status, taken.head.reason, taken.ends) == (101, b"X", 0)


SWITCH = b"HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nraw"


@pytest.mark.parametrize(
    "rest", [SWITCH, b"\0garbage", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", b"HTTP/1.1 200 \1\r\n\r\n"]
)
@pytest.mark.parametrize(
    "answer", [CHUNKED, b"HTTP/1.1 204 No\r\n\r\n", b"HTTP/1.1 200 X\r\nContent-Length: 0\r\n\r\n"]
)
def test_what_follows_an_answer_is_not_looked_at(answer: bytes, rest: bytes) -> None:
    for taken in (parse(answer + rest), parse(answer, rest), parse(answer, rest, rest)):
        alone = parse(answer)
        assert (taken.head, taken.body, taken.ends, taken.raw) == (alone.head, alone.body, 1, None)


def test_a_head_tells_its_headers_and_not_its_trailers() -> None:
    head = parse(CHUNKED).head
    assert head is not None
    assert (head.reason, head.headers) == (b"OK", [(b"transfer-encoding", b"chunked")])
    assert (head.get(b"transfer-encoding"), head.get(b"x"), head.has_length) == (b"chunked", None, False)
    head = parse(b"HTTP/1.1 200 Very\tgood ~\r\nA: 1\r\nContent-Length: 0\r\na: 2\r\n\r\n").head
    assert head is not None
    assert (head.reason, head.get(b"a"), head.has_length) == (b"Very\tgood ~", b"1", True)


@pytest.mark.parametrize("status", [203, 205, 303, 305])
def test_only_two_kinds_of_answers_have_no_body(status: int) -> None:
    assert parse(b"HTTP/1.1 %d X\r\nContent-Length: 5\r\n\r\nhello" % status).body == b"hello"
    assert [parse(b"HTTP/1.1 %d X\r\nContent-Length: 5\r\n\r\n" % none).ends for none in (204, 304)] == [1, 1]


def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    taken = parse(b"HTTP/1.1 200 OK\r\n\r\n", b"abc", b"de")
    assert (taken.body, taken.ends) == (b"abcde", 1)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"SSH-2.0-x\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 O\x01K\r\n\r\n", "control character"),
        (b"HTTP/1.1 200 O\x0bK\r\n\r\n", "control character"),
        (b"HTTP/1.1 200 O\x1fK\r\n\r\n", "control character"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 201 + b"\r\n", "more than 200 headers"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "other than chunked"),
        (b"", "in the middle"),
        (b"HTTP/1.1 200 OK\r\nA: b\r\n", "in the middle"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "in the middle"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcd", "in the middle"),
        (CHUNKED[:-1], "in the middle"),
    ],
)
def test_what_is_no_answer_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(BadResponse, match=said):
        parse(data)


def test_an_answer_has_200_headers_at_most() -> None:
    head = parse(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n").head
    assert head is not None
    assert len(head.headers) == 200


@pytest.mark.parametrize(
    ("before", "framing"),
    [
        (b"", b"HTTP/1.1 200 OK\r\nA: "),
        (CHUNKED[: CHUNKED.index(b"2\r\nde")], b"2;"),
    ],
    ids=["head", "between pieces of a body"],
)
def test_64_kibibytes_without_a_body_are_too_much(before: bytes, framing: bytes) -> None:
    parser = ResponseParser(Taken(), is_head_only=False)
    parser.feed(before)
    parser.feed(framing + b"x" * ((64 << 10) - len(framing)))
    with pytest.raises(BadResponse, match="too large"):
        parser.feed(b"x")


def test_the_framing_of_our_own_connection_is_rendered() -> None:
    assert render_framing(None, is_chunked=False) == b""
    assert render_framing(None, is_chunked=True) == b"transfer-encoding: chunked\r\n"
    upgrade = b"connection: upgrade\r\nupgrade: websocket\r\n"
    assert render_framing(b"websocket", is_chunked=False) == upgrade
    assert render_framing(b"websocket", is_chunked=True) == upgrade + b"transfer-encoding: chunked\r\n"


def test_headers_that_a_connection_names_concern_it_alone() -> None:
    assert hop_by_hop(None) == hop_by_hop(b"close, Keep-Alive,") == HOP_BY_HOP
    assert hop_by_hop(b"X-One, close, Host, content-length") == HOP_BY_HOP | {b"x-one"}


@pytest.mark.parametrize(
    ("cookie", "prefix", "confined"),
    [
        (b"a=1", b"", b"a=1"),
        (b"a=1; Path=/x; Secure", b"", b"a=1; Path=/x; Secure"),
        (b"a=1; domain=.localhost; Secure", b"", b"a=1; Secure"),
        (b"a=1", b"/p", b"a=1; Path=/p/"),
        (b"a=1; path=/x; Domain=y; HttpOnly", b"/p", b"a=1; HttpOnly; Path=/p/x"),
        (b"a=1; Path=relative", b"/p", b"a=1; Path=/p/"),
        (b"cove_session=1", b"", None),
        (b"__Host-cove_console=1; Secure", b"", None),
        (b" cove_session=1", b"/p", None),
        (b"\tcove_session =1", b"", None),
        (b"=cove_session=1", b"", None),
        (b" = cove_session=1", b"/p", None),
        (b"b=2; domain =x", b"", b"b=2"),
        (b"b=2;\tDOMAIN\t =\t.x ;Secure", b"", b"b=2; Secure"),
        (b"b=2;domain", b"", b"b=2"),
        (b"b=2; \x0bdomain=x; Unknown=1; SameSite = Lax", b"", b"b=2; SameSite = Lax"),
        (b"b=2; Path = /x ; path =\t/y", b"/p", b"b=2; Path=/p/y"),
        (b"b=2; path = /x; Path=y", b"/p", b"b=2; Path=/p/"),
        (
            b"b=2; HttpOnly ; max-age = 3; expires = Thu, 01 Jan 2026",
            b"",
            b"b=2; HttpOnly; max-age = 3; expires = Thu, 01 Jan 2026",
        ),
        (b'b="a; domain=x"', b"", b'b="a'),
    ],
)
def test_a_cookie_stays_with_the_preview_that_set_it(cookie: bytes, prefix: bytes, confined: bytes | None) -> None:
    assert confine_cookie(cookie, prefix) == confined


@pytest.mark.parametrize(
    ("configuration", "address"),
    [
        (Configuration(), PreviewAddress(base="http://localhost:9", path_base="http://127.0.0.1:9")),
        (Configuration(host="0.0.0.0"), PreviewAddress(base="http://localhost:9", path_base="http://127.0.0.1:9")),
        (Configuration(host="::1"), PreviewAddress(base="http://localhost:9", path_base="http://[::1]:9")),
        (
            Configuration(preview_url="https://p.example.com/"),
            PreviewAddress(base="https://p.example.com", path_base="https://p.example.com"),
        ),
    ],
)
def test_where_previews_are_found_is_configured(configuration: Configuration, address: PreviewAddress) -> None:
    assert address_of(configuration, 9) == address


def test_a_label_becomes_a_host_name_or_a_path() -> None:
    address = PreviewAddress(base="https://p.example.com:1", path_base="https://p.example.com:1")
    assert address.url("3000-key-token") == "https://3000-key-token.p.example.com:1"
    assert address.path_url("3000-key-token") == "https://p.example.com:1/3000-key-token/"


def test_a_preview_url_must_be_a_url() -> None:
    with pytest.raises(ValidationFailed):
        Configuration(preview_url="preview.example.com")


def test_the_answer_to_an_upgrade_has_a_status_and_a_length() -> None:
    assert parse_upgrade(b"HTTP/1.1 101 Switching\r\nUpgrade: tcp") == (101, 0)
    assert parse_upgrade(b"HTTP/1.1 502 Bad\r\nContent-Length: 12\r\nX: y") == (502, 12)
    with pytest.raises(Internal):
        parse_upgrade(b"SSH-2.0")


LABEL = Label(3000, "abcdefghijkl", "token")
BY_HOST = Visit(LABEL, "http://3000-abcdefghijkl-token.localhost:8788", "")
BY_PATH = Visit(LABEL, "http://127.0.0.1:8788", "/3000-abcdefghijkl-token")


class NoBody:
    """A request that is only a head."""

    def want_body(self) -> None: ...

    def pause_body(self) -> None: ...


def request_of(head: bytes) -> Request:
    requests: list[Request] = []
    RequestParser(NoBody(), HttpLimits(), requests.append).feed(head)
    return requests[0]


@pytest.mark.parametrize(
    "name", ["X_Forwarded_For", "X-Forwarded_Host", "X-Real-IP", "Transfer_Encoding", "Content_Length", "Forwarded"]
)
def test_a_visitor_pretends_nothing_that_a_service_could_understand_in_another_spelling(name: str) -> None:
    request = request_of(f"GET / HTTP/1.1\r\nHost: a\r\n{name}: forged\r\nX_Own: 1\r\n\r\n".encode())
    rendered = render_request(request, BY_HOST, peer="", key=None)
    assert b"forged" not in rendered
    assert b"x_own: 1\r\n" in rendered


def test_neither_side_can_hide_the_length_of_its_body() -> None:
    request = request_of(b"POST / HTTP/1.1\r\nHost: a\r\nConnection: Content-Length\r\nContent-Length: 3\r\n\r\n")
    assert b"content-length: 3\r\n" in render_request(request, BY_HOST, peer="", key=None)
    head = ResponseHead(200, b"OK", [(b"connection", b"content-length"), (b"content-length", b"3")])
    assert b"content-length: 3\r\n" in render_answer(head, BY_HOST, is_chunked=False)


@pytest.mark.parametrize("status", [101, 204])
def test_an_answer_that_has_no_body_claims_none(status: int) -> None:
    head = ResponseHead(status, b"", [(b"content-length", b"3"), (b"upgrade", b"x")])
    assert b"content-length" not in render_answer(head, BY_HOST, is_chunked=False)


def test_a_service_says_nothing_to_a_browser_that_reaches_beyond_its_own_preview() -> None:
    named = {b"clear-site-data": True, b"nel": False, b"report-to": False, b"alt-svc": False, b"accept-ch": False}
    head = ResponseHead(200, b"OK", [(name, b"x") for name in named])
    by_host = render_answer(head, BY_HOST, is_chunked=False)
    by_path = render_answer(head, BY_PATH, is_chunked=False)
    for name, is_beyond_the_host in named.items():
        assert (name not in by_host) == is_beyond_the_host
        assert name not in by_path


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 O\0K\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 \x1b[2J\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_an_answer_that_could_be_understood_in_two_ways_is_refused(answer: bytes) -> None:
    with pytest.raises(BadResponse):
        parse(answer)
