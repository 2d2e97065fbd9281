"""Signals, lines and ports as callers name them."""

import re
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.core.line_match import LineMatcher
from cove.core.port_target import HttpTarget, TcpTarget, make_target
from cove.core.signals import parse_signal
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
    matcher = LineMatcher(re.compile(r"server on (\d{4})"))
    found, at, turn = None, 0, 0
    while found is None and at < len(data):
        size = sizes[turn % len(sizes)]
        found = matcher.feed("stdout", data[at : at + size])
        at, turn = at + size, turn + 1
    assert found is not None
    assert (found.line, found.groups) == (f"{before}server on 8080{after}", ("8080",))


def test_a_text_is_found_before_its_line_ends_and_never_across_streams() -> None:
    matcher = LineMatcher("ready")
    assert matcher.feed("stdout", b"rea") is None
    assert matcher.feed("stderr", b"dy\n") is None
    found = matcher.feed("stdout", b"dy")
    assert found is not None
    assert found.line == "ready"


def test_a_last_line_without_an_end_is_looked_at_when_the_process_ends() -> None:
    matcher = LineMatcher(re.compile("^done$"))
    assert matcher.finish() is None
    assert matcher.feed("stderr", b"done") is None
    found = matcher.finish()
    assert found is not None
    assert found.line == "done"
    assert LineMatcher(re.compile("x")).feed("stdout", b"\n") is None


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
