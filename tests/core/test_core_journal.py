"""The journal's decisions: cursors, holes and gaps, what is kept of a text, who asked."""

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.core.journal import (
    MOST_TEXT,
    NOBODY,
    STRIDE,
    Actor,
    Allowance,
    as_text,
    choose_segment,
    command_text,
    decode_lines,
    encode_lines,
    first_of,
    make_document,
    parse_client,
    parse_cursor,
    parse_trace,
    segment_name,
    segments_in,
    with_gaps,
)
from cove.errors import ValidationFailed
from cove.model import JournalDetail, JournalEvent, JournalKind
from cove.model.journal import JournalFields

pytestmark = pytest.mark.pure

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def event(number: int, kind: JournalKind = JournalKind.EXEC, **fields: object) -> JournalEvent:
    return JournalEvent(cursor=str(number), at=NOW, kind=kind, **fields)  # type: ignore[arg-type]  # as the test says


@given(st.sets(st.integers(1, 60)), st.integers(0, 60))
def test_every_number_is_an_event_or_in_exactly_one_gap(there: set[int], position: int) -> None:
    given = list(with_gaps([event(number) for number in sorted(there)], position))
    at = position
    for each in given:
        assert int(each.cursor) == at + (each.lost or 1)
        at = int(each.cursor)
    assert at == max([number for number in there if number > position], default=position)
    assert [int(each.cursor) for each in given if each.kind is JournalKind.EXEC] == sorted(
        number for number in there if number > position
    )


def test_a_gap_that_was_written_stands_for_the_hole_before_it() -> None:
    events = [event(1), event(1 + STRIDE, JournalKind.GAP), event(2 + STRIDE)]
    assert list(with_gaps(events, 0)) == events


def test_nobody_knows_how_much_is_missing_of_a_dropped_gap() -> None:
    gap, _ = with_gaps([event(STRIDE + 5)], 1)
    assert (gap.kind, gap.lost) == (JournalKind.GAP, None)


def test_lines_come_back_as_they_were_and_spoilt_ones_are_left_out() -> None:
    events = [event(1, text="a\nb \x00 ü"), event(2, JournalKind.OUTPUT, data=b"\xff\n")]
    data = encode_lines(list(map(msgspec.structs.asdict, events)))
    assert data.count(b"\n") == 2
    assert list(decode_lines(b"{spoilt\n" + data + b"\xff\xfe\n")) == events


def test_a_line_without_a_number_or_nested_without_end_is_left_out() -> None:
    (line,) = encode_lines([msgspec.structs.asdict(event(3))]).splitlines()
    unnumbered = line.replace(b'"3"', b'"x"')
    nested = b'{"deep":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert unnumbered != line
    assert list(decode_lines(b"\n".join([unnumbered, nested, line]))) == [event(3)]


def test_what_is_no_unicode_is_replaced() -> None:
    fields: JournalFields = {"path": "/workspace/\udcff", "duration": 1.5}
    (read,) = decode_lines(encode_lines([make_document(1, NOW, JournalKind.FILES, NOBODY, fields)]))
    assert (read.path, read.duration) == ("/workspace/?", 1.5)
    assert as_text(3) == 3


def test_an_event_says_who_asked() -> None:
    actor = Actor("key", "curl/8", "trace")
    (read,) = decode_lines(encode_lines([make_document(7, NOW, JournalKind.EXEC, actor, {"exit_code": 0})]))
    assert read == event(7, key="key", client="curl/8", trace="trace", exit_code=0)


def test_the_segment_of_a_position() -> None:
    names = segments_in([segment_name(10), "open", segment_name(1), "end.json"])
    assert names == [segment_name(1), segment_name(10)]
    assert [choose_segment(names, position) for position in (0, 8, 9, 99)] == [names[0], names[0], names[1], names[1]]
    assert choose_segment([names[1]], 0) == names[1]
    assert choose_segment([], 0) is None
    assert first_of(names[1]) == 10


def test_a_cursor_is_a_number() -> None:
    assert (parse_cursor(None), parse_cursor("17")) == (0, 17)
    for wrong in ("", "-1", "x", "9" * 19, "\u0661"):
        with pytest.raises(ValidationFailed, match="cursor"):
            parse_cursor(wrong)


def test_a_command_as_one_would_type_it() -> None:
    assert command_text("echo $HOME") == "echo $HOME"
    assert command_text(["echo", "a b"]) == "echo 'a b'"
    assert len(command_text("x" * 9999)) == len(command_text(["x" * 99] * 999)) == MOST_TEXT + 1


@pytest.mark.parametrize(
    ("header", "client"),
    [
        ("cove/0.1.0", "cove/0.1.0"),
        ("curl/8.5.0 (secret)", "curl/8.5.0"),
        ("Mozilla", None),
        ("", None),
        ("a b/1", None),
    ],
)
def test_the_name_of_a_client_is_all_that_is_kept(header: str, client: str | None) -> None:
    assert parse_client(header) == client


def test_the_trace_of_a_request() -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    assert parse_trace(f"00-{trace}-00f067aa0ba902b7-01") == trace
    assert parse_trace(f"00-{'0' * 32}-00f067aa0ba902b7-01") is None
    assert parse_trace("secret") is None


def test_code_inside_cannot_fill_the_journal() -> None:
    allowance = Allowance(2, 1.0)
    assert [allowance.take(now) for now in (5.0, 5.0, 5.0, 5.5, 6.5)] == [True, True, False, False, True]
    assert allowance.take_refused() == 2
    assert allowance.take_refused() == 0
    assert [allowance.take(now) for now in (99.0, 99.0, 99.0)] == [True, True, False]


def test_the_lesser_detail() -> None:
    assert JournalDetail.OUTPUT.at_most(JournalDetail.EVENTS) is JournalDetail.EVENTS
    assert JournalDetail.EVENTS.at_most(JournalDetail.OUTPUT) is JournalDetail.EVENTS
