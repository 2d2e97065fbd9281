from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cove.core.network_log import NetworkLog, parse_cursor
from cove.errors import ValidationFailed
from cove.model.network import NetworkDenial, NetworkEvent, NetworkEventKind

pytestmark = pytest.mark.pure


def event(host: str, *, allowed: bool = True) -> NetworkEvent:
    reason = "" if allowed else "no"
    return NetworkEvent(
        cursor="", kind=NetworkEventKind.CONNECTION, at=datetime.now(UTC), host=host, allowed=allowed, reason=reason
    )


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 20), st.integers(1, 5))
@example([1, 8, 3], 5, 2)
def test_a_reader_sees_every_event_once_or_in_a_gap(sizes: list[int], most: int, batch: int) -> None:
    log = NetworkLog(most)
    position, seen = 0, 0
    for size in sizes:
        log.append([event("a") for _ in range(size)])
        if size % 2:
            for each in log.read(position, batch):
                seen += each.lost if each.kind is NetworkEventKind.GAP else 1
                position = int(each.cursor)
                assert seen == position
    while read := log.read(position, batch):
        for each in read:
            seen += each.lost if each.kind is NetworkEventKind.GAP else 1
            position = int(each.cursor)
    assert seen == sum(sizes) == log.end


def test_what_the_sender_has_lost_is_a_gap_too() -> None:
    log = NetworkLog()
    log.append([event("a")], lost=7)
    gap, connection = log.read(0, 10)
    assert [(each.kind, each.lost) for each in (gap, connection)] == [("gap", 7), ("connection", 0)]
    assert (gap.allowed, gap.sent_bytes, gap.received_bytes) == (False, 0, 0)


def test_denials_are_told_once_each_and_no_older_ones() -> None:
    log = NetworkLog()
    log.append([event("old", allowed=False)])
    mark = log.end
    log.append([event("b", allowed=False), event("a"), event("b", allowed=False), event("c", allowed=False)], lost=1)
    assert log.denials_since(mark) == (
        NetworkDenial(host="b", reason="no"),
        NetworkDenial(host="c", reason="no"),
    )


@pytest.mark.parametrize("text", ["x", "-1", "1" * 19, "", "٣"])
def test_a_cursor_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(ValidationFailed):
        parse_cursor(text)


def test_a_cursor_is_a_position() -> None:
    assert [parse_cursor(None), parse_cursor("12")] == [0, 12]
