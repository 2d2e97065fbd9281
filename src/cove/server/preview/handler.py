"""Route preview URLs: the handler of the second listening port.

It serves no API and knows no sandbox but by a token. Whether a token is right is read from the place's record, so that
a wrong one neither touches nor wakes a sandbox, and every wrong one gets the same answer after the same work. A sandbox
that is stopped stays so: its previews are 502.
"""

import logging
from collections import Counter
from functools import partial
from types import TracebackType

from cove.core.exposure import is_exposed, parse_label
from cove.errors import LimitExceeded
from cove.http import Answer, Request, Response
from cove.local.threads import in_thread
from cove.runtime.background_tasks import BackgroundTasks
from cove.server.error_response import error_response
from cove.server.preview.address import PreviewAddress
from cove.server.preview.exposures import read_exposures
from cove.server.preview.headers import Visit
from cove.server.preview.relay import PreviewRelay
from cove.server.sandboxes.directory import Directory, Record
from cove.wire.errors import ErrorBody
from cove.wire.operations import SANDBOXES

_MOST_PER_SANDBOX = 512

log = logging.getLogger("cove.server")


class Preview:
    """Holds nothing but the connections of its visitors."""

    def __init__(self, directory: Directory, address: PreviewAddress, key: str | None) -> None:
        self._directory = directory
        self._scheme = address.scheme
        self._key = key
        self._relays: dict[PreviewRelay, str] = {}
        self._visitors: Counter[str] = Counter()
        self._background = BackgroundTasks(partial(log.error, "a preview failed: %r"))

    async def __aenter__(self) -> "Preview":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for relay in list(self._relays):
            relay.end()
        await self._background.aclose()

    async def __call__(self, request: Request) -> Answer:
        """Answer."""
        visit = find_visit(request, self._scheme)
        record = None if visit is None else await in_thread(self._admit, visit)
        if visit is None or record is None:
            return _missing()
        if visit.prefix and request.path == visit.prefix:
            query = f"?{request.query}" if request.query else ""
            return Response(308, ((b"location", f"{visit.prefix}/{query}".encode()),))
        if self._visitors[record.key] >= _MOST_PER_SANDBOX:
            raise LimitExceeded("this sandbox has too many visitors")
        return self._relay(visit, record)

    def _admit(self, visit: Visit) -> Record | None:
        """The sandbox that the visit leads to. Blocks, equally long for whatever is wrong."""
        label = visit.label
        is_open = is_exposed(read_exposures(self._directory.place(label.key)), label.port, label.token)
        record = self._directory.read(label.key)
        is_known = record is not None and self._directory.is_known(record)
        return record if is_open and is_known else None

    def _relay(self, visit: Visit, record: Record) -> PreviewRelay:
        target = f"{SANDBOXES}/{record.id}/ports/{visit.label.port}/connect?token={visit.label.token}"
        return PreviewRelay(
            visit,
            str(self._directory.socket(record)),
            target,
            key=self._key,
            missing=_missing(),
            start=lambda relay: self._begin(relay, record.key),
            on_end=self._end,
        )

    def _begin(self, relay: PreviewRelay, key: str) -> None:
        self._relays[relay] = key
        self._visitors[key] += 1
        self._background.start(relay.connect())

    def _end(self, relay: PreviewRelay) -> None:
        key = self._relays.pop(relay)
        self._visitors[key] -= 1
        if not self._visitors[key]:
            del self._visitors[key]


def find_visit(request: Request, scheme: str) -> Visit | None:
    """Find the port that a request is for: by the first label of its host name, or by the first segment of its path."""
    host = request.headers.get(b"host", b"").decode("latin-1").lower()
    origin = f"{scheme}://{host}"
    if (label := parse_label(host.partition(".")[0])) is not None:
        return Visit(label, origin, "")
    segment = request.path.split("/", 2)[1] if request.path.startswith("/") else ""
    label = parse_label(segment)
    return None if label is None else Visit(label, origin, f"/{segment}")


def _missing() -> Response:
    return error_response(404, ErrorBody("there is nothing here", "PORT_NOT_EXPOSED"))
