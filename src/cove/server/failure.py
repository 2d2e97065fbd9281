"""What a client is told when a call fails."""

from cove.errors import CoveError
from cove.http import Response
from cove.wire.errors import encode_error, status_of


def describe_failure(error: Exception) -> Response | None:
    """An error of Cove's as it looks on the wire; None for anything else, which is a bug."""
    if not isinstance(error, CoveError):
        return None
    return Response(status_of(error), ((b"content-type", b"application/json"),), encode_error(error))
