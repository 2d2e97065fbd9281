"""Change the parsers one operator at a time, and print each change that their tests do not notice (mutation testing).

    mutants.py [MODULE ...]     for example: mutants.py core/client_hello.py

Every mutant runs in a process forked from this one, which has imported pytest and Hypothesis, but nothing of Cove: an
import hook gives it the changed source. A mutant that hangs or fills memory is found too. Exit status 1: some survived.
"""

import ast
import importlib.machinery
import io
import os
import resource
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

import anyio.pytest_plugin  # noqa: F401  what is imported here, a mutant need not import
import blockbuster  # noqa: F401
import hypothesis
import msgspec  # noqa: F401
import pytest

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGE = _ROOT / "src/cove"
_LEAST_SECONDS = 10
_MEMORY_BYTES = 4 << 30
_POLICY = "core/test_network_policy.py core/test_request_rule.py core/test_network_log.py core/test_network_grants.py"
_WITHOUT_CONNECTION = "-k 'not uvloop and not asyncio'"

# Each module with the tests that are to notice, and options: none of them makes a sandbox.
TESTS = {
    "core/client_hello.py": "core/test_client_hello.py",
    "core/network_policy.py": _POLICY,
    "model/network.py": _POLICY,
    "core/redaction.py": "core/test_redaction.py",
    "core/synthetic_address.py": "core/test_synthetic_address.py",
    "http/parser.py": f"http/test_http.py {_WITHOUT_CONNECTION}",
    "http/response_parser.py": "server/test_preview_headers.py",
    "http/websocket_frames.py": f"http/test_websocket.py {_WITHOUT_CONNECTION}",
    "http/headers.py": "server/test_preview_headers.py",
    "wire/frames.py": "core/test_wire.py",
    "core/shell_protocol.py": "core/test_shell_protocol.py",
    "core/executor_protocol.py": "core/test_executor_protocol.py",
    "core/json_tokens.py": "core/test_executor_protocol.py",
    "core/git_output.py": "core/test_core_git.py",
}

# Lines that no test can tell from the original, by module, with the reason. One that ends with `*` is a beginning.
EQUIVALENT: dict[str, dict[str, str]] = {
    "core/client_hello.py": {
        "MOST_BYTES = 33 << 10": "a bound: what it is exactly is not promised",
    },
    "http/parser.py": {
        "head_bytes: int = *": "a default: what it is exactly is not promised",
        "headers: int = *": "as above",
        "buffered_body_bytes: int = *": "as above",
        "drained_bytes: int = *": "as above",
        "connections: int = *": "as above",
        "self._head_bytes = *": "set again when a head begins",
        "self._silent_bytes = *": "as above",
        "self._after_upgrade_head(data[upgrade.args[(-1)] :])": "it has one argument",
        'if b"," in headers.get(b"content-length", b""): pass': "llhttp refuses it first",
    },
    "http/response_parser.py": {
        'if any(byte in value for byte in b"\\r\\n\\0"): pass': "llhttp refuses it first",
        "if self._is_complete: pass": "nothing is told after the end, whatever is parsed",
        "self._taker.answer_switch(self._head, data[upgrade.args[(-1)] :])": "it has one argument",
    },
    "http/websocket_frames.py": {
        "_LONG_BYTES = 4097": "where the faster way begins",
        "_LONG_BYTES = (4095)": "as above",
        "if length >= _LONG_BYTES:": "as above",
        "if length <= _LONG_BYTES:": "as above",
        "octets[at::4] = octets[at::4].translate(_XOR[mask[at]]) pass": "as above",
        "key = (mask * (length // (3) + 1))[:length]": "a key that is longer is cut",
        "key = (mask * (length // 4 + 2))[:length]": "as above",
        "if self._opcode is None and is_final: pass": "a faster way to the same",
        "if len(buffer) < start: pass": "what has no whole head has no whole data either",
    },
    "core/git_output.py": {
        'fields = rest.split(b" ", _FIELDS.get(kind, 2) - 1)': "an unknown kind is refused below",
        'fields = rest.split(b" ", _FIELDS.get(kind, (0)) - 1)': "as above",
    },
    "core/json_tokens.py": {
        "_SCALAR_BYTES: Final = *": "an estimate",
        "_STRING_BYTES: Final = *": "as above",
        "_CONTAINER_BYTES: Final = *": "as above",
        "_CHARACTER_BYTES: Final = *": "as above",
        "self._room = *": "set before it is used",
        "self._is_wide = True": "as above",
        "return self._root[(-1)]": "it has one element",
    },
    "core/executor_protocol.py": {
        "EVENT_BYTES: Final = *": "an estimate",
        "_FRAMES_AT_A_TIME: Final = *": "how many are taken at a time is not promised",
        "_JSON_PIECE_FRAMES: Final = *": "as above",
        "while left >= 0 and self.has_frame:": "as above",
        "while left > 1 and self.has_frame:": "as above",
        "while left > (-1) and self.has_frame:": "as above",
        "left -= _JSON_PIECE_FRAMES if self._message is not None and self._message.is_json else 2": "as above",
        "return 1": "what has no whole head has no frame, whatever its length",
        "self._width = (0)": "set by the first piece",
        "return (0)": "a width is at least that of the text before",
    },
    "wire/frames.py": {
        'words = status.split(b" ", 3)': "two of them are read",
        "self._missing = *": "set before it is used",
        "if (rest or self._missing):": "an empty piece makes no difference",
    },
    "core/redaction.py": {
        "self._overlap = len(found[0]) - 1 if found else 1": "not used without secrets",
        "self._overlap = len(found[0]) - 1 if found else (-1)": "as above",
    },
    "core/synthetic_address.py": {
        "MOST_NAMES = 16385": "a bound: what it is exactly is not promised",
        "MOST_NAMES = (16383)": "as above",
        "self._next = 1": "which address is the first is not promised",
        "self._next = ((self._next - 1)) % _COUNT": "nor in which order they are given",
    },
}

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module's source with one change; `before` and `after` are the lines around it."""

    line: int
    before: str
    after: str
    source: bytes


def mutants_of(source: bytes) -> Iterator[Mutant]:
    """All changes of one operator, constant, guard or slice."""
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text))
    for node, replacement in _replacements(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        changed = source[:start] + replacement.encode() + source[end:]
        shown = node.lineno - (2 if replacement == "pass" else 1)  # with the condition of a guard
        first, last = starts[shown], starts[node.end_lineno] - len(source)
        before, after = (_one_line(text[first : last or None]) for text in (source, changed))
        yield Mutant(node.lineno, before, after, changed)


def _one_line(text: bytes) -> str:
    return " ".join(text.decode().split())


def _replacements(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Each node that is to be replaced, with the text in its place; annotations, decorators and f-strings stay."""
    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.expr):
        yield from ((node, text) for text in _other_expressions(node))
    if isinstance(node, ast.If | ast.While | ast.IfExp) and isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
        yield node.test, f"(not {ast.unparse(node.test)})"
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or (
            name == "keywords" and isinstance(node, ast.ClassDef)
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.Raise | ast.Return | ast.Continue | ast.Break) and isinstance(node, ast.If):
                yield child, "pass"
            if isinstance(child, ast.AST):
                yield from _replacements(child)


def _other_expressions(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Compare():
            yield from _other_comparisons(node)
        case ast.BoolOp(operator, values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield f"({ast.unparse(ast.BoolOp(other, values))})"
        case ast.UnaryOp(ast.Not(), operand):
            yield f"({ast.unparse(operand)})"
        case ast.BinOp(left, ast.Add(), right):
            yield f"({ast.unparse(ast.BinOp(left, ast.Sub(), right))})"
        case ast.BinOp(left, ast.Sub(), right):
            yield f"({ast.unparse(ast.BinOp(left, ast.Add(), right))})"
        case ast.Constant(bool() as value):
            yield str(not value)
        case ast.Constant(int() as value):
            yield from (str(value + 1), f"({value - 1})")
        case ast.Subscript(value, ast.Slice(lower, upper, step)):
            bounds = {(None, upper), (lower, None)} - {(lower, upper)}
            yield from (ast.unparse(ast.Subscript(value, ast.Slice(*each, step), ast.Load())) for each in bounds)


def _other_comparisons(node: ast.Compare) -> Iterator[str]:
    for at, operator in enumerate(node.ops):
        for other in _COMPARISONS[type(operator)]:
            operators = [*node.ops[:at], other(), *node.ops[at + 1 :]]
            yield ast.unparse(ast.Compare(node.left, operators, node.comparators))


class _Plugin:
    """What the tests have from their conftest."""

    @pytest.fixture(scope="session")
    def anyio_backend(self) -> str:
        return "asyncio"


def _passes(module: str, source: bytes, *, seconds: float) -> bool:
    """Return whether the tests pass with this source, in this time."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            code = _run_tests(_PACKAGE / module, source, shlex.split(TESTS[module]))
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _run_tests(path: Path, source: bytes, tests: list[str]) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    original = importlib.machinery.SourceFileLoader.get_code

    def get_code(loader: importlib.machinery.SourceFileLoader, name: str) -> CodeType | None:
        return compile(source, path, "exec") if Path(loader.path) == path else original(loader, name)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    hypothesis.settings.register_profile("mutants", deadline=None, derandomize=True, database=None, max_examples=30)
    hypothesis.settings.load_profile("mutants")
    sys.path[:0] = [str(_ROOT / "src"), str(_ROOT / "tests"), str(_ROOT)]
    if "COVE_MUTANTS_SHOW" not in os.environ:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        sys.stdout = sys.stderr = io.StringIO()
    options = ["-x", "-q", "-c", os.devnull, "--rootdir", str(_ROOT), "--noconftest", "--tb=short"]
    options += [
        "-p",
        "anyio",
        "-p",
        "no:warnings",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-m",
        "not slow and not timed",
    ]
    paths = [str(_ROOT / "tests" / each) if each.endswith(".py") else each for each in tests]
    return pytest.main([*options, *paths], plugins=[_Plugin()])


def _is_meant(key: str, line: str) -> bool:
    return line.startswith(key[:-1]) if key.endswith("*") else line == key


def examine(module: str, say: Callable[[str], None]) -> int:
    """Run all mutants of a module; return how many survived."""
    source = (_PACKAGE / module).read_bytes()
    begun = time.monotonic()
    if not _passes(module, source, seconds=300):
        say(f"{module}: its tests fail without any change")
        return 1
    seconds = _LEAST_SECONDS + 3 * (time.monotonic() - begun)
    excluded = EQUIVALENT.get(module, {})
    found = list(mutants_of(source))
    used = {mutant.after: key for mutant in found for key in excluded if _is_meant(key, mutant.after)}
    run = [mutant for mutant in found if mutant.after not in used]
    survivors = 0
    for mutant in run:
        if _passes(module, mutant.source, seconds=seconds):
            survivors += 1
            say(f"{module}:{mutant.line}: {mutant.before}  →  {mutant.after}")
    for unused in excluded.keys() - set(used.values()):
        say(f"{module}: no mutant is {unused!r}: take it from the list")
    counts = f"{len(run) - survivors} killed, {survivors} survived, {len(found) - len(run)} excluded"
    say(f"{module}: {len(found)} mutants, {counts}")
    return survivors


def main(*modules: str) -> int:
    """Examine these modules, or all."""
    survivors = sum(examine(module, lambda text: print(text, flush=True)) for module in modules or TESTS)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
