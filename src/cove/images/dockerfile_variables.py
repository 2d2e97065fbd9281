"""Replace variables in the text of a Dockerfile: `$NAME`, `${NAME}`, `${NAME:-word}` and their like. Pure.

A word may have variables itself. What comes of a text is bounded, and so is how deep words are nested: each line of a
file could double the one before.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

MOST_EXPANDED = 64 << 10
MOST_NESTED = 20
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN = re.compile(r"[^\\$}]+")
_RULE = re.compile(r":?[-+]")


class Unreplaceable(ValueError):
    """Variables whose values cannot be put in: they grow too long, or a brace is missing."""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace all variables; what is not set is empty. Raises Unreplaceable."""
    return _Expansion(text, variables).read(0, 0)[0]


@dataclass(slots=True)
class _Expansion:
    """One text, and how much was made of it so far."""

    text: str
    variables: Mapping[str, str]
    length: int = 0

    def read(self, at: int, depth: int) -> tuple[str, int]:
        """Return what comes of the text from there on, and where it ends; at a depth, by the brace of its word."""
        pieces: list[str] = []
        while at < len(self.text):
            if depth and self.text[at] == "}":
                return "".join(pieces), at + 1
            piece, at = self._next(at, depth)
            pieces.append(piece)
        if depth:
            raise Unreplaceable("a ${ has no } that ends it")
        return "".join(pieces), at

    def _value(self, name: str) -> str | None:
        value = self.variables.get(name)
        self.length += len(value or "")
        if self.length > MOST_EXPANDED:
            raise Unreplaceable(f"a value has more than {MOST_EXPANDED} characters when its variables are replaced")
        return value

    def _next(self, at: int, depth: int) -> tuple[str, int]:
        if plain := _PLAIN.match(self.text, at):
            return plain[0], plain.end()
        if self.text[at] == "\\" and self.text[at + 1 : at + 2] in ("\\", "$"):
            return self.text[at + 1], at + 2
        if self.text.startswith("${", at):
            return self._braced(at, depth)
        if self.text[at] == "$" and (name := _NAME.match(self.text, at + 1)):
            return self._value(name[0]) or "", name.end()
        return self.text[at], at + 1

    def _braced(self, at: int, depth: int) -> tuple[str, int]:
        name = _NAME.match(self.text, at + 2)
        if name is None:
            return "$", at + 1
        value, end = self._value(name[0]), name.end()
        if self.text.startswith("}", end):
            return value or "", end + 1
        rule = _RULE.match(self.text, end)
        if rule is None:
            return "$", at + 1
        if depth == MOST_NESTED:
            raise Unreplaceable(f"variables stand in one another more than {MOST_NESTED} times")
        word, end = self.read(rule.end(), depth + 1)
        is_set = bool(value) if rule[0].startswith(":") else value is not None
        if rule[0].endswith("-"):
            return (value or "") if is_set else word, end
        return word if is_set else "", end
