"""Generate the OpenAPI 3.1 document from the table of operations."""

from collections.abc import Iterable
from typing import Final, assert_never, cast

import msgspec

from cove.wire.bridge_operations import describe_bridge
from cove.wire.errors import ErrorBody
from cove.wire.frames import FRAMES, SERVER_SENT_EVENTS
from cove.wire.operation import AnyOperation, Caller, Form, parameters_of
from cove.wire.operations import OPERATIONS

Document = dict[str, object]

_SCHEMAS: Final = "#/components/schemas/{name}"
_JSON: Final = "application/json"
_BYTES: Final = "application/octet-stream"
_SUFFIXES: Final = ("", "_of_session")
_ERROR: Final[Document] = {
    "description": "What went wrong",
    "content": {_JSON: {"schema": {"$ref": _SCHEMAS.format(name="ErrorBody")}}},
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
        "paths": {**_paths(rows), **describe_bridge()},
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _paths(operations: Iterable[AnyOperation]) -> Document:
    paths: dict[str, Document] = {}
    for operation in operations:
        for path, suffix in zip(operation.paths, _SUFFIXES, strict=False):
            paths.setdefault(path, {})[operation.verb.lower()] = _describe(operation, path, suffix)
    return {**paths}


def _describe(operation: AnyOperation, path: str, suffix: str) -> Document:
    described: Document = {
        "operationId": operation.name + suffix,
        "summary": operation.summary,
        "tags": [operation.target.heading],
        "parameters": [*_path_parameters(path), *_query_parameters(operation)],
        "responses": {**_responses(operation), "default": _ERROR},
    }
    if operation.caller is Caller.ANYONE:
        described["security"] = []
    if operation.takes_content:
        described["requestBody"] = {"content": {_BYTES: {"schema": {"type": "string", "format": "binary"}}}}
    elif operation.has_request and not operation.has_query:
        described["requestBody"] = {"content": {_JSON: {"schema": _reference(operation.request)}}}
    return described


def _path_parameters(path: str) -> list[Document]:
    schema = {"type": "string"}
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in parameters_of(path)]


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
        case Form.WEBSOCKET | Form.TCP:
            return {"101": {"description": "The connection is raw from here on, as the summary says"}}
        case Form.EVENTS:
            content = {SERVER_SENT_EVENTS: {"schema": {"type": "string"}}, FRAMES: {"schema": {"type": "string"}}}
            return {"200": {"description": "A stream of events", "content": content}}
        case Form.WORK | Form.STREAM_WORK:
            answer = {_JSON: {"schema": _reference(operation.reply)}}
            content = {SERVER_SENT_EVENTS: {"schema": {"type": "string"}}, FRAMES: {"schema": {"type": "string"}}}
            return {
                str(operation.status): {"description": "The answer", "content": answer},
                "200": {"description": "For who accepts events: a stream of them, then the answer", "content": content},
            }
        case Form.CONTENT:
            content = {_BYTES: {"schema": {"type": "string", "format": "binary"}}}
            return {"200": {"description": "The content", "content": content}}
        case Form.PAGE:
            return {"200": {"description": "The document", "content": {operation.answer.media_type: {"schema": {}}}}}
        case Form.VALUE | Form.UPLOAD | Form.STREAM if operation.reply is None:
            return {str(operation.status): {"description": "Done"}}
        case Form.VALUE | Form.UPLOAD | Form.STREAM:
            answer = {_JSON: {"schema": _reference(operation.reply)}}
            return {str(operation.status): {"description": "The answer", "content": answer}}
        case _:
            assert_never(operation.form)


def _reference(type: object) -> Document:
    (schema,), _ = _components([type])
    return schema


def _components(types: Iterable[object]) -> tuple[tuple[Document, ...], dict[str, Document]]:
    """Schemas of these types and of all they are made from; `object` may be anything."""
    return msgspec.json.schema_components(
        types, schema_hook=lambda _: {"description": "Any value"}, ref_template=_SCHEMAS
    )
