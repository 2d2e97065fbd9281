import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.agent.protocol import LIMIT, ProtocolError, decode, encode, encode_number, number

pytestmark = pytest.mark.pure

FIELDS = st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"\0", b"x")), min_size=1, max_size=20)


@given(fields=FIELDS.filter(lambda fields: fields != [b""]))
def test_fields_come_back_as_they_were_sent(fields: list[bytes]) -> None:
    assert decode(encode(*fields), len(fields)) == fields


@given(value=st.integers(0, 2**63 - 1))
def test_numbers_come_back_as_they_were_sent(value: int) -> None:
    assert number(encode_number(value)) == value


@pytest.mark.parametrize("packet", [b"", b"x" * (LIMIT + 1)])
def test_a_packet_that_is_empty_or_too_large_is_refused(packet: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(packet, 3)


def test_a_packet_has_no_more_fields_than_expected() -> None:
    assert decode(b"ok\x007\0content\0with\0zeros", 3) == [b"ok", b"7", b"content\0with\0zeros"]


@pytest.mark.parametrize(
    "field", [b"", b"-1", b"+1", b"1.0", b" 1", b"0x1", b"1_0", b"9" * 19, b"9" * 21, "٣".encode()]
)
def test_a_field_that_is_not_a_plain_number_is_refused(field: bytes) -> None:
    with pytest.raises(ProtocolError):
        number(field)
