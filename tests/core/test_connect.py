"""The Connect protocol's envelopes and errors."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.errors import (
    ConnectionLost,
    CoveError,
    FileExists,
    FileNotFound,
    IsDirectory,
    LimitExceeded,
    SandboxPaused,
    UserUnavailable,
    ValidationFailed,
)
from cove.wire.connect import LAST_ENVELOPE, STATUS, Code, ConnectError, EnvelopeDecoder, encode_envelope

pytestmark = pytest.mark.pure


def test_an_envelope_is_what_the_protocol_says() -> None:
    message = b'{"event":{"start":{"pid":7}}}'
    assert encode_envelope(message) == b"\0\0\0\0\x1d" + message
    assert LAST_ENVELOPE == b"\2\0\0\0\2{}"


@given(st.lists(st.binary(max_size=300)), st.lists(st.integers(0, 40), max_size=50))
def test_messages_come_out_as_they_went_in_however_they_are_cut(messages: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(map(encode_envelope, messages)) + LAST_ENVELOPE
    decoder = EnvelopeDecoder(300)
    found: list[bytes] = []
    for size in sizes:
        found += decoder.feed(stream[:size])
        stream = stream[size:]
    found += decoder.feed(stream)
    decoder.finish()
    assert found == messages


@given(st.binary(max_size=2000))
def test_any_bytes_are_messages_or_an_error(data: bytes) -> None:
    decoder = EnvelopeDecoder(100)
    try:
        messages = decoder.feed(data)
        decoder.finish()
    except ConnectError:
        return
    assert sum(map(len, messages)) <= len(data)


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        (struct.pack(">BI", 0, 101) + b"x" * 101, Code.RESOURCE_EXHAUSTED),
        (struct.pack(">BI", 0, 0xFFFFFFFF), Code.RESOURCE_EXHAUSTED),
        (struct.pack(">BI", 1, 2) + b"{}", Code.UNIMPLEMENTED),
        (struct.pack(">BI", 4, 2) + b"{}", Code.INVALID_ARGUMENT),
        (LAST_ENVELOPE + encode_envelope(b"{}"), Code.INVALID_ARGUMENT),
    ],
)
def test_forged_envelopes_are_refused(stream: bytes, code: Code) -> None:
    with pytest.raises(ConnectError) as refused:
        EnvelopeDecoder(100).feed(stream)
    assert refused.value.code is code


def test_a_stream_that_ends_in_the_middle_is_refused() -> None:
    decoder = EnvelopeDecoder(100)
    assert decoder.feed(encode_envelope(b"abc")[:-1]) == []
    with pytest.raises(ConnectError):
        decoder.finish()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FileNotFound("x"), Code.NOT_FOUND),
        (FileExists("x"), Code.ALREADY_EXISTS),
        (IsDirectory("x"), Code.INVALID_ARGUMENT),
        (ValidationFailed("x"), Code.INVALID_ARGUMENT),
        (UserUnavailable("x"), Code.UNAUTHENTICATED),
        (LimitExceeded("x"), Code.RESOURCE_EXHAUSTED),
        (SandboxPaused("x"), Code.FAILED_PRECONDITION),
        (ConnectionLost("x"), Code.INTERNAL),
    ],
)
def test_errors_have_the_code_that_clients_know(error: CoveError, code: Code) -> None:
    assert ConnectError.of(error).code is code


def test_an_error_is_told_as_a_body_and_as_the_last_message() -> None:
    error = ConnectError(Code.NOT_FOUND, "no \udcff")
    assert error.status == 404
    assert json.loads(error.encode()) == {"code": "not_found", "message": "no ?"}
    last = error.encode_last()
    assert last[0] == 2
    assert json.loads(last[5:]) == {"error": {"code": "not_found", "message": "no ?"}}
    assert set(STATUS) == set(Code)
