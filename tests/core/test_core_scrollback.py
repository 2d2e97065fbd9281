"""Every byte by its cursor, bounded, and a good place to begin."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cove.core.capture import Scrollback

pytestmark = pytest.mark.pure

CHUNKS = st.lists(st.binary(max_size=60), max_size=60)


@given(CHUNKS, st.integers(1, 50))
def test_what_is_kept_is_the_end_of_everything_and_bounded(chunks: list[bytes], limit: int) -> None:
    scrollback, whole = Scrollback(limit), b""
    for chunk in chunks:
        scrollback.append(chunk)
        whole += chunk
        kept = scrollback.end - scrollback.start
        assert scrollback.end == len(whole)
        assert min(limit, len(whole)) <= kept <= 2 * limit
        assert scrollback.read(scrollback.start, kept) == whole[scrollback.start :]


@given(CHUNKS, st.integers(1, 50), st.data())
def test_a_reader_that_follows_its_cursor_sees_every_byte_once_or_knows_what_it_missed(
    chunks: list[bytes], limit: int, data: st.DataObject
) -> None:
    scrollback, whole, cursor, seen = Scrollback(limit), b"", 0, []
    for chunk in chunks:
        scrollback.append(chunk)
        whole += chunk
        if data.draw(st.booleans()):
            cursor = max(cursor, scrollback.start)
            part = scrollback.read(cursor, data.draw(st.integers(0, 80)))
            seen.append((cursor, part))
            cursor += len(part)
    assert all(whole[at : at + len(part)] == part for at, part in seen)
    assert all(at + len(part) <= later for (at, part), (later, _) in pairwise(seen))


@given(CHUNKS, st.integers(1, 50), st.data())
def test_any_cut_of_reads_gives_the_same_bytes(chunks: list[bytes], limit: int, data: st.DataObject) -> None:
    scrollback = Scrollback(limit)
    for chunk in chunks:
        scrollback.append(chunk)
    cursor, parts = scrollback.start, []
    while cursor < scrollback.end:
        parts.append(scrollback.read(cursor, data.draw(st.integers(1, 9))))
        cursor += len(parts[-1])
    assert b"".join(parts) == scrollback.read(scrollback.start, scrollback.end)


LINES = st.lists(st.text(st.sampled_from("aä€𝄞\x1b[31m"), max_size=30), min_size=1, max_size=80)


@given(LINES, st.integers(1, 200))
@example(["ä€"] * 20, 10)
def test_a_new_viewer_begins_at_the_beginning_or_after_a_line(lines: list[str], limit: int) -> None:
    whole = "".join(line + "\r\n" for line in lines).encode()
    scrollback = Scrollback(limit)
    for at in range(0, len(whole), 7):
        scrollback.append(whole[at : at + 7])
        begin = scrollback.fresh_cursor()
        assert scrollback.start <= begin <= scrollback.end
        kept = whole[scrollback.start : scrollback.end]
        assert begin == 0 or b"\n" not in kept or whole[begin - 1 : begin] == b"\n"


@given(st.lists(st.sampled_from(["\x1b[2;7H", "\x1b[0m", "ä", "€", "𝄞", "x"]), min_size=40, max_size=200))
@example(["x", "\x1b[0m"] * 20)
def test_where_no_lines_are_a_new_viewer_begins_at_an_escape_sequence_or_at_a_character(parts: list[str]) -> None:
    whole = "".join(parts).encode()
    scrollback = Scrollback(16)
    for at in range(0, len(whole), 5):
        scrollback.append(whole[at : at + 5])
        begin = scrollback.fresh_cursor()
        kept = whole[scrollback.start : scrollback.end]
        if begin and b"\x1b" in kept:
            assert whole[begin : begin + 1] == b"\x1b"
        else:
            assert not 0x80 <= (whole[begin : scrollback.end] or b"x")[0] < 0xC0


def test_a_line_that_is_far_away_is_not_waited_for() -> None:
    scrollback = Scrollback(10_000)
    scrollback.append(b"x" * 30_000 + b"\n")
    assert scrollback.fresh_cursor() == scrollback.start
