"""What RFC 9110 and RFC 9112 ask of a server, by section; what it must refuse is in test_http.py."""

import re
import socket
from email.utils import parsedate_to_datetime

import msgspec
import pytest
from support.raw_http import connect, serve, talk

from cove.errors import LimitExceeded, MethodNotAllowed, SandboxUnavailable, ValidationFailed
from cove.http import Answer, HttpServer, Request, Response

pytestmark = [pytest.mark.anyio, pytest.mark.pure]

HOST = b"Host: localhost\r\n"


def answer(request: Request) -> Answer:
    """Answer as the path says."""
    if request.path == "/405":
        raise MethodNotAllowed("only GET", allowed=["GET", "HEAD"])
    if request.path == "/429":
        raise LimitExceeded("too many")
    if request.path == "/503":
        raise SandboxUnavailable("not now")
    if request.path == "/400":
        raise ValidationFailed("no")
    if request.path in ("/204", "/304"):
        return Response(int(request.path[1:]))
    if request.path == "/fail":
        raise RuntimeError("a bug")
    return Response(200, ((b"x-query", request.query.encode()),), b"hello")


@pytest.mark.parametrize("path", ["/", "/204", "/304", "/400", "/405", "/503", "/fail"])
async def test_9110_6_6_1_every_answer_has_one_date(path: str) -> None:
    async with serve(answer) as port:
        head = (await talk(port, b"GET %b HTTP/1.1\r\n%bConnection: close\r\n\r\n" % (path.encode(), HOST))).lower()
    dates = re.findall(rb"\r\ndate: ([^\r]+)\r\n", head)
    assert len(dates) == 1
    assert re.fullmatch(rb"[a-z]{3}, \d\d [a-z]{3} \d{4} \d\d:\d\d:\d\d gmt", dates[0])
    assert parsedate_to_datetime(dates[0].decode()).year > 2020


@pytest.mark.parametrize("data", [b"BREW / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"], ids=["bad method", "no host"])
async def test_9110_6_6_1_a_refusal_has_a_date_too(data: bytes) -> None:
    async with serve(answer) as port:
        assert b"\r\ndate: " in await talk(port, data)


async def test_9110_15_5_6_method_not_allowed_names_the_methods() -> None:
    async with serve(answer) as port, connect(port) as client:
        reply = await client.ask("/405", method="DELETE")
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(("path", "status"), [("/429", 429), ("/503", 503)])
async def test_9110_10_2_3_who_may_try_again_is_told_when(path: str, status: int) -> None:
    async with serve(answer) as port, connect(port) as client:
        reply = await client.ask(path)
    assert reply.status == status
    assert int(reply.headers["retry-after"]) >= 1


async def test_9110_10_2_3_who_has_to_change_the_request_is_not() -> None:
    async with serve(answer) as port, connect(port) as client:
        assert "retry-after" not in (await client.ask("/400")).headers


async def test_9110_9_3_2_head_is_get_without_content() -> None:
    async with serve(answer) as port, connect(port) as client:
        got, head = await client.ask("/"), await client.ask("/", method="HEAD")
    assert head.headers.keys() == got.headers.keys()
    assert head.headers["content-length"] == "5"


@pytest.mark.parametrize("path", ["/204", "/304"])
async def test_9110_6_4_1_no_content_is_framed_by_its_status(path: str) -> None:
    async with serve(answer) as port, connect(port) as client:
        reply = await client.ask(path)
        assert not {"content-length", "transfer-encoding"} & reply.headers.keys()
        assert (await client.ask("/")).body == b"hello"


async def test_9112_3_2_4_an_asterisk_is_for_options_alone() -> None:
    async with serve(answer) as port:
        assert b" 200 OK" in await talk(port, b"OPTIONS * HTTP/1.1\r\n%bConnection: close\r\n\r\n" % HOST)
        assert b" 400 Bad Request" in await talk(port, b"GET * HTTP/1.1\r\n%b\r\n" % HOST)


async def test_9112_2_2_an_empty_line_before_a_request_is_ignored() -> None:
    async with serve(answer) as port:
        assert b" 200 OK" in await talk(port, b"\r\nGET / HTTP/1.1\r\n%bConnection: close\r\n\r\n" % HOST)


async def test_9112_5_1_names_of_headers_have_no_case_and_values_no_edges() -> None:
    async with serve(answer) as port:
        data = b"GET / HTTP/1.1\r\nhOsT:\t localhost \t\r\ncOnNeCtIoN: \tClose \r\n\r\n"
        assert b"\r\nconnection: close\r\n" in await talk(port, data)


async def test_9112_9_3_http_1_0_is_closed_and_never_chunked() -> None:
    async with serve(answer) as port:
        got = await talk(port, b"GET / HTTP/1.0\r\n\r\n")
    assert b"transfer-encoding" not in got
    assert got.endswith(b"hello")


async def test_9110_10_1_1_an_unknown_expectation_is_no_continue() -> None:
    async with serve(answer) as port, connect(port) as client:
        assert (await client.ask("/", body=b"x", Expect="x-unknown")).status == 200


async def test_9110_15_5_9_a_bug_is_500_and_says_nothing_of_itself() -> None:
    async with serve(answer) as port, connect(port) as client:
        reply = await client.ask("/fail")
    assert reply.status == 500
    assert msgspec.json.decode(reply.body, type=dict[str, object])["code"] == "INTERNAL"
    assert b"a bug" not in reply.body


async def test_a_server_without_words_of_its_own_answers_in_plain_text() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setblocking(False)
        async with HttpServer(answer, [sock]):
            refusal = await talk(sock.getsockname()[1], b"BREW / HTTP/1.1\r\n\r\n")
    assert b"\r\ncontent-type: text/plain" in refusal
    assert b"not valid HTTP" in refusal
