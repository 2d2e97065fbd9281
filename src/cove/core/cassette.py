"""Cassettes: requests and their answers, one JSON object a line, to be answered from later without a network.

A request is known by its method, URL and body; equal ones are answered in the order in which they were recorded. What
the host added to a request (secrets) is not in it, and answers are as the sandbox saw them: without secrets.
"""

from base64 import b64decode, b64encode
from collections import defaultdict, deque

import msgspec

MOST_BYTES = 256 << 20
MOST_BODY_BYTES = 64 << 20


class Recorded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One exchange. A body that is text is readable; others are in `base64`."""

    method: str
    url: str
    request_sha256: str
    status: int
    headers: tuple[tuple[str, str], ...] = ()
    text: str | None = None
    base64: str | None = None

    @property
    def body(self) -> bytes:
        """The answer's body."""
        if self.base64 is not None:
            return b64decode(self.base64)
        return (self.text or "").encode()

    @property
    def key(self) -> tuple[str, str, str]:
        """Return the key by which a request finds it."""
        return self.method, self.url, self.request_sha256


def make_recorded(
    method: str, url: str, request_sha256: str, status: int, headers: list[tuple[bytes, bytes]], body: bytes
) -> Recorded:
    """Put an exchange into words."""
    named = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
    try:
        text, encoded = body.decode(), None
    except UnicodeDecodeError:
        text, encoded = None, b64encode(body).decode()
    return Recorded(
        method=method,
        url=url,
        request_sha256=request_sha256,
        status=status,
        headers=named,
        text=text or None,
        base64=encoded,
    )


def encode_recorded(recorded: Recorded) -> bytes:
    """One line of a cassette."""
    return msgspec.json.encode(recorded) + b"\n"


def _check(recorded: Recorded) -> None:
    """Raise ValueError for what could not be answered."""
    if not 200 <= recorded.status < 1000:
        raise ValueError(f"there is no answer with the status {recorded.status}")
    if recorded.base64 is not None:
        b64decode(recorded.base64, validate=True)
    for header in recorded.headers:
        if any(mark in text for text in header for mark in "\r\n\0"):
            raise ValueError("a header has a line break")
        "".join(header).encode("latin-1")


class Player:
    """Answers from a cassette. Raises ValueError for a file that is none."""

    def __init__(self, content: bytes) -> None:
        self._left: defaultdict[tuple[str, str, str], deque[Recorded]] = defaultdict(deque)
        try:
            for recorded in msgspec.json.Decoder(Recorded).decode_lines(content):
                _check(recorded)
                self._left[recorded.key].append(recorded)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"this is not a cassette: {error}") from None

    def take(self, method: str, url: str, request_sha256: str) -> Recorded | None:
        """The next answer to this request; None when there is none left."""
        left = self._left.get((method, url, request_sha256))
        return left.popleft() if left else None
