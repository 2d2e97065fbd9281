"""Describe the bridge protocol, `/v1/sandbox/...`, as paths of the OpenAPI document."""

from collections.abc import Mapping, Sequence
from typing import Final

Document = dict[str, object]

_TEXT: Final[Document] = {"type": "string"}
_NUMBER: Final[Document] = {"type": "integer"}
_ID: Final[Document] = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
_SESSION: Final[Document] = {"name": "Session-Id", "in": "header", "required": False, "schema": _TEXT}
_BYTES: Final[Document] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_OBJECT: Final[Document] = {"application/json": {"schema": {"type": "object"}}}
_FAILURE: Final[Document] = {
    "application/json": {
        "schema": {
            "type": "object",
            "required": ["error", "code"],
            "properties": {"error": {"type": "string"}, "code": {"type": "string"}},
        }
    }
}
_REASONS: Final[Mapping[int, str]] = {
    101: "The connection is a WebSocket",
    200: "Done",
    204: "Gone",
    400: "The request is not valid",
    403: "The path leads out of /workspace",
    404: "There is no such file",
    413: "The body is too large",
    502: "It failed",
}


def _operation(
    name: str,
    summary: str,
    statuses: Sequence[int],
    *,
    parameters: Sequence[Document] = (),
    body: Document | None = None,
    answer: Document = _OBJECT,
) -> Document:
    described: Document = {
        "operationId": name,
        "summary": summary,
        "tags": ["bridge"],
        "parameters": [*parameters],
        "responses": {str(status): _response(status, answer) for status in statuses},
    }
    if body is not None:
        described["requestBody"] = {"content": body}
    return described


def _response(status: int, answer: Document) -> Document:
    described: Document = {"description": _REASONS[status]}
    if status not in (101, 204):
        described["content"] = answer if status == 200 else _FAILURE
    return described


def _query(name: str, schema: Document) -> Document:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _path(name: str, schema: Document) -> Document:
    return {"name": name, "in": "path", "required": True, "schema": schema}


_FILE: Final = (_ID, _path("path", _TEXT), _SESSION)
_PORT: Final = (_ID, _path("port", _NUMBER))
_PTY: Final = (_ID, _query("cols", _NUMBER), _query("rows", _NUMBER), _query("shell", _TEXT), _query("session", _TEXT))

BRIDGE_PATHS: Final[Document] = {
    "/v1/sandbox": {"post": _operation("createSandbox", "A new id", [200], body=_OBJECT)},
    "/v1/sandbox/{id}": {"delete": _operation("deleteSandbox", "End a sandbox", [204, 400], parameters=[_ID])},
    "/v1/sandbox/{id}/running": {
        "get": _operation("isRunning", "Whether a sandbox is there", [200, 400], parameters=[_ID])
    },
    "/v1/sandbox/{id}/exec": {
        "post": _operation(
            "execCommand",
            "Run a command; its output as server-sent events",
            [200, 400, 403, 502],
            parameters=[_ID, _SESSION],
            body=_OBJECT,
            answer={"text/event-stream": {"schema": {"type": "string"}}},
        )
    },
    "/v1/sandbox/{id}/file/{path}": {
        "get": _operation("readFile", "Read a file", [200, 400, 403, 404, 502], parameters=_FILE, answer=_BYTES),
        "put": _operation("writeFile", "Write a file", [200, 400, 403, 413, 502], parameters=_FILE, body=_BYTES),
    },
    "/v1/sandbox/{id}/persist": {
        "post": _operation(
            "persistWorkspace",
            "The workspace as a tar archive",
            [200, 400, 502],
            parameters=[_ID, _query("excludes", _TEXT)],
            answer=_BYTES,
        )
    },
    "/v1/sandbox/{id}/hydrate": {
        "post": _operation(
            "hydrateWorkspace",
            "Unpack a tar archive into the workspace",
            [200, 400, 502],
            parameters=[_ID],
            body=_BYTES,
        )
    },
    "/v1/sandbox/{id}/mount": {
        "post": _operation("mountBucket", "Mount a bucket", [200, 400, 502], parameters=[_ID], body=_OBJECT)
    },
    "/v1/sandbox/{id}/unmount": {
        "post": _operation("unmountBucket", "Unmount a bucket", [200, 400, 502], parameters=[_ID], body=_OBJECT)
    },
    "/v1/sandbox/{id}/session": {
        "post": _operation("createSession", "A shell with state", [200, 400, 502], parameters=[_ID], body=_OBJECT)
    },
    "/v1/sandbox/{id}/session/{sid}": {
        "delete": _operation("deleteSession", "End a session", [200, 400, 502], parameters=[_ID, _path("sid", _TEXT)])
    },
    "/v1/sandbox/{id}/pty": {
        "get": _operation("ptyTerminal", "A terminal over a WebSocket", [101, 400, 502], parameters=_PTY)
    },
    "/v1/sandbox/{id}/tunnel/{port}": {
        "post": _operation("createTunnel", "A preview URL", [200, 400, 502], parameters=_PORT, body=_OBJECT),
        "delete": _operation("deleteTunnel", "Revoke a preview URL", [204, 400], parameters=_PORT),
    },
    "/v1/pool/stats": {"get": _operation("poolStats", "How many sandboxes are warm and in use", [200])},
    "/v1/pool/prime": {"post": _operation("poolPrime", "Fill the warm pool", [200])},
    "/v1/pool/shutdown-prewarmed": {"post": _operation("poolShutdown", "Empty the warm pool", [200])},
}
