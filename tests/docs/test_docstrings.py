"""Docstrings name: the first line starts with an imperative verb or the term of the trade, so that grep finds it."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

SOURCE = Path(__file__).resolve().parents[2] / "src" / "cove"
GENERATED = "blocking/facade.py"
INSIDE = ("agent/", "archive/", "executor/", "verify/")  # small programs, whose functions have one caller

QUESTIONS = re.compile(r"(how|what|when|where|whether|which|who|whom|whose|why)(ever)?\b", re.IGNORECASE)
# Sentences that begin so describe a moment or a circumstance; the thing they are about comes late, if at all.
CIRCUMSTANCES = re.compile(
    r"(after|as|at|be|because|before|by|called|either|everything|for|from|if|in|it|its|neither|never|nobody|none|nothing|"
    r"now|of|only|over|see|since|so|some|some(body|one|thing)|that|there|these|this|those|to|until|while|with|without)\b",
    re.IGNORECASE,
)

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(slots=True)
class Described:
    """A module, class or function: where it stands, and what its docstring says."""

    where: str
    node: ast.Module | Definition
    owner: ast.ClassDef | None = None
    is_public: bool = True
    docstring: str | None = field(init=False)

    def __post_init__(self) -> None:
        self.docstring = ast.get_docstring(self.node)

    @property
    def is_vague(self) -> bool:
        text = self.docstring or ""
        has_to_name = self.is_public and not isinstance(self.node, ast.ClassDef)
        return bool(QUESTIONS.match(text)) or (has_to_name and bool(CIRCUMSTANCES.match(text)))


def is_overload(node: Definition) -> bool:
    return any(ast.unparse(mark) == "overload" for mark in node.decorator_list)


def definitions(node: ast.Module | ast.ClassDef, where: str, is_public: bool = True) -> Iterator[Described]:
    for child in node.body:
        if isinstance(child, Definition) and not is_overload(child):
            owner = node if isinstance(node, ast.ClassDef) else None
            described = Described(
                f"{where}:{child.lineno} {child.name}", child, owner, is_public and not child.name.startswith("_")
            )
            yield described
            if isinstance(child, ast.ClassDef):
                yield from definitions(child, where, described.is_public)


def all_definitions() -> list[Described]:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        where = str(path.relative_to(SOURCE))
        if "node_modules" not in path.parts and where != GENERATED:
            tree = ast.parse(path.read_text())
            found += [Described(where, tree), *definitions(tree, where)]
    return found


EVERYTHING = all_definitions()
CLASSES = {each.node.name: each.node for each in EVERYTHING if isinstance(each.node, ast.ClassDef)}


def overrides(method: str, owner: ast.ClassDef | None) -> bool:
    """Return whether a base class of ours, or any class that is not ours, describes a method of that name."""
    for base in owner.bases if owner is not None else ():
        name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
        ours = CLASSES.get(name)
        if ours is None or ours is owner:
            return True
        if any(isinstance(node, Definition) and node.name == method for node in ours.body) or overrides(method, ours):
            return True
    return False


def test_every_public_function_is_described_unless_it_overrides_one_that_is() -> None:
    missing = [
        each.where
        for each in EVERYTHING
        if each.is_public
        and each.docstring is None
        and isinstance(each.node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not each.where.startswith(INSIDE)
        and not overrides(each.node.name, each.owner)
    ]
    assert not missing, "\n".join(missing)


def test_docstrings_start_with_a_verb_or_a_term() -> None:
    vague = [f"{each.where}: {(each.docstring or '').splitlines()[0]}" for each in EVERYTHING if each.is_vague]
    assert not vague, "\n".join(vague)
