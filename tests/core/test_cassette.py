import hashlib

import pytest

from cove.core.cassette import Player, encode_recorded, make_recorded

pytestmark = pytest.mark.pure

URL = "https://api.example/v1"


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def recorded(body: bytes, *, request: bytes = b"") -> bytes:
    return encode_recorded(make_recorded("GET", URL, digest(request), 200, [(b"x-a", b"\xe9")], body))


def test_equal_requests_are_answered_in_order_and_then_no_more() -> None:
    player = Player(recorded(b"one") + recorded(b"other", request=b"q") + recorded(b"\xff\xfe"))
    answers = [player.take("GET", URL, digest(b"")) for _ in range(3)]
    assert [answer.body if answer else None for answer in answers] == [b"one", b"\xff\xfe", None]
    found = player.take("GET", URL, digest(b"q"))
    assert found is not None
    assert (found.status, found.headers, found.body) == (200, (("x-a", "é"),), b"other")
    assert player.take("POST", URL, digest(b"")) is None


def test_text_is_readable_in_the_file_and_nothing_is_empty() -> None:
    assert b'"text":"one"' in recorded(b"one")
    answer = Player(recorded(b"")).take("GET", URL, digest(b""))
    assert answer is not None
    assert answer.body == b""


LINE = recorded(b"\xff")


@pytest.mark.parametrize(
    "content",
    [
        b'{"method": 1}\n',
        b'{"x":' + b"[" * 2000 + b"]" * 2000 + b"}",
        LINE.replace(b'"base64":"/w=="', b'"base64":"?"'),
        LINE.replace(b'"status":200', b'"status":101'),
        LINE.replace("é".encode(), "€".encode()),
        LINE.replace("é".encode(), b"\\r\\nx: y"),
    ],
    ids=["fields", "nested", "base64", "status", "header", "line break"],
)
def test_another_file_is_no_cassette(content: bytes) -> None:
    with pytest.raises(ValueError, match="not a cassette"):
        Player(content)
