import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.core.redaction import Redactor

pytestmark = pytest.mark.pure

SECRET = b"abcabcd"


@given(st.lists(st.sampled_from([b"abc", b"d", b"abcabcd", b"x", b"abcd"]), max_size=20), st.integers(1, 5))
def test_a_secret_is_found_however_the_stream_is_cut(parts: list[bytes], size: int) -> None:
    data = b"".join(parts)
    redactor = Redactor([SECRET])
    shown = b"".join(redactor.feed(data[at : at + size]) for at in range(0, len(data), size)) + redactor.end()
    assert len(shown) == len(data)
    assert SECRET not in shown
    assert shown.replace(b"*", b"") in data.replace(SECRET, b"") or SECRET in data


def test_longer_secrets_go_before_the_shorter_ones_in_them() -> None:
    assert Redactor([b"abcd", b"abcdefgh"]).whole(b"x abcdefgh abcd y") == b"x ******** **** y"


def test_without_secrets_nothing_is_touched_or_held_back() -> None:
    redactor = Redactor([b"abc"])
    assert (redactor.whole(b"abc"), redactor.feed(b"abc"), redactor.end()) == (b"abc", b"abc", b"")
