import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cove.core.capture import Capture

pytestmark = pytest.mark.pure

CHUNKS = st.lists(st.binary(max_size=40), max_size=40)


@given(limit=st.integers(0, 64), chunks=CHUNKS)
@example(limit=8, chunks=[b"", b"abc", b"d" * 9])
def test_a_capture_keeps_the_first_and_the_last_bytes(limit: int, chunks: list[bytes]) -> None:
    capture = Capture(limit)
    for chunk in chunks:
        capture.append(chunk)
    whole = b"".join(chunks)
    tail = limit // 2
    expected = whole if len(whole) <= limit else whole[: limit - tail] + whole[len(whole) - tail :]
    assert capture.getvalue() == expected
    assert capture.total == len(whole)
    assert capture.truncated == (len(whole) > limit)


def test_tiny_pieces_are_joined_so_that_memory_stays_near_the_limit() -> None:
    capture = Capture(1000)
    for number in range(200_000):
        capture.append(b"%d" % (number % 10))
    assert len(capture.getvalue()) == 1000
    assert len(capture._tail) <= 2


def test_large_pieces_leave_the_tail_as_soon_as_they_are_not_needed() -> None:
    capture = Capture(1 << 20)
    for _ in range(64):
        capture.append(bytes(1 << 18))
    assert sum(map(len, capture._tail)) < (1 << 19) + (1 << 18)
