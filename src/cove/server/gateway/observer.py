"""Count the requests of a worker when they have ended: how many, how long, and which were errors or refused.

Labels have few values: operations and families come from the table, codes from the tree of errors, and owners beyond
the first thousand are counted as one.
"""

import re
import time
from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from cove.http import Observer, Request, Response
from cove.server.counters import BUCKETS, Counters
from cove.server.dispatch import Routes
from cove.server.tracing import end_server_span
from cove.wire.errors import STATUS
from cove.wire.operation import AnyOperation, Form
from cove.wire.operations import OPERATIONS

REFUSED: Final = ("UNAUTHORIZED", "PERMISSION_DENIED", "LIMIT_EXCEEDED", "NO_CAPACITY")
# The status for a client that was gone before its answer.
GONE: Final = 499
OTHERS: Final = "_others"
_MOST_OWNERS: Final = 1000
_MOST_SEARCHED: Final = 4096
# How long they take is up to who follows them.
_UNTIMED: Final = (Form.EVENTS, Form.WEBSOCKET, Form.TCP)
_ROUTES: Final = Routes(OPERATIONS)
_BY_STATUS: Final = {401: "UNAUTHORIZED", 403: "PERMISSION_DENIED", 429: "LIMIT_EXCEEDED"}
_CODE = re.compile(rb'"code":"([A-Z_]{1,40})"')
_LIMIT = re.compile(rb'"limit":"([a-z_]{1,20})"')
_FACADES: Final = (
    *(("/v1/sandbox/", "bridge"), ("/mcp", "mcp")),
    *((prefix, "e2b") for prefix in ("/sandboxes", "/v2/sandboxes", "/files", "/v1/e2b/")),
)


def operation_of(request: Request) -> AnyOperation | None:
    """Find what a request asks for in the table; None for what is not there."""
    node, _ = _ROUTES.match(request.path)
    route = None if node is None else node.routes.get("GET" if request.method == "HEAD" else request.method)
    return None if route is None else route.operation


def code_of(request: Request) -> str:
    """Return the code of the error that a request was answered with."""
    return _code(request.status, request.error)


class RequestCounter(Observer):
    """Counts for one worker; `on_refused` is called for each request that was refused."""

    def __init__(
        self,
        counters: Counters,
        on_refused: Callable[[], None],
        family: str | None = None,
        on_answered: Callable[[Request], None] | None = None,
    ) -> None:
        self._counters = counters
        self._on_answered = on_answered
        self._on_refused = on_refused
        self._family = family
        self._owners: set[str] = set()

    def answered(self, request: Request) -> None:
        """Count it."""
        if self._on_answered is not None:
            self._on_answered(request)
        operation = None if self._family else operation_of(request)
        family = self._family or _family_of(operation, request.path)
        status = request.status or GONE
        name = "" if operation is None else operation.name
        self._counters.add(_requests(family, name, status))
        if status != 101 and status != GONE and (operation is None or operation.form not in _UNTIMED):
            self._time(family, time.perf_counter() - request.began)
        if request.owner:
            self._counters.add(f'cove_owner_requests_total{{owner="{self._known(request.owner)}"}}')
        if request.trace is not None:
            end_server_span(request, operation, status, code_of(request))
        if request.error:
            self._count_error(status, request.error, request.owner)

    def rejected(self, response: Response) -> None:
        """Count it among the errors: there is no request to say more of."""
        self._count_error(response.status, response.body if isinstance(response.body, bytes) else b"", "")

    def _time(self, family: str, seconds: float) -> None:
        buckets, total = _histogram(family)
        self._counters.add(buckets[bisect_left(BUCKETS, seconds)])
        self._counters.add(total, seconds)

    def _count_error(self, status: int, body: bytes, owner: str) -> None:
        code = _code(status, body)
        self._counters.add(f'cove_errors_total{{code="{code}"}}')
        if owner:
            self._counters.add(f'cove_owner_errors_total{{owner="{self._known(owner)}"}}')
        if code in REFUSED:
            limit = _LIMIT.search(body[:_MOST_SEARCHED]) if code == "LIMIT_EXCEEDED" else None
            more = "" if limit is None else limit[1].decode()
            self._counters.add(f'cove_refused_total{{code="{code}",limit="{more}"}}')
            self._on_refused()

    def _known(self, owner: str) -> str:
        if owner not in self._owners:
            if len(self._owners) >= _MOST_OWNERS:
                return OTHERS
            self._owners.add(owner)
        return owner


def _family_of(operation: AnyOperation | None, path: str) -> str:
    if operation is not None:
        return operation.target.heading
    return next((family for prefix, family in _FACADES if path.startswith(prefix)), "other")


def _code(status: int, body: bytes) -> str:
    found = _CODE.search(body[:_MOST_SEARCHED])
    code = "" if found is None else found[1].decode()
    return code if code in STATUS else _BY_STATUS.get(status, f"HTTP_{status}")


@lru_cache(maxsize=1024)
def _requests(family: str, operation: str, status: int) -> str:
    return f'cove_requests_total{{family="{family}",operation="{operation}",status="{status}"}}'


@lru_cache(maxsize=64)
def _histogram(family: str) -> tuple[tuple[str, ...], str]:
    """Return the names of the buckets, each without those below it, and that of the sum."""
    name = "cove_request_duration_seconds"
    buckets = tuple(f'{name}_bucket{{family="{family}",le="{le}"}}' for le in (*BUCKETS, "+Inf"))
    return buckets, f'{name}_sum{{family="{family}"}}'
