"""Signals, lines and ports as callers name them."""

import re
import signal
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.core.command import parse_signal
from cove.core.line_search import (
    FOUND,
    HEAD,
    LONGEST_LINE,
    MOST_SLOW,
    NOTHING,
    LineSearch,
    TooSlow,
    decode_match,
    encode_expression,
    encode_match,
    serve,
)
from cove.core.readiness import HttpTarget, LineMatcher, TcpTarget, make_target
from cove.errors import ValidationFailed

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("value", ["TERM", "term", "SIGTERM", "sigterm", 15, signal.SIGTERM])
def test_a_signal_is_named_in_any_usual_way(value: int | str) -> None:
    assert parse_signal(value) == 15


@pytest.mark.parametrize("value", ["", "NOPE", "SIG", "15", 0, -1, 65, True, None, 1.5])
def test_any_other_signal_is_refused_by_name(value: object) -> None:
    with pytest.raises(ValidationFailed, match="unknown signal"):
        parse_signal(value)  # type: ignore[arg-type]


@given(before=st.text(max_size=30), after=st.text(max_size=30), sizes=st.lists(st.integers(1, 7), min_size=1))
def test_a_line_is_found_however_it_is_cut(before: str, after: str, sizes: list[int]) -> None:
    before, after = (re.sub(r"[\r\n]|server", "_", text) for text in (before, after))
    data = f"first\n{before}server on 8080{after}\r\nlast".encode()
    search = LineSearch(re.compile(r"server on (\d{4})"))
    found, at, turn = None, 0, 0
    while found is None and at < len(data):
        size = sizes[turn % len(sizes)]
        found = search.feed(b"o", data[at : at + size])
        at, turn = at + size, turn + 1
    assert found is not None
    assert (found.string, found.groups()) == (f"{before}server on 8080{after}", ("8080",))


@given(
    lines=st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=9), max_size=5),
    data=st.data(),
)
def test_a_text_is_found_in_the_first_line_that_has_it(lines: list[str], data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([line[at : at + 3] for line in lines for at in range(len(line))] or ["x"]))
    output = "\n".join(lines).encode()
    expected = next((line for line in lines if text in line), None)
    matcher = LineMatcher(text)
    whole = matcher.feed("stdout", output)
    assert (whole and whole.line) == (expected and expected.removesuffix("\r"))
    matcher = LineMatcher(text)
    found = [each for at in range(len(output)) if (each := matcher.feed("stdout", output[at : at + 1])) is not None]
    assert bool(found) == bool(whole)


def test_a_text_is_found_before_its_line_ends_and_never_across_streams() -> None:
    matcher = LineMatcher("ready")
    assert matcher.feed("stdout", b"rea") is None
    assert matcher.feed("stderr", b"dy\n") is None
    found = matcher.feed("stdout", b"dy")
    assert found is not None
    assert found.line == "ready"


def test_a_text_with_a_line_break_is_refused() -> None:
    with pytest.raises(ValidationFailed, match="line break"):
        LineMatcher("ready\n")


def test_a_last_line_without_an_end_is_looked_at_when_the_process_ends() -> None:
    search = LineSearch(re.compile("^done$"))
    assert search.finish() is None
    assert search.feed(b"e", b"done") is None
    found = search.finish()
    assert found is not None
    assert found.string == "done"
    assert LineSearch(re.compile("x")).feed(b"o", b"\n") is None


def test_of_a_line_without_end_only_the_last_part_is_kept() -> None:
    search = LineSearch(re.compile("^x*y$"))
    for _ in range(3):
        assert search.feed(b"o", b"x" * LONGEST_LINE) is None
    found = search.feed(b"o", b"xy\n")
    assert found is not None
    assert len(found.string) == LONGEST_LINE


@given(line=st.text(st.characters(exclude_categories=["Cs"])), groups=st.lists(st.none() | st.text("aé€😀")))
def test_a_match_is_the_same_after_its_way(line: str, groups: list[str | None]) -> None:
    assert decode_match(encode_match(line, groups)) == (line, tuple(groups))


def test_frames_are_answered_one_by_one_until_the_other_end_closes() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(encode_expression(r"(a)|b$", re.IGNORECASE))
        for stream, data in ((b"o", b"x\nA"), (b"o", b"\n"), (b"e", b"b"), (b"o", b"")):
            ours.sendall(HEAD.pack(stream, len(data)) + data)
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            serve(theirs)
        answers = ours.recv(1 << 16)
    first, second = encode_match("A", ("A",)), encode_match("b", (None,))
    nothing = HEAD.pack(NOTHING, 0)
    assert answers == b"".join(
        [nothing, HEAD.pack(FOUND, len(first)), first, nothing, HEAD.pack(FOUND, len(second)), second]
    )


def test_lines_that_take_too_long_are_left_out_until_there_are_too_many() -> None:
    class Slow:
        def search(self, line: str) -> None:
            raise TooSlow

    search = LineSearch(Slow())  # type: ignore[arg-type]
    assert search.feed(b"o", b"x\n" * MOST_SLOW) is None
    assert not search.is_slow
    assert search.feed(b"o", b"x\nx\n") is None
    assert search.is_slow


def test_a_port_is_asked_over_tcp_or_http() -> None:
    assert make_target(80, "tcp", "/", (200, 399)) == TcpTarget(80)
    target = make_target(8080, "http", "/health", (200, 299))
    assert isinstance(target, HttpTarget)
    assert target.request.startswith(b"GET /health HTTP/1.1\r\nHost: localhost:8080\r\n")
    assert target.request.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("line", "is_accepted"),
    [
        (b"HTTP/1.1 200 OK", True),
        (b"HTTP/1.0 399", True),
        (b"HTTP/1.1 404 Not Found", False),
        (b"HTTP/1.1", False),
        (b"HTTP/1.1 abc", False),
        (b"SSH-2.0 200", False),
        (b"", False),
    ],
)
def test_only_a_status_in_the_range_means_ready(line: bytes, is_accepted: bool) -> None:
    assert HttpTarget(80, "/", (200, 399)).accepts(line) == is_accepted


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ((0, "tcp", "/", (200, 399)), "port"),
        ((65536, "tcp", "/", (200, 399)), "port"),
        ((True, "tcp", "/", (200, 399)), "port"),
        (("80", "tcp", "/", (200, 399)), "port"),
        ((80, "udp", "/", (200, 399)), "mode"),
        ((80, "http", "health", (200, 399)), "path"),
        ((80, "http", "/a b", (200, 399)), "path"),
        ((80, "http", "/a\r\nHost: x", (200, 399)), "path"),
        ((80, "http", "/é", (200, 399)), "path"),
        ((80, "http", "/", (400, 200)), "status"),
        ((80, "http", "/", (200,)), "status"),
        ((80, "http", "/", 200), "status"),
    ],
)
def test_a_target_that_makes_no_sense_is_refused(arguments: tuple[object, ...], part: str) -> None:
    with pytest.raises(ValidationFailed, match=part):
        make_target(*arguments)  # type: ignore[arg-type]
