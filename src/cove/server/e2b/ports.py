"""Relay requests to what listens on a port inside, for whoever may."""

from collections import Counter
from collections.abc import Callable
from functools import partial

from cove.core.exposure import Label
from cove.http import Request, Response
from cove.server.e2b.protocol import Refusal, not_running
from cove.server.preview.headers import Visit
from cove.server.preview.relay import PreviewRelay
from cove.wire.operation import SANDBOXES

_MOST_PER_SANDBOX = 512


class PortRelay(PreviewRelay):
    """A relay whose failures are told in the words of the protocol."""

    def __init__(
        self,
        visit: Visit,
        path: str,
        id: str,
        *,
        key: str | None,
        on_begin: Callable[[PreviewRelay], None],
        on_end: Callable[[PreviewRelay], None],
    ) -> None:
        target = f"{SANDBOXES}/{id}/ports/{visit.label.port}/connect"
        gone = not_running(id)
        super().__init__(visit, path, target, key=key, missing=gone, on_begin=on_begin, on_end=on_end)
        self._id = id

    def service_opened(self, status: int) -> None:
        """Send the request, or say why it cannot be: 409 is of a sandbox that is paused or stopped."""
        super().service_opened(404 if status == 409 else status)

    def _break_off(self, reason: str) -> None:
        if self._has_answered:
            self._finish(self._exchange.cut)
        else:
            text = f"The sandbox is running but port is not open: {reason}"
            self._finish(lambda: self._exchange.respond(not_running(self._id, text)))


class PortRelays:
    """All relays of a worker to ports inside."""

    def __init__(self, key: str | None) -> None:
        self._key = key
        self._relays: dict[PreviewRelay, str] = {}
        self._visitors: Counter[str] = Counter()

    def relay(self, request: Request, path: str, id: str, port: int) -> PortRelay | Response:
        """Return what answers a request, on the runtime's socket at that path."""
        if self._visitors[id] >= _MOST_PER_SANDBOX:
            return Refusal(429, "this sandbox has too many visitors").response()
        host = request.headers.get(b"host", b"").decode("latin-1").lower()
        visit = Visit(Label(port, id, ""), f"http://{host}", "")
        return PortRelay(visit, path, id, key=self._key, on_begin=partial(self._begin, id), on_end=self._end)

    def close(self) -> None:
        """End all of them."""
        for relay in list(self._relays):
            relay.end()

    def _begin(self, id: str, relay: PreviewRelay) -> None:
        self._relays[relay] = id
        self._visitors[id] += 1

    def _end(self, relay: PreviewRelay) -> None:
        id = self._relays.pop(relay)
        self._visitors[id] -= 1
        if not self._visitors[id]:
            del self._visitors[id]
