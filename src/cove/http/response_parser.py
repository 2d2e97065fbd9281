"""Parse the HTTP response of a service inside a sandbox; untrusted: bounded, and never understood in two ways."""

from dataclasses import dataclass, field
from typing import Protocol

import httptools

_MOST_SILENT_BYTES = 64 << 10
_MOST_HEADERS = 200
_WITHOUT_BODY = (204, 304)


class BadResponse(Exception):
    """Not HTTP, or more than any service needs to say."""


@dataclass(slots=True)
class ResponseHead:
    """The head of a response; names of headers are in lower case. After one that is kept, another may follow."""

    status: int = 0
    reason: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    is_kept: bool = False

    def get(self, name: bytes) -> bytes | None:
        """Return the first header of that name."""
        return next((value for known, value in self.headers if known == name), None)

    @property
    def has_length(self) -> bool:
        """Return whether it says how long its body is."""
        return self.get(b"content-length") is not None


class ResponseSink(Protocol):
    """Takes a response as it comes, without waiting."""

    def answer_head(self, head: ResponseHead) -> None:
        """Receive the head."""

    def answer_body(self, data: bytes) -> None:
        """Receive some of the body."""

    def answer_end(self) -> None:
        """End: the response is complete. Nothing follows."""

    def answer_switch(self, head: ResponseHead, rest: bytes) -> None:
        """Switch protocols: the connection is raw from here on."""


class ResponseParser:
    """A parser of one response; interim ones (1xx) are dropped. What follows it is not looked at.

    What it stores is bounded: a head, or framing between pieces of a body, of 64 KiB and one read.
    """

    def __init__(self, taker: ResponseSink, *, is_head_only: bool) -> None:
        self._taker = taker
        self._is_head_only = is_head_only
        self._parser = httptools.HttpResponseParser(self)
        self._head = ResponseHead()
        self._has_head = False
        self._is_complete = False
        self._silent_bytes = 0

    def feed(self, data: bytes) -> None:
        """Parse; raises BadResponse, after which nothing more can be fed."""
        if self._is_complete:
            return
        self._silent_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if not self._is_complete:  # what follows an answer in the same piece switches nothing
                self._is_complete = True
                self._taker.answer_switch(self._head, data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, BadResponse):
                raise error.__context__ from None
            raise
        except httptools.HttpParserError as error:
            if not self._is_complete:
                raise BadResponse(f"it does not speak HTTP: {error}") from None
        if self._silent_bytes > _MOST_SILENT_BYTES and not self._is_complete:
            raise BadResponse("its head is too large")

    def end(self) -> None:
        """End the input; raises BadResponse when the response is not complete."""
        if self._is_complete:
            return
        if not self._has_head or self._head.has_length or self._head.get(b"transfer-encoding") is not None:
            raise BadResponse("it ended in the middle of its answer")
        self._complete()

    def on_message_begin(self) -> None:
        """Start a response. Called by llhttp, as are those below."""
        if not self._has_head:
            self._head = ResponseHead()

    def on_status(self, reason: bytes) -> None:
        """Take the reason phrase."""
        if self._has_head:
            return
        if any(byte < 0x20 and byte != 0x09 for byte in reason):
            raise BadResponse("the words after its status have a control character")
        self._head.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer, which is dropped."""
        if self._has_head:
            return
        if len(self._head.headers) >= _MOST_HEADERS:
            raise BadResponse(f"it sends more than {_MOST_HEADERS} headers")
        if any(byte in value for byte in b"\r\n\0"):
            raise BadResponse("one of its headers has a line break")
        self._head.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Complete the head; one that is only interim is forgotten."""
        status = self._parser.get_status_code()
        if self._has_head:
            return
        if status < 100:
            raise BadResponse(f"there is no status {status}")
        if status < 200:
            self._head.status = status
            return
        head = self._head
        head.status = status
        head.is_kept = self._parser.should_keep_alive()
        encodings = [value.lower() for name, value in head.headers if name == b"transfer-encoding"]
        if encodings not in ([], [b"chunked"]):
            raise BadResponse("it uses a transfer encoding other than chunked")
        self._has_head = True
        self._taker.answer_head(head)
        if self._is_head_only or status in _WITHOUT_BODY:
            self._complete()

    def on_body(self, data: bytes) -> None:
        """Receive some of the body."""
        self._silent_bytes = 0
        if not self._has_head:  # it would pass for the head that nobody has looked at
            raise BadResponse("its interim answer has a body")
        if not self._is_complete:
            self._taker.answer_body(data)

    def on_message_complete(self) -> None:
        """Complete the body, if there was more than an interim head."""
        if self._has_head and not self._is_complete:
            self._complete()

    def _complete(self) -> None:
        self._is_complete = True
        self._taker.answer_end()
