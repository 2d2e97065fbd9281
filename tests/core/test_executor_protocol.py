"""Frames of executors: whole, in pieces, and forged."""

import time
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cove.agent.protocol import ProtocolError
from cove.core.executor_protocol import (
    EVENT_BYTES,
    MOST_MESSAGE_BYTES,
    MOST_PAYLOAD_BYTES,
    Finished,
    Forked,
    FrameDecoder,
    Raised,
    Ready,
    Said,
    Shown,
    Unforked,
    check_language,
    encode_fork,
    encode_run,
)
from cove.core.json_tokens import JsonBuilder
from cove.errors import UnsupportedLanguage
from cove.executor.channel import (
    DISPLAY,
    DONE,
    END,
    ERROR,
    FORKED,
    JSON,
    PACKAGES,
    PIECE,
    READY,
    REFUSED,
    TEXT,
    VALUE,
    bounded,
    frame,
    message,
)
from cove.model import Result

pytestmark = pytest.mark.pure

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=3),  # noqa: E501
    max_leaves=8,
)  # fmt: skip
BUNDLES = st.dictionaries(st.sampled_from(["text/plain", "text/html", "application/json"]), VALUES)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)


def decode(data: bytes) -> list[Said]:
    """Everything that these bytes say."""
    decoder = FrameDecoder()
    decoder.feed(data)
    said = decoder.take()
    while decoder.has_frame:
        said += decoder.take()
    return said


def shown(kind: bytes, bundle: dict[str, object]) -> bytes:
    return b"".join(message(kind, *bounded(bundle)))


def raised(*texts: str) -> bytes:
    return b"".join(message(ERROR, dict(zip(("name", "message", "traceback"), texts, strict=True))))


MESSAGES = st.one_of(
    st.just(frame(READY)),
    st.builds(shown, st.sampled_from([DISPLAY, VALUE]), BUNDLES),
    st.builds(raised, TEXTS, TEXTS, TEXTS),
    st.just(frame(PACKAGES)),
    st.integers(0, 2**31).map(lambda count: frame(DONE, b"%d" % count)),
    st.integers(0, 2**31).map(lambda pid: frame(FORKED, b"%d" % pid)),
    st.integers(0, 4095).map(lambda number: frame(REFUSED, b"error\0%d" % number)),
    st.lists(st.binary(max_size=90).map(lambda name: name.replace(b"\0", b"")), min_size=1, max_size=32).map(
        lambda names: frame(REFUSED, b"\0".join([b"threads", *names]))
    ),
)


@given(st.lists(MESSAGES, max_size=5), st.lists(st.integers(1, 40), min_size=1, max_size=30))
@example([frame(READY), frame(PACKAGES), frame(DONE, b"7"), raised("é", "€", "\U0001f600")], [3])
def test_what_was_said_comes_out_however_the_bytes_are_cut(sent: list[bytes], sizes: list[int]) -> None:
    data = b"".join(sent)
    decoder = FrameDecoder()
    received: list[Said] = []
    at = turn = 0
    while at < len(data) or decoder.has_frame:
        size = sizes[turn % len(sizes)]
        decoder.feed(data[at : at + size])
        received += decoder.take()
        at += size
        turn += 1
    assert received == [said for each in sent for said in decode(each)]
    assert len(received) == len(sent)


@given(BUNDLES)
def test_a_bundle_comes_out_as_it_was_shown(bundle: dict[str, object]) -> None:
    (said,) = decode(shown(VALUE, bundle))
    assert isinstance(said, Shown)
    assert said.result == Result(data=bundle, is_main=True)


def test_what_json_does_not_have_becomes_null_or_text() -> None:
    value = {1: float("nan"), None: float("inf"), (2,): {3}, "long": "é" * 5000, "k" * 3000: (True, [{}, []])}
    (said,) = decode(shown(DISPLAY, {"application/json": value}))
    assert isinstance(said, Shown)
    assert said.result["application/json"] == {
        "1": None, "null": None, "(2,)": "{3}", "long": "é" * 5000, "k" * 3000: [True, [{}, []]],
    }  # fmt: skip


@pytest.mark.parametrize("value", [10**400, [[]] * 100_000, "x" * (16 << 20)])
def test_json_that_is_too_large_is_left_out_and_that_is_said(value: object) -> None:
    nested: object = value
    for _ in range(3):
        nested = [nested]
    (said,) = decode(shown(DISPLAY, {"application/json": nested, "text/plain": "small"}))
    assert isinstance(said, Shown)
    assert said.result == Result(data={"text/plain": "small"}, truncated=True)


def test_json_has_the_room_that_it_is_given_and_no_more() -> None:
    piece = b'["[",1,"\\"text","{","\\"key",null,"]","]"]'
    measured = JsonBuilder()
    assert measured.size == 0
    assert measured.take(piece, 1 << 20)
    assert JsonBuilder().take(piece, measured.size)
    assert not JsonBuilder().take(piece, measured.size - 1)


def test_a_wide_string_counts_for_what_it_takes() -> None:
    narrow, wide = JsonBuilder(), JsonBuilder()
    assert narrow.take(msgspec.json.encode(['"' + "e" * 100]), 1 << 20)
    assert wide.take(msgspec.json.encode(['"' + "é" * 100]), 1 << 20)
    assert 100 < narrow.size < 200
    assert 400 < wide.size < 500


def test_json_has_a_hundred_levels_and_a_piece_a_thousand_tokens_at_most() -> None:
    assert JsonBuilder().take(msgspec.json.encode(["["] * 100), 1 << 20)
    assert not JsonBuilder().take(msgspec.json.encode(["["] * 101), 1 << 20)
    assert JsonBuilder().take(msgspec.json.encode(["[", *[1] * 999]), 1 << 20)
    with pytest.raises(ProtocolError, match="1001 tokens"):
        JsonBuilder().take(msgspec.json.encode(["[", *[1] * 1000]), 1 << 20)


def test_json_that_is_too_deep_is_left_out() -> None:
    deep: object = 1
    for _ in range(500):
        deep = [deep]
    (said,) = decode(shown(DISPLAY, {"application/json": deep}))
    assert isinstance(said, Shown)
    assert said.result == Result(data={}, truncated=True)


def test_only_a_value_is_main_and_an_error_has_its_texts() -> None:
    said = decode(shown(VALUE, {"text/plain": "1"}) + shown(DISPLAY, {}) + raised("ValueError", "bad", "lines"))
    assert [type(each) for each in said] == [Shown, Shown, Raised]
    value, display, error = said
    assert isinstance(value, Shown)
    assert isinstance(display, Shown)
    assert isinstance(error, Raised)
    assert (value.result.is_main, display.result.is_main) == (True, False)
    assert display.size > 0
    assert (error.error.name, error.error.message, error.error.traceback) == ("ValueError", "bad", "lines")
    assert decode(frame(READY) + frame(DONE, b"7")) == [Ready(), Finished(7)]


@given(st.binary(max_size=300))
def test_bytes_of_any_kind_are_messages_or_a_protocol_error(data: bytes) -> None:
    for forged in (
        data,
        frame(DISPLAY) + frame(data[:1] or b"x", data),
        frame(DISPLAY) + frame(JSON, b"a") + frame(PIECE, data),
    ):
        try:
            said = decode(forged)
        except ProtocolError:
            continue
        assert all(isinstance(each, Said) for each in said)


def json_part(*pieces: bytes) -> bytes:
    return frame(DISPLAY) + frame(JSON, b"a") + b"".join(frame(PIECE, piece) for piece in pieces) + frame(END)


@pytest.mark.parametrize(
    "data",
    [
        frame(b"?"),
        frame(PIECE, b"x"),
        frame(END),
        frame(DONE, b"many"),
        frame(DONE, b"1" * 19),
        frame(DONE),
        frame(DISPLAY) + frame(READY),
        frame(DISPLAY) + frame(DISPLAY),
        frame(DISPLAY) + frame(PIECE, b"x"),
        frame(DISPLAY) + frame(TEXT),
        frame(DISPLAY) + frame(TEXT, b"x" * 256),
        frame(DISPLAY) + frame(TEXT, b"a") + frame(PIECE),
        frame(DISPLAY) + b"".join(frame(TEXT, b"%d" % part) for part in range(66)),
        json_part(),
        json_part(b"1"),
        json_part(b"[[1]]"),
        json_part(b"[NaN]"),
        json_part(b'["'),
        json_part(b'["\xff"]'),
        json_part(b"[1,2]"),
        json_part(b'["x"]'),
        json_part(b'["]"]'),
        json_part(b'["["]'),
        json_part(b'["{",1]'),
        json_part(b'["{","\\"key","]"]'),
        json_part(b'["(",1]'),
        json_part(b"[" + b"1," * 2000 + b"1]"),
        json_part(b"[" * 30_000 + b"]" * 30_000),
    ],
)  # fmt: skip
def test_a_forged_frame_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(data)


def test_a_frame_that_promises_too_much_is_refused_before_it_is_kept() -> None:
    with pytest.raises(ProtocolError, match="65537"):
        decode(PIECE + (MOST_PAYLOAD_BYTES + 1).to_bytes(4, "big"))


def wide_at_the_end() -> Iterable[bytes]:
    yield from [b"x" * 65536] * 250
    yield "\U0001f600".encode()


FLOODS: dict[str, tuple[bytes, bytes, Iterable[bytes]]] = {
    "text": (DISPLAY, TEXT, [b"x" * 65536] * 1500),
    "bytes that are no text": (DISPLAY, TEXT, [b"\xff" * 65536] * 500),
    "control characters": (DISPLAY, TEXT, [b"\x01" * 65536] * 500),
    "one wide character at last": (DISPLAY, TEXT, list(wide_at_the_end())),
    "wide characters": (DISPLAY, TEXT, ["\U0001f600".encode() * 16384] * 500),
    "single characters": (DISPLAY, TEXT, [b"x"] * 100_000),
    "an error": (ERROR, TEXT, [b"x" * 65536] * 500),
    "lists": (DISPLAY, JSON, [b'["["]', *[b"[" + b'"[","]",' * 499 + b'"[","]"]'] * 1000, b'["]"]']),
    "objects": (DISPLAY, JSON, [b'["["]', *[b"[" + b'"{","]",' * 499 + b'"{","]"]'] * 1000, b'["]"]']),
    "numbers": (DISPLAY, JSON, [b'["["]', *[b"[" + b"1," * 999 + b"1]"] * 1000, b'["]"]']),
    "depth": (DISPLAY, JSON, [b'["["' + b',"["' * 900 + b"]"] * 100),
    "a long string": (DISPLAY, JSON, [b'["("]', *[b'["\\"' + b"x" * 60_000 + b'"]'] * 500, b'["]"]']),
    "a long string that is wide at last": (DISPLAY, JSON, [b'["("]', *[b'["\\"' + b"x" * 60_000 + b'"]'] * 250, '["\\"\U0001f600"]'.encode(), b'["]"]']),  # noqa: E501
}  # fmt: skip


@pytest.mark.timed
@pytest.mark.parametrize("name", FLOODS)
def test_a_message_without_measure_is_cut_flagged_and_taken_in_small_steps(name: str) -> None:
    kind, part, pieces = FLOODS[name]
    decoder = FrameDecoder()
    said: list[Said] = []
    longest = 0.0
    frames = [frame(kind), frame(part, b"message"), *(frame(PIECE, piece) for piece in pieces), frame(END)]
    for each in frames:
        decoder.feed(each)
        began = time.thread_time()
        said += decoder.take()
        longest = max(longest, time.thread_time() - began)
    (whole,) = said
    assert isinstance(whole, Shown | Raised)
    assert whole.size <= MOST_MESSAGE_BYTES
    is_small = name in ("single characters", "depth")
    assert (whole.result.truncated if isinstance(whole, Shown) else whole.truncated) or is_small
    assert longest < 0.010, f"{longest * 1000:.1f} ms"


def pieces(kind: bytes, name: bytes, piece: bytes, count: int) -> bytes:
    """One part of a message, in that many pieces."""
    return frame(kind, name) + frame(PIECE, piece) * count


def test_plain_text_beyond_the_budget_keeps_its_beginning_and_any_other_part_is_left_out() -> None:
    too_many = MOST_MESSAGE_BYTES // 60_000 + 2
    text, html = (pieces(TEXT, name, b"x" * 60_000, too_many) for name in (b"text/plain", b"text/html"))
    json = frame(JSON, b"j") + frame(PIECE, b'["("]') + frame(PIECE, b'["\\"' + b"x" * 60_000 + b'"]') * too_many
    for parts, kept in ((text, ["text/plain"]), (html, []), (json, [])):
        (said,) = decode(frame(DISPLAY) + parts + frame(END))
        assert isinstance(said, Shown)
        assert said.result.truncated
        assert list(said.result.data) == kept
        assert all(len(str(value)) > MOST_MESSAGE_BYTES - 120_000 for value in said.result.data.values())


def test_a_long_text_of_an_error_is_cut_and_the_others_are_whole() -> None:
    long = pieces(TEXT, b"message", b"x" * 60_000, 100)
    (said,) = decode(
        frame(ERROR) + pieces(TEXT, b"name", b"E", 1) + long + pieces(TEXT, b"traceback", b"t", 1) + frame(END)
    )
    assert isinstance(said, Raised)
    assert said.truncated
    assert (said.error.name, said.error.traceback) == ("E", "t")
    assert 1 << 20 < len(said.error.message) <= 2 << 20


def test_many_frames_are_taken_in_many_steps() -> None:
    decoder = FrameDecoder()
    decoder.feed(frame(READY) * 10_000)
    assert 0 < len(decoder.take()) < 1000


def text_part(text: bytes, name: bytes = b"text/plain") -> bytes:
    """A display of one text, in as many pieces as it takes."""
    pieces = [text[at : at + MOST_PAYLOAD_BYTES] for at in range(0, len(text), MOST_PAYLOAD_BYTES)]
    return frame(DISPLAY) + frame(TEXT, name) + b"".join(frame(PIECE, piece) for piece in pieces) + frame(END)


def size_of(text: bytes) -> int:
    """What a text counts for, beside the message it is in."""
    alone, around = decode(text_part(text)) + decode(text_part(b""))
    assert isinstance(alone, Shown)
    assert isinstance(around, Shown)
    return alone.size - around.size


@pytest.mark.parametrize(("text", "width"), [("a", 1), ("~", 1), (" ", 1), ("é", 2), ("\uffff", 2), ("\U0001f600", 4)])
def test_a_character_counts_for_what_it_takes_in_a_string_or_on_the_wire(text: str, width: int) -> None:
    assert size_of(text.encode()) == width
    assert size_of(b"abc" + text.encode()) == 4 * width


@pytest.mark.parametrize("code", [*range(32), ord('"'), ord("\\"), 127])
def test_a_character_that_json_may_escape_counts_for_its_longest_escape(code: int) -> None:
    assert size_of(bytes([code])) == len("\\u0000")


def test_a_message_takes_sixteen_mebibytes_and_not_a_byte_more() -> None:
    (empty,) = decode(text_part(b""))
    assert isinstance(empty, Shown)
    assert empty.size == EVENT_BYTES + len("text/plain")
    room = (16 << 20) - empty.size
    for length, is_cut in ((room, False), (room + 1, True)):
        (said,) = decode(text_part(b"x" * length))
        assert isinstance(said, Shown)
        assert said.result.truncated is is_cut
        assert (said.size == MOST_MESSAGE_BYTES) is not is_cut


def test_the_longest_name_the_most_parts_and_the_largest_count_are_taken() -> None:
    names = [b"%0255d" % number for number in range(65)]
    (said,) = decode(frame(DISPLAY) + b"".join(frame(TEXT, name) for name in names) + frame(END))
    assert isinstance(said, Shown)
    assert list(said.result.data) == [name.decode() for name in names]
    assert decode(frame(DONE, b"9" * 18)) == [Finished(10**18 - 1)]


@pytest.mark.parametrize("language", ["python", "javascript", "typescript"])
def test_a_language_that_runs_is_given_back(language: str) -> None:
    assert check_language(language) == language


def test_any_other_language_is_refused_with_those_that_run() -> None:
    with pytest.raises(UnsupportedLanguage, match="use one of python, javascript"):
        check_language("cobol")


@pytest.mark.timed
@pytest.mark.parametrize("small", [frame(TEXT, b"a"), frame(PIECE, b"x"), frame(JSON, b"j") + frame(PIECE, b"[1]")])
def test_frames_without_number_are_taken_some_at_a_time(small: bytes) -> None:
    decoder = FrameDecoder()
    decoder.feed(frame(DISPLAY) + frame(TEXT, b"a") + small * (65536 // len(small)))
    steps = 0
    while decoder.has_frame:
        began = time.thread_time()
        decoder.take()
        assert time.thread_time() - began < 0.010
        steps += 1
    assert steps > 10


@given(st.text())
def test_code_reaches_the_executor_as_it_is(code: str) -> None:
    data = encode_run(code)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert msgspec.json.decode(data[4:]) == {"kind": "run", "code": code}


def test_a_picture_that_is_not_one_is_none() -> None:
    assert Result(data={"image/png": "%%%x"}).png is None
    assert Result(data={"image/png": 5, "text/plain": ["a"]}).png is None
    assert Result(data={"text/plain": ["a"]}).text is None
    assert Result(data={"image/jpeg": "/9g="}).jpeg == b"\xff\xd8"


def test_an_answer_to_a_fork_says_the_pid_or_why_there_is_none() -> None:
    assert decode(frame(FORKED, b"17")) == [Forked(17)]
    assert decode(frame(REFUSED, b"error\x0011")) == [Unforked(errno=11)]
    (said,) = decode(frame(REFUSED, b"threads\0worker\0\xff" + b"x" * 100))
    assert said == Unforked(threads=("worker", "\ufffd" + "x" * 63))


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (FORKED, b""),
        (FORKED, b"-1"),
        (FORKED, b"1" * 19),
        (REFUSED, b""),
        (REFUSED, b"error"),
        (REFUSED, b"error\0x"),
        (REFUSED, b"error\x0012345"),
        (REFUSED, b"threads"),
        (REFUSED, b"threads" + b"\0a" * 33),
        (REFUSED, b"other\0a"),
    ],
)
def test_no_answer_to_a_fork_is_a_fault(kind: bytes, payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(frame(kind, payload))


def test_a_request_to_fork_is_text_only() -> None:
    request = encode_fork(17, force=True)
    assert msgspec.json.decode(request[4:]) == {"kind": "fork", "label": "17", "force": "yes"}
    assert msgspec.json.decode(encode_fork(17, force=False)[4:])["force"] == ""
