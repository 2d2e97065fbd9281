"""Relay one visitor's request to a service inside, and its response back (reverse proxy).

Theory of operation. Every request gets a connection of its own to the service, which ends with the answer: nothing of
one visitor's connection is there for another's, and a sandbox that nobody visits is idle. Nothing here waits: bytes are
passed on in the call that brought them, with backpressure both ways. The answer is parsed and written anew, so that
whatever the service sends the visitor gets one complete answer, a cut-off one, or 502.
"""

from collections.abc import Callable

from cove.errors import ServiceNotResponding
from cove.http import Exchange, HttpError, Relay, Response
from cove.http.deadline import Deadline
from cove.http.response import has_body
from cove.http.response_parser import BadResponse, ResponseHead, ResponseParser
from cove.server.preview.headers import Visit, render_answer, render_request
from cove.server.preview.service_connection import ServiceConnection

_OPEN_SECONDS = 30.0
_ANSWER_SECONDS = 300.0
_FAREWELL_SECONDS = 30.0


class PreviewRelay(Relay):
    """`path` is the runtime's socket, `target` the port there.

    `on_begin` is called when the visitor is to be answered, `on_end` once after that, when all is over.
    """

    _exchange: Exchange
    _parser: ResponseParser

    def __init__(
        self,
        visit: Visit,
        path: str,
        target: str,
        *,
        key: str | None,
        missing: Response,
        on_begin: Callable[["PreviewRelay"], None],
        on_end: Callable[["PreviewRelay"], None],
    ) -> None:
        self._visit = visit
        self._path = path
        self._key = key
        self._missing = missing
        self._on_begin = on_begin
        self._on_end = on_end
        self._service = ServiceConnection(self, target)
        self._deadline = Deadline(self._expire)
        self._is_over = False
        self._has_answered = False
        self._is_chunked = False
        self._is_raw = False
        self._has_client_ended = False
        self._has_service_ended = False

    def begin(self, exchange: Exchange) -> None:
        """Connect to the service."""
        self._exchange = exchange
        self._parser = ResponseParser(self, is_head_only=exchange.request.method == "HEAD")
        self._on_begin(self)
        self._deadline.set(_OPEN_SECONDS)
        try:
            self._service.open(self._path)
        except OSError:
            self.service_opened(502)

    def service_opened(self, status: int) -> None:
        """Send the request, or say why it cannot be."""
        if status == 101:
            self._send()
        elif status == 404:
            self._finish(lambda: self._exchange.respond(self._missing))
        else:
            self._break_off("nothing answers on this port of the sandbox, or the sandbox does not run")

    def end(self) -> None:
        """End whatever is left, without a word."""
        if not self._is_over:
            self._is_over = True
            self._deadline.close()
            self._service.abort()
            self._on_end(self)

    def _send(self) -> None:
        request = self._exchange.request
        self._service.write(render_request(request, self._visit, peer=self._exchange.peer, key=self._key))
        self._deadline.set(_ANSWER_SECONDS)
        request.pass_body_to(self)

    def body_data(self, data: bytes) -> None:
        """The visitor's body goes to the service."""
        if self._is_over:
            return
        is_chunked = b"transfer-encoding" in self._exchange.request.headers
        self._service.write(b"%x\r\n%b\r\n" % (len(data), data) if is_chunked else data)
        if not self._has_answered:
            self._deadline.set(_ANSWER_SECONDS)

    def body_end(self) -> None:
        """End the body."""
        if b"transfer-encoding" in self._exchange.request.headers and not self._is_over:
            self._service.write(b"0\r\n\r\n")

    def body_failed(self, error: HttpError) -> None:
        """The visitor will not send the rest."""
        if self._has_answered:
            self._finish(self._exchange.cut)
        else:
            self._finish(lambda: self._exchange.fail(error))

    def service_data(self, data: bytes) -> None:
        """Receive some of the response, or of what follows an upgrade."""
        if self._is_over:
            return
        if self._is_raw:
            self._exchange.write(data)
            return
        try:
            self._parser.feed(data)
        except BadResponse as error:
            self._break_off(f"what listens on this port gave no valid answer: {error}")

    def service_eof(self) -> None:
        """The end of the answer, or of one direction of a raw connection."""
        if self._is_over:
            return
        self._has_service_ended = True
        if self._is_raw:
            self._exchange.write_eof()
            self._deadline.set(_FAREWELL_SECONDS)
            self._end_if_both_have()
            return
        try:
            self._parser.end()
        except BadResponse as error:
            self._break_off(f"what listens on this port gave no valid answer: {error}")

    def service_lost(self) -> None:
        """Break off: the connection ended in the middle of a response, or this end was closed."""
        self._break_off("what listens on this port broke the connection")

    def service_full(self) -> None:
        """The service does not take what the visitor sends."""
        if self._is_raw:
            self._exchange.pause_reading()
        else:
            self._exchange.request.pause()

    def service_ready(self) -> None:
        """The service takes more."""
        if self._is_raw:
            self._exchange.resume_reading()
        else:
            self._exchange.request.resume()

    def answer_head(self, head: ResponseHead) -> None:
        """Pass on the head."""
        request = self._exchange.request
        self._deadline.clear()
        self._has_answered = True
        self._is_chunked = has_body(request.method, head.status) and not head.has_length and request.version == "1.1"
        self._exchange.write(render_answer(head, self._visit, is_chunked=self._is_chunked))

    def answer_body(self, data: bytes) -> None:
        """Pass on some of the body."""
        self._exchange.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)

    def answer_end(self) -> None:
        """End the response: it is complete."""
        if self._is_chunked:
            self._exchange.write(b"0\r\n\r\n")
        self._finish(lambda: self._exchange.finish(keep_alive=True))

    def answer_switch(self, head: ResponseHead, rest: bytes) -> None:
        """The service speaks another protocol from here on, if that was asked for."""
        if not self._exchange.request.is_upgrade or head.status != 101:
            raise BadResponse("it changed the protocol without being asked")
        self._deadline.clear()
        self._has_answered = self._is_raw = True
        self._exchange.write(render_answer(head, self._visit, is_chunked=False) + rest)
        self._exchange.switch()

    def client_full(self) -> None:
        """The visitor does not take what the service sends."""
        self._service.pause_reading()

    def client_ready(self) -> None:
        """The visitor takes more."""
        self._service.resume_reading()

    def client_gone(self) -> None:
        """Abort: nobody waits for the response."""
        self.end()

    def client_cancelled(self) -> None:
        """A service cannot be told to end what it does: it loses its visitor."""
        self._finish(self._exchange.cut)

    def client_data(self, data: bytes) -> None:
        """Pass on to the service what the visitor sent after an upgrade."""
        self._service.write(data)

    def client_eof(self) -> None:
        """Half-close towards the service after an upgrade: the visitor sends nothing more."""
        self._has_client_ended = True
        self._service.write_eof()
        self._end_if_both_have()

    def _end_if_both_have(self) -> None:
        if self._has_client_ended and self._has_service_ended:
            self._service.close()
            self._finish(self._exchange.cut)

    def _break_off(self, reason: str) -> None:
        if self._has_answered:
            self._finish(self._exchange.cut)
        else:
            self._finish(lambda: self._exchange.fail(ServiceNotResponding(reason)))

    def _finish(self, say: Callable[[], None]) -> None:
        """The last word to the visitor; there is only one."""
        if not self._is_over:
            self.end()
            say()

    def _expire(self) -> None:
        self._break_off("what listens on this port does not answer")
