"""Write docs/reference and docs/security.md: from docstrings, the table of operations, and SECURITY.md.

`--check` fails when a file is not what would be written.
"""

import inspect
import re
import sys
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_args

import msgspec

from cove import api, errors, model, tools
from cove.wire.errors import STATUS
from cove.wire.operation import AnyOperation, Form
from cove.wire.operations import OPERATIONS
from cove.wire.target import Target

ROOT_DIRECTORY = Path(__file__).parent.parent
REFERENCE = ROOT_DIRECTORY / "docs/reference"

PUBLIC = ("cove.api", "cove.tools")
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
    api.Backups,
    api.AsyncFleet,
]
TOOLS = [tools.Toolset, tools.BlockingToolset]
TOOL_VALUES = [tools.Tool, tools.ToolLimits, tools.ToolResult, tools.ToolImage]
FORMS = {
    Form.VALUE: "JSON",
    Form.EVENTS: "events",
    Form.CONTENT: "bytes",
    Form.UPLOAD: "takes bytes",
    Form.STREAM: "takes bytes",
    Form.WORK: "JSON, or events",
    Form.STREAM_WORK: "takes bytes; JSON, or events",
    Form.PAGE: "a document",
    Form.WEBSOCKET: "WebSocket",
    Form.TCP: "an upgrade to tcp",
}

DECISIONS = {
    errors.RequestError: "Change the request",
    errors.NothingStarted: "Nothing was started: retrying is safe",
    errors.MayHaveRun: "Something may have run, or is running",
    errors.Internal: "A bug in Cove",
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
        "Every class and method of the Python API.",
        "`AsyncSandbox` is shown; `Sandbox` is the same without `await`, and its iterators are plain ones.",
    ]
    for kind in CLASSES:
        lines += describe_class(kind)
    lines += ["", "## cove.tools", "", "Tools for any model: [agents](../agents.md) has the guide."]
    for kind in TOOLS:
        lines += describe_class(kind)
    lines += describe("langchain_tools", tools.langchain_tools)
    lines += [""]
    for kind in TOOL_VALUES:
        lines += describe_value(kind)
    lines += ["", "## Values", ""]
    for name in sorted(model.__all__):
        value = getattr(model, name)
        if isinstance(value, type):
            lines += describe_value(value)
    return "\n".join(lines) + "\n"


def describe_class(kind: type) -> list[str]:
    lines = ["", f"## {kind.__name__}", "", inspect.getdoc(kind) or ""]
    return [*lines, *(line for name, method in methods(kind) for line in describe(name, method))]


def methods(kind: type) -> Iterable[tuple[str, object]]:
    members = [each for owner in kind.__mro__ if owner.__module__.startswith(PUBLIC) for each in vars(owner).items()]
    for name, member in members:
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
    if issubclass(kind, msgspec.Struct) or is_dataclass(kind):
        names = [field.name for field in (fields(kind) if is_dataclass(kind) else msgspec.structs.fields(kind))]
        lines += [f"- `{name}`" for name in names]
        lines += [
            f"- `{name}`: {inspect.getdoc(member)}"
            for name, member in vars(kind).items()
            if isinstance(member, property)
        ]
    elif hasattr(kind, "__members__"):
        lines += [f"- `{item.value}`" for item in kind]
    return [*lines, ""]


HTTP = """# HTTP

Every route of the HTTP API.
Every call but `GET /health` needs `Authorization: Bearer KEY`.
`/v1/openapi.json` has the same with all types.
Streams are server-sent events, or frames (`Accept: application/vnd.cove.frames`).
`since=` or `Last-Event-ID` continues after a cursor.
Operations on files exist below a session too: `…/sessions/{session}/files/…`.
Relative paths then start at the session's directory.
"""


def http_page() -> str:
    lines = [HTTP]
    for target in Target:
        rows = [operation for operation in OPERATIONS if operation.target is target]
        lines += [f"## {target.heading.capitalize()}", "", "| call | | fields | answer |", "|---|---|---|---|"]
        lines += [row(operation) for operation in rows]
        lines.append("")
    return "\n".join(lines)


def row(operation: AnyOperation) -> str:
    prefix = "" if operation.paths == (operation.path,) else "…"
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
    lines = [
        *("# Errors", "", "Every error is a `CoveError`.", "The class below it tells you what to decide.", ""),
        *("```text", *error_tree(errors.CoveError), "```"),
    ]
    for kind, decision in DECISIONS.items():
        lines += ["", f"## {decision}", "", *error_table(kind)]
    lines += [
        *("", "## On the wire", "", 'Every error is `{"error": message, "code": CODE, "details": {...}}`.'),
        *("", "`is_infrastructure_failure` says that Cove or the machine failed, and nothing that runs inside."),
        "It is true where the last column says yes, and where a process was lost and has no exit code.",
    ]
    return "\n".join(lines) + "\n"


def error_tree(kind: type[errors.CoveError], before: str = "") -> Iterable[str]:
    if kind is errors.CoveError:
        yield kind.__name__
    below = subclasses(kind)
    for each in below:
        is_last = each is below[-1]
        yield f"{before}{'└── ' if is_last else '├── '}{each.__name__}"
        yield from error_tree(each, before + ("    " if is_last else "│   "))


def error_table(kind: type[errors.CoveError]) -> Iterable[str]:
    yield "| class | code | status | meaning | infrastructure |"
    yield "|---|---|---|---|---|"
    for each in [kind, *descendants(kind)]:
        if each.code != errors.CoveError.code or each is errors.Internal:
            status = STATUS.get(each.code, 500)
            is_ours = "yes" if each._is_ours else ""
            yield f"| `{each.__name__}` | `{each.code}` | {status} | {inspect.getdoc(each)} | {is_ours} |"


def descendants(kind: type[errors.CoveError]) -> Iterable[type[errors.CoveError]]:
    for each in subclasses(kind):
        yield each
        yield from descendants(each)


def subclasses(kind: type[errors.CoveError]) -> list[type[errors.CoveError]]:
    """The public classes directly below, in the order in which they are defined."""
    return [each for each in kind.__subclasses__() if each.__name__ in errors.__all__]


def security_page() -> str:
    text = (ROOT_DIRECTORY / "SECURITY.md").read_text()
    text = re.sub(r"\]\(docs/([\w./-]+)\)", r"](\1)", text)
    return re.sub(r"\[([^\]]+)\]\((?!https?://|#)(?:[A-Z]+\.md|src/[^)]*|tests/[^)]*|decisions/[^)]*)\)", r"\1", text)


if __name__ == "__main__":
    main()
