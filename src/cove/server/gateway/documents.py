"""Serve the API's own documents: `/v1/openapi.json`, and a page to read."""

from importlib.metadata import version

from cove.errors import MethodNotAllowed, NotFound
from cove.http import Handler, Request, Response
from cove.server.gateway.openapi_page import make_page
from cove.wire.coding import encode_json
from cove.wire.openapi import make_document

PREFIX = "/v1/openapi"

_JSON = (b"content-type", b"application/json")
_PAGE = (b"content-type", b"text/html; charset=utf-8")
_NO_SCRIPTS = (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'")


def make_documents() -> Handler:
    """The handler of everything that begins with PREFIX; the documents are made once."""
    document = make_document(version("cove"))
    as_json = Response(200, (_JSON,), encode_json(document))
    as_page = Response(200, (_PAGE, _NO_SCRIPTS), make_page(document).encode())
    answers = {f"{PREFIX}.json": as_json, f"{PREFIX}.html": as_page, PREFIX: as_page}

    def answer(request: Request) -> Response:
        if request.path not in answers:
            raise NotFound(f"there is nothing at {request.path}")
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed(f"{request.path} takes GET, not {request.method}", allowed=["GET", "HEAD"])
        return answers[request.path]

    return answer
