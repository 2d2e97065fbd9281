"""The API's own documents: OpenAPI as JSON, and as a page to read."""

import html
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final, cast

from cove.wire.coding import encode_json
from cove.wire.openapi import make_document

Document = Mapping[str, object]

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1a2733 }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #d5dde5; text-transform: capitalize }
details { border: 1px solid #d5dde5; border-radius: 6px; margin: .4rem 0; padding: .4rem .8rem }
summary { cursor: pointer } code { font: 13px ui-monospace, monospace }
.verb { display: inline-block; width: 4.5rem; font-weight: 600 } .note { color: #5a6b7b; margin-left: .6rem }
table { border-collapse: collapse; margin: .5rem 0 } td { padding: .15rem .8rem .15rem 0; vertical-align: top }
@media (prefers-color-scheme: dark) {
  body { background: #10161c; color: #d8e1ea } details, h2 { border-color: #2c3a47 }
}
"""


@dataclass(frozen=True, slots=True)
class Documents:
    """The OpenAPI document as JSON and as HTML."""

    json: bytes
    html: bytes


def make_documents() -> Documents:
    """Made once: they do not change while a server runs."""
    document = make_document(version("cove"))
    return Documents(json=encode_json(document), html=make_page(document).encode())


def make_page(document: Document) -> str:
    """All operations, by what they are about."""
    groups: dict[str, list[str]] = {}
    paths = cast(Mapping[str, Mapping[str, Document]], document["paths"])
    for path, verbs in paths.items():
        for verb, operation in verbs.items():
            tag = cast(list[str], operation["tags"])[0]
            groups.setdefault(tag, []).append(_operation(verb, path, operation))
    sections = "".join(f"<h2>{html.escape(tag)}</h2>{''.join(rows)}" for tag, rows in groups.items())
    information = cast(Mapping[str, str], document["info"])
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(information["title"])} API</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"<h1>{html.escape(information['title'])} API {html.escape(information['version'])}</h1>"
        f"<p>{html.escape(information['description'])} Every call but <code>GET /health</code> needs "
        f"<code>Authorization: Bearer KEY</code>. The same as data: <code>/v1/openapi.json</code>.</p>"
        f"{sections}</html>"
    )


def _operation(verb: str, path: str, operation: Document) -> str:
    summary = html.escape(str(operation["summary"]))
    return (
        f'<details><summary><span class="verb">{verb.upper()}</span><code>{html.escape(path)}</code>'
        f'<span class="note">{summary}</span></summary>{_parameters(operation)}{_body(operation)}'
        f"{_responses(operation)}</details>"
    )


def _parameters(operation: Document) -> str:
    rows = [
        f"<tr><td><code>{html.escape(str(row['name']))}</code></td><td>{html.escape(str(row['in']))}</td>"
        f"<td>{'required' if row.get('required') else ''}</td></tr>"
        for row in cast(list[Document], operation["parameters"])
    ]
    return f"<table>{''.join(rows)}</table>" if rows else ""


def _body(operation: Document) -> str:
    body = cast(Document | None, operation.get("requestBody"))
    return "" if body is None else f"<p>Body: {_content(body)}</p>"


def _responses(operation: Document) -> str:
    rows = [
        f"<tr><td>{html.escape(status)}</td><td>{html.escape(str(row['description']))} {_content(row)}</td></tr>"
        for status, row in cast(Mapping[str, Document], operation["responses"]).items()
    ]
    return f"<table>{''.join(rows)}</table>"


def _content(owner: Document) -> str:
    content = cast(Mapping[str, Document], owner.get("content", {}))
    return " or ".join(f"<code>{html.escape(kind)}</code> {_schema(row)}" for kind, row in content.items())


def _schema(row: Document) -> str:
    schema = cast(Document, row.get("schema", {}))
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    return f"<i>{html.escape(name)}</i>" if name else ""
