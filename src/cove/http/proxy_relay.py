"""Pass one request on to an origin and its response back, as a proxy does: framing anew, backpressure both ways.

The response is parsed as from an enemy, so that whatever the origin sends the client gets one complete response, one
that is cut off, or an error. Nothing here waits: bytes are passed on in the call that brought them. Who the origin is,
how it is reached, and what heads look like is a subclass's business.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Protocol

from cove.http.deadline import Deadline
from cove.http.errors import HttpError
from cove.http.response import Exchange, Relay, has_body
from cove.http.response_parser import BadResponse, ResponseHead, ResponseParser

_ANSWER_SECONDS = 300.0


class Origin(Protocol):
    """The connection to who answers."""

    def write(self, data: bytes) -> None:
        """Send, sooner or later."""

    def pause_reading(self) -> None:
        """Let it wait."""

    def resume_reading(self) -> None:
        """Take from it again."""


class ProxyRelay(Relay):
    """`name` is the origin in messages. After `pass_request`, the subclass hands on what the origin sends."""

    _exchange: Exchange
    _parser: ResponseParser
    _origin: Origin

    def __init__(self, name: str) -> None:
        self._name = name
        self._deadline = Deadline(self._expire)
        self._is_over = self._has_answered = self._is_chunked = self._is_raw = False

    @abstractmethod
    def _render_head(self, head: ResponseHead) -> bytes:
        """Render the head of the response, for the client."""

    @abstractmethod
    def _break_off(self, reason: str) -> None:
        """End with an error, or in the middle of the response."""

    @abstractmethod
    def _finish(self, say: Callable[[], None]) -> None:
        """Say the last word to the client; there is only one."""

    def _pass_request(self, head: bytes) -> None:
        request = self._exchange.request
        self._parser = ResponseParser(self, is_head_only=request.method == "HEAD")
        self._origin.write(head)
        self._deadline.set(_ANSWER_SECONDS)
        request.pass_body_to(self)

    def body_data(self, data: bytes) -> None:
        """Pass on a part of the request's body."""
        if self._is_over:
            return
        is_chunked = b"transfer-encoding" in self._exchange.request.headers
        self._origin.write(_chunk(data) if is_chunked else data)
        if not self._has_answered:
            self._deadline.set(_ANSWER_SECONDS)

    def body_end(self) -> None:
        """End the request's body."""
        if b"transfer-encoding" in self._exchange.request.headers and not self._is_over:
            self._origin.write(_LAST_CHUNK)

    def body_failed(self, error: HttpError) -> None:
        """Give up: the client will not send the rest of its body."""
        self._finish(self._exchange.cut if self._has_answered else lambda: self._exchange.fail(error))

    def _take(self, data: bytes) -> None:
        """Take a part of the response, or of what follows an upgrade."""
        if self._is_over:
            return
        if self._is_raw:
            self._exchange.write(data)
            return
        try:
            self._parser.feed(data)
        except BadResponse as error:
            self._break_off(f"{self._name} gave no valid answer: {error}")

    def _take_end(self) -> None:
        """Take the end of what the origin sends, which may be the end of its response."""
        try:
            self._parser.end()
        except BadResponse as error:
            self._break_off(f"{self._name} gave no valid answer: {error}")

    def _hold_back(self) -> None:
        """Read less from the client: the origin does not take what it sends."""
        if self._is_raw:
            self._exchange.pause_reading()
        else:
            self._exchange.request.pause()

    def _let_come(self) -> None:
        """Read from the client again."""
        if self._is_raw:
            self._exchange.resume_reading()
        else:
            self._exchange.request.resume()

    def answer_head(self, head: ResponseHead) -> None:
        """Pass on the head."""
        request = self._exchange.request
        self._deadline.clear()
        self._has_answered = True
        request.status = head.status
        self._is_chunked = has_body(request.method, head.status) and not head.has_length and request.version == "1.1"
        self._exchange.write(self._render_head(head))

    def answer_body(self, data: bytes) -> None:
        """Pass on a part of the body."""
        self._exchange.write(_chunk(data) if self._is_chunked else data)

    def answer_end(self) -> None:
        """End the response: it is complete."""
        if self._is_chunked:
            self._exchange.write(_LAST_CHUNK)
        self._finish(lambda: self._exchange.finish(keep_alive=True))

    def answer_switch(self, head: ResponseHead, rest: bytes) -> None:
        """Speak another protocol from here on, if that was asked for."""
        if not self._exchange.request.is_upgrade or head.status != 101:
            raise BadResponse("it changed the protocol without being asked")
        self._deadline.clear()
        self._has_answered = self._is_raw = True
        self._exchange.request.status = head.status
        self._exchange.write(self._render_head(head) + rest)
        self._exchange.switch()

    def client_full(self) -> None:
        """Read less from the origin: the client does not take what it sends."""
        self._origin.pause_reading()

    def client_ready(self) -> None:
        """Read from the origin again."""
        self._origin.resume_reading()

    def client_cancelled(self) -> None:
        """Give up: an origin cannot be told to end what it does, it loses its client."""
        self._finish(self._exchange.cut)

    def client_data(self, data: bytes) -> None:
        """Pass on to the origin what the client sent after an upgrade."""
        self._origin.write(data)

    def _expire(self) -> None:
        self._break_off(f"{self._name} does not answer")


_LAST_CHUNK = b"0\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
