"""Write src/cove/blocking/facade.py: the blocking classes, made from the asynchronous ones in cove.api.

Every `async def` becomes a plain `def` with the same signature, every asynchronous generator a plain
one, every annotated attribute a property, which is blocking too if it is one of our objects. `--check`
fails when the file is not what would be written.
"""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
API = ROOT / "src/cove/api"
TARGET = ROOT / "src/cove/blocking/facade.py"

# File, class, and what the class is called here.
CLASSES = [
    ("process.py", "Process", "Process"),
    ("files.py", "Files", "Files"),
    ("git.py", "Git", "Git"),
    ("ports.py", "TcpConnection", "TcpConnection"),
    ("ports.py", "Ports", "Ports"),
    ("backups.py", "Backups", "Backups"),
    ("mounts.py", "Mounts", "Mounts"),
    ("session.py", "Session", "Session"),
    ("terminal.py", "TerminalConnection", "TerminalConnection"),
    ("terminal.py", "Terminal", "Terminal"),
    ("code.py", "CodeContext", "CodeContext"),
    ("snapshot.py", "AsyncSnapshot", "Snapshot"),
    ("transaction.py", "AsyncTransaction", "Transaction"),
    ("sandbox.py", "AsyncSandbox", "Sandbox"),
    ("volume.py", "AsyncVolume", "Volume"),
    ("api_key.py", "AsyncApiKey", "ApiKey"),
    ("image.py", "AsyncImage", "Image"),
    ("fleet.py", "AsyncFleet", "Fleet"),
]
# Those that users make themselves.
CONSTRUCTED = {"AsyncFleet"}
# A function of the caller's that gets a sandbox: here a plain one, which runs in a thread.
ITEMS = "AsyncIterable[Item] | Iterable[Item]"
TASK = "Callable[[AsyncSandbox, Item], Awaitable[Value]]"
BLOCKING = {name: blocking for _, name, blocking in CLASSES}

HEADER = '''"""The blocking classes. Made from cove.api by scripts/make_blocking.py; change that, then run it."""

'''

# What becomes of a thing whose maker is interrupted.
_UNDO = {"AsyncSandbox": ", _destroy", "AsyncVolume": ", _delete"}

OPENED = """

T = TypeVar("T", bound=api.Destroyable)


async def _opened(opening: "api.AwaitableContext[T]") -> T:
    return await opening


async def _destroy(opened: api.Destroyable) -> None:
    await opened.destroy()


async def _delete(made: api.AsyncVolume) -> None:
    await made.delete()


def _in_thread(
    task: Callable[["Sandbox", Item], Value], portal: Portal
) -> Callable[[api.AsyncSandbox, Item], Awaitable[Value]]:
    async def run(sandbox: api.AsyncSandbox, item: Item) -> Value:
        return await portal.run(lambda: task(Sandbox(sandbox, portal), item), sandbox.destroy)

    return run


def _fed(items: Iterable[Item], portal: Portal) -> AsyncIterable[Item] | Iterable[Item]:
    return items if isinstance(items, Sized) else portal.feed(items)


def _inner(context: "CodeContext | str | None") -> api.CodeContext | str | None:
    return context._inner if isinstance(context, CodeContext) else context


"""


def main() -> None:
    text = make()
    if "--check" in sys.argv:
        if not TARGET.exists() or TARGET.read_text() != text:
            sys.exit(f"{TARGET.relative_to(ROOT)} is stale: run scripts/make_blocking.py")
        return
    TARGET.write_text(text)


def make() -> str:
    imports: dict[str, set[str]] = {}
    bodies = []
    for file, name, blocking in CLASSES:
        tree = ast.parse((API / file).read_text())
        collect_imports(tree, imports)
        definition = find_class(tree, name)
        inherit(definition, tree, imports)
        bodies.append(make_class(definition, blocking))
    imports.pop("abc")
    imports.setdefault("collections.abc", set()).update(["Generator", "Iterable", "Iterator"])
    lines = ["import builtins", "import re", "from typing import Self, TypeVar", "from cove import api"]
    lines += [f"from {module} import {', '.join(sorted(names))}" for module, names in imports.items()]
    lines += ["from cove.blocking.portal import Portal, get_portal"]
    return formatted(HEADER + "\n".join(lines) + OPENED + "\n\n".join(bodies))


def find_class(tree: ast.Module, name: str) -> ast.ClassDef:
    (definition,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return definition


def inherit(definition: ast.ClassDef, tree: ast.Module, imports: dict[str, set[str]]) -> None:
    """Take over the methods of base classes from other modules of the interface, and what those import."""
    bases = {base.id for base in definition.bases if isinstance(base, ast.Name)}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("cove.api."):
            for name in bases.intersection(alias.name for alias in node.names):
                source = API / f"{node.module.removeprefix('cove.api.')}.py"
                base = ast.parse(source.read_text())
                collect_imports(base, imports)
                definition.body += find_class(base, name).body


def collect_imports(tree: ast.Module, imports: dict[str, set[str]]) -> None:
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith("cove.api"):
            imports.setdefault(node.module, set()).update(alias.name for alias in node.names)


def make_class(definition: ast.ClassDef, blocking: str) -> str:
    parts = [f"class {blocking}:", f"    {literal(ast.get_docstring(definition) or '')}", *make_init(definition)]
    if any(isinstance(base, ast.Name) and base.id == "Named" for base in definition.bases):
        parts += [
            "    def __repr__(self) -> str:",
            '        return repr(self._inner).replace("<Async", "<", 1)',
        ]
    if blocking == "Sandbox":
        parts += [
            "    def __enter__(self) -> Self:",
            "        return self",
            "    def __exit__(self, *_: object) -> None:",
            "        if self._owned:",
            "            self.destroy()",
            "        else:",
            "            self.detach()",
        ]
    if has(definition, "__aenter__"):
        parts += [
            "    def __enter__(self) -> Self:",
            "        self.open()",
            "        return self",
            "    def __exit__(self, *_: object) -> None:",
            "        self.close()",
        ]
    if has(definition, "__aiter__"):
        parts += [
            "    def __iter__(self) -> Iterator[TerminalEvent]:",
            "        return self.events()",
        ]
    for node in definition.body:
        if isinstance(node, ast.AnnAssign):
            parts += make_property(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            parts += make_method(node, definition.name, blocking)
    return "\n".join(parts)


def make_init(definition: ast.ClassDef) -> list[str]:
    if definition.name in CONSTRUCTED:
        (init,) = [node for node in definition.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
        return [
            f"    def __init__({parameters(init.args)}) -> None:",
            f"        self._inner = api.{definition.name}({arguments(init.args)})",
            "        self._portal = get_portal()",
        ]
    return [
        f"    def __init__(self, inner: api.{definition.name}, portal: Portal, *, owned: bool = True) -> None:",
        "        self._inner = inner",
        "        self._portal = portal",
        "        self._owned = owned",
    ]


def has(definition: ast.ClassDef, method: str) -> bool:
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == method for node in definition.body
    )


def make_property(node: ast.AnnAssign) -> list[str]:
    name, annotation = ast.unparse(node.target), ast.unparse(node.annotation)
    value = f"self._inner.{name}"
    if annotation in BLOCKING:
        value = f"{BLOCKING[annotation]}({value}, self._portal)"
    return [
        "    @property",
        f"    def {name}(self) -> {annotation}:",
        f"        return {value}",
    ]


def make_method(node: ast.FunctionDef | ast.AsyncFunctionDef, original: str, blocking: str) -> list[str]:
    is_class_method = any(ast.unparse(mark) == "classmethod" for mark in node.decorator_list)
    returns = ast.unparse(node.returns).replace("'", "") if node.returns else "None"
    owner = f"api.{original}" if is_class_method else "self._inner"
    call = f"{owner}.{node.name}({arguments(node.args)})"
    lines = ["    @classmethod"] if is_class_method else []
    if isinstance(node, ast.FunctionDef) and returns.startswith("AsyncGenerator["):
        item = returns.removeprefix("AsyncGenerator[").removesuffix(", None]")
        lines.append(f"    def {node.name}({parameters(node.args)}) -> Generator[{item}, None, None]:")
        portal = "get_portal()" if is_class_method else "self._portal"
        body = f"return {portal}.iterate({call})"
    elif isinstance(node, ast.FunctionDef) and returns in BLOCKING:
        lines.append(f"    def {node.name}({parameters(node.args)}) -> {BLOCKING[returns]}:")
        body = f"return {BLOCKING[returns]}({call}, self._portal)"
    else:
        returns = (
            returns.removeprefix("AwaitableContext[").removesuffix("]")
            if returns.startswith("AwaitableContext[")
            else returns
        )
        portal = "get_portal()" if is_class_method else "self._portal"
        lines.append(f"    def {node.name}({parameters(node.args)}) -> {translate(returns)}:")
        if isinstance(node, ast.FunctionDef):
            call = f"_opened({call})"
        ownership = ", owned=False" if node.name == "connect" else ""
        undo = _UNDO.get(original, "") if node.name == "create" else ""
        value = f"{portal}.call(lambda: {call}{undo})"
        body = f"{value}\n        return self" if returns == "Self" else wrap(returns, value, portal + ownership)
    lines += [f"        {literal(ast.get_docstring(node) or '')}", f"        {body}"]
    return lines


def translate(returns: str) -> str:
    for name, blocking in BLOCKING.items():
        if returns == name:
            return f"'{blocking}'"
        if returns == f"builtins.list[{name}]":
            return f"builtins.list['{blocking}']"
    return returns


def wrap(returns: str, value: str, portal: str) -> str:
    for name, blocking in BLOCKING.items():
        if returns == name:
            return f"return {blocking}({value}, {portal})"
        if returns == f"builtins.list[{name}]":
            return f"return [{blocking}(each, {portal}) for each in {value}]"
    return f"return {value}" if returns != "None" else value


def parameters(args: ast.arguments) -> str:
    text = ast.unparse(args).replace(ITEMS, "Iterable[Item]").replace("AsyncIterable[", "Iterable[")
    return text.replace(TASK, "Callable[['Sandbox', Item], Value]")


def arguments(args: ast.arguments) -> str:
    words = [value(arg) for arg in args.args[1:]]
    words += [f"{arg.arg}={value(arg)}" for arg in args.kwonlyargs]
    if args.kwarg:
        words.append(f"**{args.kwarg.arg}")
    return ", ".join(words)


def value(arg: ast.arg) -> str:
    """What is passed on: for one of our own objects the asynchronous one behind it, and iterables as asynchronous."""
    annotation = "" if arg.annotation is None else ast.unparse(arg.annotation)
    if annotation == ITEMS:
        return f"_fed({arg.arg}, self._portal)"
    if annotation.startswith("AsyncIterable["):
        return f"self._portal.feed({arg.arg})"
    if annotation == TASK:
        return f"_in_thread({arg.arg}, self._portal)"
    return f"_inner({arg.arg})" if "CodeContext" in annotation else arg.arg


def literal(docstring: str) -> str:
    return (
        '"""'
        + docstring.replace("\n", "\n        ").replace("\n        \n", "\n\n")
        + ('\n        """' if "\n" in docstring else '"""')
    )


def formatted(text: str) -> str:
    tools = Path(sys.executable).parent / "ruff"
    arguments = ["--config", str(ROOT / "pyproject.toml"), "--stdin-filename", str(TARGET), "-"]
    for command in (["check", "--fix-only", "--select", "I,F401,UP", "--quiet"], ["format", "--quiet"]):
        text = subprocess.run(
            [tools, *command, *arguments], input=text, capture_output=True, text=True, check=True
        ).stdout
    return text


if __name__ == "__main__":
    main()
