"""Tell a program inside why its request or connection was refused, and what would allow it."""

from cove.core.network_policy import Failed, Refused
from cove.http import HttpError, Response
from cove.http.response import render_head

_PLAIN = ((b"content-type", b"text/plain; charset=utf-8"),)


class RequestRefused(Exception):
    """The policy does not allow this request, or it cannot be carried out; `status` is what the client gets."""

    def __init__(self, refused: Refused, status: int = 403) -> None:
        super().__init__(refused.reason)
        self.refused = refused
        self.status = status


def refusal(error: RequestRefused) -> Response:
    """An answer in words."""
    is_ours = not isinstance(error.refused, Failed)
    text = f"cove: {'refused by the network policy: ' if is_ours else ''}{error.refused.reason}"
    if error.refused.rule is not None:
        text += f"; this rule would allow it: {error.refused.rule}"
    return Response(error.status, _PLAIN, f"{text}\n".encode("utf-8", "replace"))


def render_refusal(refused: Refused) -> bytes:
    """The same as bytes, on a connection that ends with it."""
    response = refusal(RequestRefused(refused, 502 if isinstance(refused, Failed) else 403))
    assert isinstance(response.body, bytes)
    return render_head(response, version="1.1", close=True) + response.body


def describe(error: Exception) -> Response | None:
    """The answer to a request that could not be read, or not be carried."""
    if isinstance(error, RequestRefused):
        return refusal(error)
    if isinstance(error, HttpError):
        return Response(error.status, _PLAIN, f"cove: {error}\n".encode())
    return None
