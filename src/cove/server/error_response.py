"""Map exceptions to HTTP error responses: a status, a code, a message and the facts, as JSON."""

import math
from collections.abc import Iterable, Mapping

from cove.errors import CoveError, SandboxUnavailable
from cove.http import Headers, HttpError, Response, ServerStopping
from cove.wire.coding import encode_json
from cove.wire.errors import ErrorBody, body_of, status_of

_JSON = (b"content-type", b"application/json")
_RETRY_SECONDS = b"1"
_RETRY_STATUSES = (429, 503)
_HTTP_CODES = {413: "FILE_TOO_LARGE", 500: "INTERNAL", 503: "LIMIT_EXCEEDED"}


def describe_error(error: Exception) -> Response | None:
    """Map an error of Cove's or of the HTTP core; None for anything else, which is a bug."""
    if isinstance(error, ServerStopping):
        return error_response(error.status, body_of(SandboxUnavailable(str(error))))
    if isinstance(error, HttpError):
        return error_response(error.status, ErrorBody(str(error), _HTTP_CODES.get(error.status, "VALIDATION_FAILED")))
    if isinstance(error, CoveError):
        return describe_cove_error(error)
    return None


def describe_cove_error(error: CoveError) -> Response:
    """Map an error of Cove's, with the headers that its status asks for."""
    return error_response(status_of(error), body_of(error), _headers_of(error))


def error_response(status: int, body: ErrorBody, headers: Headers = ()) -> Response:
    """Render an error as every error looks on the wire; a client that may try again is told when (Retry-After)."""
    return Response(status, (_JSON, *retry_after(status, body.details), *headers), encode_json(body))


def retry_after(status: int, details: Mapping[str, object]) -> Headers:
    """Return the header that says when to try again, where the status lets a client do so."""
    after = details.get("retry_after")
    seconds = b"%d" % math.ceil(after) if isinstance(after, int | float) else _RETRY_SECONDS
    return ((b"retry-after", seconds),) if status in _RETRY_STATUSES else ()


def allowed_methods(methods: Iterable[str]) -> list[str]:
    """List what a route takes: whoever answers GET answers HEAD too."""
    found = list(methods)
    return [*found, "HEAD"] if "GET" in found and "HEAD" not in found else found


def _headers_of(error: CoveError) -> Headers:
    allowed = error.details.get("allowed")
    return ((b"allow", ", ".join(allowed).encode()),) if isinstance(allowed, list) else ()
