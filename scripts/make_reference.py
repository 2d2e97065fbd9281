"""Write docs/reference and docs/security.md: from docstrings, the table of operations, and SECURITY.md.

`--check` fails when a file is not what would be written.
"""

import inspect
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import msgspec

from cove import api, errors, model
from cove.wire.errors import STATUS
from cove.wire.operations import OPERATIONS, AnyOperation, Form, Target

ROOT_DIRECTORY = Path(__file__).parent.parent
REFERENCE = ROOT_DIRECTORY / "docs/reference"

CLASSES = [
    api.AsyncSandbox,
    api.Process,
    api.Session,
    api.Terminal,
    api.TerminalConnection,
    api.CodeContext,
    api.Files,
    api.Git,
    *([api.Ports] if hasattr(api, "Ports") else []),
]
FORMS = {
    Form.VALUE: "JSON",
    Form.EVENTS: "events",
    Form.CONTENT: "bytes",
    Form.UPLOAD: "takes bytes",
    Form.STREAM: "takes bytes",
    Form.SOCKET: "WebSocket",
}


def main() -> None:
    pages = {
        REFERENCE / "python.md": python_page(),
        REFERENCE / "http.md": http_page(),
        REFERENCE / "errors.md": errors_page(),
        ROOT_DIRECTORY / "docs/security.md": security_page(),
    }
    REFERENCE.mkdir(exist_ok=True)
    for path, text in pages.items():
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path.relative_to(ROOT_DIRECTORY)} is stale: run scripts/make_reference.py")


def python_page() -> str:
    lines = [
        "# Python",
        "",
        "`AsyncSandbox` is shown; `Sandbox` is the same without `await`, and its iterators are plain ones.",
    ]
    for kind in CLASSES:
        lines += ["", f"## {kind.__name__}", "", inspect.getdoc(kind) or ""]
        lines += [line for name, method in methods(kind) for line in describe(name, method)]
    lines += ["", "## Values", ""]
    for name in sorted(model.__all__):
        value = getattr(model, name)
        if isinstance(value, type):
            lines += describe_value(value)
    return "\n".join(lines) + "\n"


def methods(kind: type) -> Iterable[tuple[str, object]]:
    for name, member in vars(kind).items():
        function = member.__func__ if isinstance(member, classmethod) else member
        if inspect.isfunction(function) and not name.startswith("_"):
            yield name, function


def describe(name: str, method: object) -> list[str]:
    assert inspect.isfunction(method)
    keyword = "async def" if inspect.iscoroutinefunction(method) else "def"
    shown = format_signature(inspect.signature(method))
    return ["", f"### {name}", "", "```text", f"{keyword} {name}{shown}", "```", "", inspect.getdoc(method) or ""]


def format_signature(signature: inspect.Signature) -> str:
    kept = [parameter for parameter in signature.parameters.values() if parameter.name not in ("self", "cls")]
    return shorten(str(signature.replace(parameters=kept)))


def shorten(text: str) -> str:
    """Names without the modules they are from."""
    text = text.replace("**spec_fields: *<class 'cove.model.spec.SpecFields'>", "**spec_fields")
    for noise in ("collections.abc.", "cove.model.", "cove.api.", "typing.", "builtins."):
        text = text.replace(noise, "")
    text = re.sub(r"\b[a-z_.]+\.([A-Z])", r"\1", text)
    return text.replace("'", "").replace("NoneType", "None")


def describe_value(kind: type) -> list[str]:
    lines = [f"### {kind.__name__}", "", inspect.getdoc(kind) or "", ""]
    if issubclass(kind, msgspec.Struct):
        lines += [f"- `{field.name}`" for field in msgspec.structs.fields(kind)]
        lines += [
            f"- `{name}`: {inspect.getdoc(member)}"
            for name, member in vars(kind).items()
            if isinstance(member, property)
        ]
    elif hasattr(kind, "__members__"):
        lines += [f"- `{item.value}`" for item in kind]
    return [*lines, ""]


HTTP = """# HTTP

Every call but `GET /health` needs `Authorization: Bearer KEY`. `/v1/openapi.json` has the same with all types. Streams
are server-sent events, or frames (`Accept: application/vnd.cove.frames`); `since=` or `Last-Event-ID` continues after a
cursor. Operations on files exist below a session too: `…/sessions/{session}/files/…`, where relative paths start at its
directory.
"""


def http_page() -> str:
    lines = [HTTP]
    for target in Target:
        rows = [operation for operation in OPERATIONS if operation.target is target]
        lines += [f"## {target.name.capitalize()}", "", "| call | | fields | answer |", "|---|---|---|---|"]
        lines += [row(operation) for operation in rows]
        lines.append("")
    return "\n".join(lines)


def row(operation: AnyOperation) -> str:
    prefix = "" if operation.target is Target.GATEWAY else "…"
    fields = ", ".join(operation.request.__struct_fields__)
    place = "query: " if fields and operation.has_query else ""
    call = f"`{operation.verb} {prefix}{operation.path}`"
    return f"| {call} | {operation.summary} | {place}{fields} | {answer(operation)} |"


def answer(operation: AnyOperation) -> str:
    if operation.form is not Form.VALUE:
        return FORMS[operation.form]
    if operation.reply is None:
        return "204"
    reply = operation.reply
    return f"`{reply.__name__}`" if isinstance(reply, type) and not get_args(reply) else f"`{shorten(str(reply))}`"


def errors_page() -> str:
    tree = (errors.__doc__ or "").strip()
    lines = ["# Errors", "", "```text", tree, "```", "", "| class | code | status | |", "|---|---|---|---|"]
    for name in errors.__all__:
        kind = getattr(errors, name)
        if "code" in vars(kind):
            lines.append(f"| `{name}` | `{kind.code}` | {STATUS.get(kind.code, 500)} | {inspect.getdoc(kind)} |")
    lines += ["", 'On the wire every error is `{"error": message, "code": CODE, "details": {...}}`.']
    return "\n".join(lines) + "\n"


def security_page() -> str:
    text = (ROOT_DIRECTORY / "SECURITY.md").read_text()
    text = re.sub(r"\]\(docs/([\w./-]+)\)", r"](\1)", text)
    return re.sub(r"\[([^\]]+)\]\((?!https?://|#)(?:[A-Z]+\.md|src/[^)]*|tests/[^)]*|decisions/[^)]*)\)", r"\1", text)


if __name__ == "__main__":
    main()
