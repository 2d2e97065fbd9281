import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cove.core.redaction import Redactor, forms_of

pytestmark = pytest.mark.pure

SECRET = b"abcabcd"


@given(st.lists(st.sampled_from([b"abc", b"d", b"abcabcd", b"x", b"abcd"]), max_size=20), st.integers(1, 5))
@example([b"x", SECRET, b"x"], 3)
def test_a_secret_is_found_however_the_stream_is_cut(parts: list[bytes], size: int) -> None:
    data = b"".join(parts)
    redactor = Redactor([SECRET])
    shown = b"".join(redactor.feed(data[at : at + size]) for at in range(0, len(data), size)) + redactor.end()
    assert len(shown) == len(data)
    assert SECRET not in shown
    assert shown.replace(b"*", b"") in data.replace(SECRET, b"") or SECRET in data


@given(st.lists(st.sampled_from([b"abcd", b"efgh", b"abc", b"cde", b"x"]), max_size=12), st.integers(1, 9))
def test_a_stream_shows_what_its_whole_would_however_it_is_cut(parts: list[bytes], size: int) -> None:
    data = b"".join(parts)
    redactor = Redactor([b"abcd", b"abcdefgh", b"cdex"])
    shown = b"".join(redactor.feed(data[at : at + size]) for at in range(0, len(data), size)) + redactor.end()
    assert shown == Redactor([b"abcd", b"abcdefgh", b"cdex"]).whole(data)


def test_a_longer_secret_that_is_cut_after_a_shorter_one_is_hidden_whole() -> None:
    redactor = Redactor([b"abcd", b"abcdefgh"])
    assert redactor.feed(b"abcd") + redactor.feed(b"efgh") + redactor.end() == b"********"


def test_no_more_is_held_back_than_may_begin_a_secret() -> None:
    redactor = Redactor([SECRET])
    assert redactor.feed(b"0123456789") == b"0123"
    assert redactor.end() == b"456789"


def test_longer_secrets_go_before_the_shorter_ones_in_them() -> None:
    assert Redactor([b"abcd", b"abcdefgh"]).whole(b"x abcdefgh abcd y") == b"x ******** **** y"


def test_without_secrets_nothing_is_touched_or_held_back() -> None:
    redactor = Redactor([b"abc"])
    assert (redactor.whole(b"abc"), redactor.feed(b"abc"), redactor.end()) == (b"abc", b"abc", b"")


@pytest.mark.parametrize(
    "form",
    [
        b'ab/cd+"ef<gh',
        b"ab/cd%2B%22ef%3Cgh",
        b"ab%2Fcd%2B%22ef%3Cgh",
        b"ab%2fcd%2b%22ef%3cgh",
        b'ab/cd+\\"ef<gh',
        b'ab\\/cd+\\"ef<gh',
        b"ab/cd+&quot;ef&lt;gh",
        b"YWIvY2QrImVmPGdo",
    ],
)
def test_a_secret_is_found_in_the_forms_of_urls_json_html_and_base64(form: bytes) -> None:
    redactor = Redactor(each.encode() for each in forms_of('ab/cd+"ef<gh'))
    assert redactor.whole(b"key=" + form + b";") == b"key=" + b"*" * len(form) + b";"
