"""Route preview URLs: the handler of the second listening port.

It serves no API and knows no sandbox but by a token. Whether a token is right is read from the place's record, so that
a wrong one neither touches nor wakes a sandbox, and every wrong one gets one response after equal work. What was
read is remembered for a right one, until either file has changed. A sandbox that is stopped stays so: its previews are
502.
"""

import os
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from types import TracebackType

from cove.core.exposure import Label, is_exposed, parse_label
from cove.errors import LimitExceeded
from cove.http import Answer, Request, Response
from cove.local.threads import in_thread
from cove.server.error_response import error_response
from cove.server.preview.exposures import PreviewAddress, exposures_path, read_exposures
from cove.server.preview.headers import Visit
from cove.server.preview.relay import PreviewRelay
from cove.server.sandboxes.directory import Directory, Record
from cove.wire.errors import ErrorBody
from cove.wire.operation import SANDBOXES

_MOST_PER_SANDBOX = 512
_MOST_REMEMBERED = 10_000

_Stamp = tuple[int, int, int]


class Preview:
    """Holds nothing but the connections of its visitors."""

    def __init__(self, directory: Directory, address: PreviewAddress, key: str | None) -> None:
        self._directory = directory
        self._scheme = address.scheme
        self._key = key
        self._relays: dict[PreviewRelay, str] = {}
        self._visitors: Counter[str] = Counter()
        self._admitted: dict[Label, _Admission] = {}

    async def __aenter__(self) -> "Preview":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for relay in list(self._relays):
            relay.end()

    def __call__(self, request: Request, peer: str = "") -> Answer | Coroutine[object, object, Answer]:
        """Answer. A visitor who has been here before costs neither a task nor a thread.

        `peer` is the address of one whom another node has sent here.
        """
        visit = find_visit(request, self._scheme, peer)
        if visit is None:
            return _missing()
        admission = self._admitted.get(visit.label)
        if admission is not None and admission.is_current():
            return self._answer(request, visit, admission)
        return self._look_and_answer(request, visit)

    async def _look_and_answer(self, request: Request, visit: Visit) -> Answer:
        self._admitted.pop(visit.label, None)
        admission = await in_thread(self._admit, visit.label)
        if admission is None:
            return _missing()
        if len(self._admitted) >= _MOST_REMEMBERED:
            self._admitted.clear()
        self._admitted[visit.label] = admission
        return self._answer(request, visit, admission)

    def _answer(self, request: Request, visit: Visit, admission: "_Admission") -> Answer:
        if visit.prefix and request.path == visit.prefix:
            query = f"?{request.query}" if request.query else ""
            return Response(308, ((b"location", f"{visit.prefix}/{query}".encode()),))
        if self._visitors[visit.label.key] >= _MOST_PER_SANDBOX:
            raise LimitExceeded("this sandbox has too many visitors")
        return PreviewRelay(
            visit,
            admission.socket,
            admission.target,
            key=self._key,
            missing=_missing(),
            on_begin=partial(self._begin, key=visit.label.key),
            on_end=self._end,
        )

    def _admit(self, label: Label) -> "_Admission | None":
        """Find where the label leads to. Blocks, equally long for whatever is wrong."""
        record = self._directory.read(label.key)
        admission = None if record is None else _Admission.of(label, record, self._directory)
        is_open = is_exposed(read_exposures(self._directory.place(label.key)), label.port, label.token)
        is_known = record is not None and self._directory.is_known(record)
        return admission if is_open and is_known else None

    def _begin(self, relay: PreviewRelay, key: str) -> None:
        self._relays[relay] = key
        self._visitors[key] += 1

    def _end(self, relay: PreviewRelay) -> None:
        key = self._relays.pop(relay)
        self._visitors[key] -= 1
        if not self._visitors[key]:
            del self._visitors[key]


@dataclass(frozen=True, slots=True)
class _Admission:
    """The target of a right label, and the stamps that the files which say so had before they were read."""

    socket: str
    target: str
    files: tuple[str, str]
    stamps: tuple[_Stamp | None, ...]

    @classmethod
    def of(cls, label: Label, record: Record, directory: Directory) -> "_Admission":
        """Make a preview that is to be checked."""
        files = str(exposures_path(directory.place(label.key))), str(directory.of(record.tenant).entry(record.id))
        target = f"{SANDBOXES}/{record.id}/ports/{label.port}/connect?token={label.token}"
        return cls(str(directory.socket(record)), target, files, tuple(map(_stamp, files)))

    def is_current(self) -> bool:
        """Return whether neither file has changed. Blocks, for microseconds."""
        return tuple(map(_stamp, self.files)) == self.stamps


def _stamp(path: str) -> _Stamp | None:
    """Every change of a file makes another: it is replaced, never written to."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def find_visit(request: Request, scheme: str, peer: str = "") -> Visit | None:
    """Find the port that a request is for: by the first label of its host name, or by the first segment of its path."""
    host = request.headers.get(b"host", b"").decode("latin-1").lower()
    origin = f"{scheme}://{host}"
    if (label := parse_label(host.partition(".")[0])) is not None:
        return Visit(label, origin, "", peer)
    segment = request.path.split("/", 2)[1] if request.path.startswith("/") else ""
    label = parse_label(segment)
    return None if label is None else Visit(label, origin, f"/{segment}", peer)


def _missing() -> Response:
    return error_response(404, ErrorBody("there is nothing here", "PORT_NOT_EXPOSED"))
