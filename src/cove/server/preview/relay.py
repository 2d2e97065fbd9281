"""Relay one visitor's request to a service inside, and its response back (reverse proxy).

Theory of operation. Every request gets a connection of its own to the service, which ends with the answer: nothing of
one visitor's connection is there for another's, and a sandbox that nobody visits is idle. How bytes pass is
`http/proxy_relay`: whatever the service sends, the visitor gets one complete answer, a cut-off one, or 502.
"""

from collections.abc import Callable

from cove.errors import ServiceNotResponding
from cove.http import Exchange, Response
from cove.http.proxy_relay import ProxyRelay
from cove.http.response_parser import ResponseHead
from cove.server.preview.headers import Visit, render_answer, render_request
from cove.server.preview.service_connection import ServiceConnection

_OPEN_SECONDS = 30.0
_FAREWELL_SECONDS = 30.0


class PreviewRelay(ProxyRelay):
    """`path` is the runtime's socket, `target` the port there.

    `on_begin` is called when the visitor is to be answered, `on_end` once after that, when all is over.
    """

    _origin: ServiceConnection

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
        super().__init__("what listens on this port")
        self._visit = visit
        self._path = path
        self._key = key
        self._missing = missing
        self._on_begin = on_begin
        self._on_end = on_end
        self._origin = ServiceConnection(self, target)
        self._has_client_ended = False
        self._has_service_ended = False

    def begin(self, exchange: Exchange) -> None:
        """Connect to the service."""
        self._exchange = exchange
        self._on_begin(self)
        self._deadline.set(_OPEN_SECONDS)
        try:
            self._origin.open(self._path)
        except OSError:
            self.service_opened(502)

    def service_opened(self, status: int) -> None:
        """Send the request, or say why it cannot be."""
        exchange = self._exchange
        if status == 101:
            self._pass_request(
                render_request(exchange.request, self._visit, peer=self._visit.peer or exchange.peer, key=self._key)
            )
        elif status == 404:
            self._finish(lambda: exchange.respond(self._missing))
        else:
            self._break_off("nothing answers on this port of the sandbox, or the sandbox does not run")

    def end(self) -> None:
        """End whatever is left, without a word."""
        if not self._is_over:
            self._is_over = True
            self._deadline.close()
            self._origin.abort()
            self._on_end(self)

    def service_data(self, data: bytes) -> None:
        """Receive some of the response, or of what follows an upgrade."""
        self._take(data)

    def service_eof(self) -> None:
        """The end of the answer, or of one direction of a raw connection."""
        if self._is_over:
            return
        self._has_service_ended = True
        if self._is_raw:
            self._exchange.write_eof()
            self._deadline.set(_FAREWELL_SECONDS)
            self._end_if_both_have()
        else:
            self._take_end()

    def service_lost(self) -> None:
        """Break off: the connection ended in the middle of a response, or this end was closed."""
        self._break_off("what listens on this port broke the connection")

    def service_full(self) -> None:
        """Read less from the visitor."""
        self._hold_back()

    def service_ready(self) -> None:
        """Read from the visitor again."""
        self._let_come()

    def client_gone(self) -> None:
        """Abort: nobody waits for the response."""
        self.end()

    def client_eof(self) -> None:
        """Half-close towards the service after an upgrade: the visitor sends nothing more."""
        self._has_client_ended = True
        self._origin.write_eof()
        self._end_if_both_have()

    def _end_if_both_have(self) -> None:
        if self._has_client_ended and self._has_service_ended:
            self._origin.close()
            self._finish(self._exchange.cut)

    def _render_head(self, head: ResponseHead) -> bytes:
        return render_answer(head, self._visit, is_chunked=self._is_chunked)

    def _break_off(self, reason: str) -> None:
        if self._has_answered:
            self._finish(self._exchange.cut)
        else:
            self._finish(lambda: self._exchange.fail(ServiceNotResponding(reason)))

    def _finish(self, say: Callable[[], None]) -> None:
        if not self._is_over:
            self.end()
            say()
