"""The table of the bridge protocol, `/v1/sandbox/...`: the gateway, the runtimes and the OpenAPI document follow it.

It is described by hand, because it is not ours to change. What its operations do is done by those of `cove.api`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cove.wire.operation import By

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeOperation:
    """One row: a request that clients make, and the statuses that they know."""

    name: str
    route: str
    summary: str
    by: By
    statuses: tuple[int, ...]
    parameters: tuple[Document, ...] = ()
    body: Document | None = None
    answer: Document

    @property
    def verb(self) -> str:
        """The HTTP method."""
        return self.route.split(" ")[0]

    @property
    def path(self) -> str:
        """The path, with names in braces."""
        return self.route.split(" ")[1]


def _row(
    name: str,
    route: str,
    summary: str,
    *statuses: int,
    by: By = By.RUNTIME,
    parameters: tuple[Document, ...] = (_ID,),
    body: Document | None = None,
    answer: Document = _OBJECT,
) -> BridgeOperation:
    return BridgeOperation(
        name=name,
        route=route,
        summary=summary,
        by=by,
        statuses=statuses,
        parameters=parameters,
        body=body,
        answer=answer,
    )


def _query(name: str, schema: Document) -> Document:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _path(name: str, schema: Document) -> Document:
    return {"name": name, "in": "path", "required": True, "schema": schema}


_FILE: Final = (_ID, _path("path", _TEXT), _SESSION)
_PORT: Final = (_ID, _path("port", _NUMBER))
_PTY: Final = (_ID, _query("cols", _NUMBER), _query("rows", _NUMBER), _query("shell", _TEXT), _query("session", _TEXT))
_EVENTS: Final[Document] = {"text/event-stream": {"schema": {"type": "string"}}}

# fmt: off
BRIDGE_OPERATIONS: Final = (
    _row("createSandbox", "POST /v1/sandbox", "A new id", 200, by=By.GATEWAY, parameters=(), body=_OBJECT),
    _row("deleteSandbox", "DELETE /v1/sandbox/{id}", "End a sandbox", 204, 400, by=By.GATEWAY),
    _row("isRunning", "GET /v1/sandbox/{id}/running", "Whether a sandbox is there", 200, 400, by=By.GATEWAY),
    _row("execCommand", "POST /v1/sandbox/{id}/exec", "Run a command; its output as server-sent events", 200, 400, 403, 502, parameters=(_ID, _SESSION), body=_OBJECT, answer=_EVENTS),
    _row("readFile", "GET /v1/sandbox/{id}/file/{path}", "Read a file", 200, 400, 403, 404, 502, parameters=_FILE, answer=_BYTES),
    _row("writeFile", "PUT /v1/sandbox/{id}/file/{path}", "Write a file", 200, 400, 403, 413, 502, parameters=_FILE, body=_BYTES),
    _row("persistWorkspace", "POST /v1/sandbox/{id}/persist", "The workspace as a tar archive", 200, 400, 502, parameters=(_ID, _query("excludes", _TEXT)), answer=_BYTES),
    _row("hydrateWorkspace", "POST /v1/sandbox/{id}/hydrate", "Unpack a tar archive into the workspace", 200, 400, 502, body=_BYTES),
    _row("mountBucket", "POST /v1/sandbox/{id}/mount", "Mount a bucket", 200, 400, 502, body=_OBJECT),
    _row("unmountBucket", "POST /v1/sandbox/{id}/unmount", "Unmount a bucket", 200, 400, 502, body=_OBJECT),
    _row("createSession", "POST /v1/sandbox/{id}/session", "A shell with state", 200, 400, 502, body=_OBJECT),
    _row("deleteSession", "DELETE /v1/sandbox/{id}/session/{sid}", "End a session", 200, 400, 502, parameters=(_ID, _path("sid", _TEXT))),
    _row("ptyTerminal", "GET /v1/sandbox/{id}/pty", "A terminal over a WebSocket", 101, 400, 502, parameters=_PTY),
    _row("createTunnel", "POST /v1/sandbox/{id}/tunnel/{port}", "A preview URL", 200, 400, 502, parameters=_PORT, body=_OBJECT),
    _row("deleteTunnel", "DELETE /v1/sandbox/{id}/tunnel/{port}", "Revoke a preview URL", 204, 400, parameters=_PORT),
    _row("poolStats", "GET /v1/pool/stats", "How many sandboxes are warm and in use", 200, by=By.GATEWAY, parameters=()),
    _row("poolPrime", "POST /v1/pool/prime", "Fill the warm pool", 200, by=By.GATEWAY, parameters=()),
    _row("poolShutdown", "POST /v1/pool/shutdown-prewarmed", "Empty the warm pool", 200, by=By.GATEWAY, parameters=()),
)
# fmt: on


def describe_bridge() -> Document:
    """The paths of the protocol as OpenAPI has them."""
    paths: dict[str, Document] = {}
    for row in BRIDGE_OPERATIONS:
        paths.setdefault(row.path, {})[row.verb.lower()] = _describe(row)
    return {**paths}


def _describe(row: BridgeOperation) -> Document:
    described: Document = {
        "operationId": row.name,
        "summary": row.summary,
        "tags": ["bridge"],
        "parameters": [*row.parameters],
        "responses": {str(status): _response(status, row.answer) for status in row.statuses},
    }
    return described if row.body is None else {**described, "requestBody": {"content": row.body}}


def _response(status: int, answer: Document) -> Document:
    described: Document = {"description": _REASONS[status]}
    if status not in (101, 204):
        described["content"] = answer if status == 200 else _FAILURE
    return described
