"""Generate the OpenAPI 3.1 document from the table of operations."""

from collections.abc import Iterable, Mapping
from typing import Final, cast

import msgspec

from cove.wire.bridge_document import BRIDGE_PATHS
from cove.wire.errors import ErrorBody
from cove.wire.frames import FRAMES, SERVER_SENT_EVENTS
from cove.wire.operations import OPERATIONS, ROOT, AnyOperation, Form, Target

Document = dict[str, object]

_SCHEMAS: Final = "#/components/schemas/{name}"
_JSON: Final = "application/json"
_BYTES: Final = "application/octet-stream"
_ERROR: Final[Document] = {
    "description": "What went wrong",
    "content": {_JSON: {"schema": {"$ref": _SCHEMAS.format(name="ErrorBody")}}},
}


def _own(name: str, summary: str, media_type: str, *, is_open: bool = False) -> Document:
    described: Document = {
        "operationId": name,
        "summary": summary,
        "tags": ["server"],
        "parameters": [],
        "responses": {"200": {"description": "Done", "content": {media_type: {"schema": {}}}}, "default": _ERROR},
    }
    return {"get": {**described, "security": []} if is_open else described}


_OWN_PATHS: Final[Document] = {
    "/health": _own("health", "Whether the server answers; takes no key", _JSON, is_open=True),
    "/metrics": _own("metrics", "What monitoring is told, for Prometheus", "text/plain"),
    "/v1/openapi.json": _own("openapi_json", "This document", _JSON),
    "/v1/openapi.html": _own("openapi_html", "This document as a page", "text/html"),
    "/v1/openapi": _own("openapi_page", "The same page", "text/html"),
}
_GROUPS: Final[Mapping[Target, str]] = {
    Target.GATEWAY: "sandboxes",
    Target.SANDBOX: "sandbox",
    Target.PROCESS: "processes",
    Target.SESSION: "sessions",
    Target.TERMINAL: "terminals",
    Target.CONTEXT: "code",
    Target.FILES: "files",
    Target.GIT: "git",
    Target.PORTS: "ports",
}


def make_document(version: str, operations: Iterable[AnyOperation] = OPERATIONS) -> Document:
    """The whole document; `/v1/sandbox/...` is described by hand, because it is not ours to change."""
    rows = list(operations)
    types = [row.request for row in rows if row.has_request] + [row.reply for row in rows if row.reply]
    _, schemas = _components([*types, ErrorBody])
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Cove",
            "version": version,
            "description": "Linux computers that an AI agent, or any program, can use safely.",
        },
        "security": [{"key": []}],
        "paths": {**_paths(rows), **BRIDGE_PATHS, **_OWN_PATHS},
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _paths(operations: Iterable[AnyOperation]) -> Document:
    paths: dict[str, Document] = {}
    for operation in operations:
        if operation.target is Target.GATEWAY:
            paths.setdefault(operation.path, {})[operation.verb.lower()] = _describe(operation, operation.path)
            continue
        path = ROOT + operation.path
        paths.setdefault(path, {})[operation.verb.lower()] = _describe(operation, path)
        if operation.target is Target.FILES:
            of_session = f"{ROOT}/sessions/{{session}}{operation.path}"
            described = _describe(operation, of_session, suffix="_of_session")
            paths.setdefault(of_session, {})[operation.verb.lower()] = described
    return {**paths}


def _describe(operation: AnyOperation, path: str, suffix: str = "") -> Document:
    described: Document = {
        "operationId": operation.name + suffix,
        "summary": operation.summary,
        "tags": [_GROUPS[operation.target]],
        "parameters": [*_path_parameters(path), *_query_parameters(operation)],
        "responses": {**_responses(operation), "default": _ERROR},
    }
    if operation.takes_content:
        described["requestBody"] = {"content": {_BYTES: {"schema": {"type": "string", "format": "binary"}}}}
    elif operation.has_request and not operation.has_query:
        described["requestBody"] = {"content": {_JSON: {"schema": _reference(operation.request)}}}
    return described


def _path_parameters(path: str) -> list[Document]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(operation: AnyOperation) -> list[Document]:
    if not operation.has_request or not operation.has_query:
        return []
    _, schemas = _components([operation.request])
    schema = schemas[operation.request.__name__]
    required, fields = cast(list[str], schema.get("required", [])), cast(Document, schema["properties"])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": field} for name, field in fields.items()
    ]


def _responses(operation: AnyOperation) -> Document:
    match operation.form:
        case Form.SOCKET:
            return {"101": {"description": "The connection is raw from here on, as the summary says"}}
        case Form.EVENTS:
            content = {SERVER_SENT_EVENTS: {"schema": {"type": "string"}}, FRAMES: {"schema": {"type": "string"}}}
            return {"200": {"description": "A stream of events", "content": content}}
        case Form.CONTENT:
            content = {_BYTES: {"schema": {"type": "string", "format": "binary"}}}
            return {"200": {"description": "The content", "content": content}}
        case _ if operation.reply is None:
            return {"204": {"description": "Done"}}
        case _:
            return {"200": {"description": "The answer", "content": {_JSON: {"schema": _reference(operation.reply)}}}}


def _reference(type: object) -> Document:
    (schema,), _ = _components([type])
    return schema


def _components(types: Iterable[object]) -> tuple[tuple[Document, ...], dict[str, Document]]:
    """Schemas of these types and of all they are made from; `object` may be anything."""
    return msgspec.json.schema_components(
        types, schema_hook=lambda _: {"description": "Any value"}, ref_template=_SCHEMAS
    )
