"""Frames of executors: whole, in pieces, and forged."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.agent.protocol import ProtocolError
from cove.core.executor_protocol import (
    Finished,
    FrameDecoder,
    Raised,
    Ready,
    Returned,
    Said,
    Shown,
    encode_run,
    weigh,
)
from cove.model import Result

pytestmark = pytest.mark.pure

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
BUNDLES = st.dictionaries(st.sampled_from(["text/plain", "image/png", "application/json"]), JSON)
MESSAGES: st.SearchStrategy[Said] = st.one_of(
    st.just(Ready()),
    st.builds(Shown, BUNDLES, st.booleans()),
    st.builds(Returned, BUNDLES, st.booleans()),
    st.builds(Raised, st.text(), st.text(), st.text()),
    st.builds(Finished, st.integers(0, 2**31)),
)


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def encode(said: Said) -> bytes:
    return frame(msgspec.json.encode(said))


@given(st.lists(MESSAGES, max_size=5), st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_frames_come_out_as_they_were_sent_however_the_bytes_are_cut(said: list[Said], sizes: list[int]) -> None:
    data = b"".join(map(encode, said))
    decoder = FrameDecoder()
    received: list[Said] = []
    at = turn = 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        received += decoder.feed(data[at : at + size])
        at += size
        turn += 1
    assert received == said


@given(st.binary(max_size=300))
def test_bytes_of_any_kind_are_frames_or_a_protocol_error(data: bytes) -> None:
    decoder = FrameDecoder()
    try:
        said = decoder.feed(data) + decoder.feed(frame(data))
    except ProtocolError:
        return
    assert all(isinstance(each, Said) for each in said)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"null",
        b'{"kind":"unknown"}',
        b'{"kind":"done"}',
        b'{"kind":"done","count":"many"}',
        b'{"kind":"display","data":{"text/plain":NaN}}',
        b'{"kind":"error","name":"\xff","message":"","traceback":""}',
        b'{"kind":"display","data":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    ],
)
def test_a_forged_frame_is_a_protocol_error(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        FrameDecoder().feed(frame(body))


def test_a_frame_that_promises_too_much_is_refused_before_it_is_kept() -> None:
    with pytest.raises(ProtocolError, match="4294967295"):
        FrameDecoder().feed(b"\xff" * 4)


def test_only_the_value_of_the_last_expression_is_main() -> None:
    assert Returned({"text/plain": "1"}).result() == Result(data={"text/plain": "1"}, is_main=True)
    assert Shown({"text/plain": "1"}, truncated=True).result() == Result(data={"text/plain": "1"}, truncated=True)
    error = Raised("ValueError", "bad", "lines").error()
    assert (error.name, error.message, error.traceback) == ("ValueError", "bad", "lines")


@given(st.text())
def test_code_reaches_the_executor_as_it_is(code: str) -> None:
    data = encode_run(code)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert msgspec.json.decode(data[4:]) == {"kind": "run", "code": code}


def test_a_result_weighs_what_it_carries_and_never_nothing() -> None:
    assert weigh(Result(data={})) > 0
    text, value = weigh(Result(data={"text/plain": "x" * 10_000})), weigh(Result(data={"application/json": [1] * 5000}))
    assert 10_000 <= text < 11_000
    assert 10_000 <= value < 11_000


def test_a_picture_that_is_not_one_is_none() -> None:
    assert Result(data={"image/png": "%%%x"}).png is None
    assert Result(data={"image/png": 5, "text/plain": ["a"]}).png is None
    assert Result(data={"text/plain": ["a"]}).text is None
    assert Result(data={"image/jpeg": "/9g="}).jpeg == b"\xff\xd8"
