"""Text is cut for a model's eye: beginning and end, nothing that a terminal alone understands."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.core.model_text import cut_middle, make_readable

pytestmark = pytest.mark.pure


def test_what_fits_is_whole() -> None:
    cut = cut_middle("abc", 3)
    assert (cut.head, cut.tail, cut.is_whole) == ("abc", "", True)


def test_a_cut_stands_at_line_breaks() -> None:
    text = "".join(f"line {number}\n" for number in range(100))
    cut = cut_middle(text, 100)
    assert cut.head.endswith("\n")
    assert cut.tail.startswith("line ")
    assert text[: cut.start] == cut.head
    assert text[cut.end :] == cut.tail
    assert not cut.is_whole


def test_a_line_without_end_is_cut_anywhere() -> None:
    cut = cut_middle("x" * 100, 10)
    assert (cut.head, cut.tail, cut.start, cut.end) == ("x" * 5, "x" * 5, 5, 95)


@given(text=st.text(st.sampled_from("ab\n"), max_size=300), most=st.integers(2, 100))
def test_what_is_kept_and_what_is_left_out_is_the_text(text: str, most: int) -> None:
    cut = cut_middle(text, most)
    assert len(cut.head) + len(cut.tail) <= most or cut.is_whole
    assert cut.head + text[cut.start : cut.end] + cut.tail == text


def test_escapes_and_control_characters_are_removed() -> None:
    assert make_readable("\x1b[1;31mred\x1b[0m\x1bM a\x00b\tc\r\n\udc80") == "red a\ufffdb\tc\r\n\ufffd"
