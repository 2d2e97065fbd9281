"""Match paths of a build's directory against patterns: of `.dockerignore`, and of COPY's sources. Pure.

A pattern is matched name by name, so that no text makes the search long: `**` stands for any number of names, and
within a name `*`, `?` and `[...]` mean what they mean in a shell.
"""

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from cove.errors import ValidationFailed

Parts = tuple[bytes, ...]

MOST_PATTERNS = 1000
MOST_BYTES = 1 << 20
_ANY = b"**"
_MAGIC = re.compile(rb"[*?\[]")


@dataclass(frozen=True, slots=True)
class _Rule:
    names: Parts
    is_exception: bool


class Ignore:
    """The rules of a `.dockerignore`; the last one that matches a path, or a directory above it, decides."""

    def __init__(self, text: bytes = b"") -> None:
        if len(text) > MOST_BYTES:
            raise ValidationFailed(f".dockerignore has more than {MOST_BYTES} bytes")
        lines = [line.strip() for line in text.removeprefix(b"\xef\xbb\xbf").splitlines()]
        self._rules = [_rule(line) for line in lines if line and not line.startswith(b"#")]
        if len(self._rules) > MOST_PATTERNS:
            raise ValidationFailed(f".dockerignore has more than {MOST_PATTERNS} patterns")
        self.has_exceptions = any(rule.is_exception for rule in self._rules)

    def hides(self, parts: Parts) -> bool:
        """Return whether a path is left out."""
        for rule in reversed(self._rules):
            if match_above(rule.names, parts):
                return not rule.is_exception
        return False


def _rule(line: bytes) -> _Rule:
    is_exception = line.startswith(b"!")
    names = split(line.removeprefix(b"!").strip())
    pairs = zip(names, (b"", *names), strict=False)
    return _Rule(tuple(name for name, before in pairs if name != _ANY or before != _ANY), is_exception)


def split(path: bytes) -> Parts:
    """Return the names of a path, cleaned; `..` at its beginning stays."""
    names: list[bytes] = []
    for name in path.split(b"/"):
        if name == b".." and names and names[-1] != b"..":
            names.pop()
        elif name not in (b"", b"."):
            names.append(name)
    return tuple(names)


def has_magic(name: bytes) -> bool:
    """Return whether a name is a pattern."""
    return _MAGIC.search(name) is not None


def match_name(pattern: bytes, name: bytes) -> bool:
    """Match one name."""
    return _compiled(pattern).match(name.decode("latin-1")) is not None


def match_above(pattern: Sequence[bytes], parts: Parts) -> bool:
    """Match a path, or a directory above it: one pass over the names for each name of the pattern."""
    reached = {0}
    for each in pattern:
        if each == _ANY:
            reached = set(range(min(reached), len(parts) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(parts) and match_name(each, parts[at])}
        if not reached:
            return False
    return reached != {0}


@lru_cache(4 * MOST_PATTERNS)
def _compiled(pattern: bytes) -> "re.Pattern[str]":
    """Translate by fnmatch, whose expressions do not backtrack; it writes `!` for what Docker calls `^`."""
    return re.compile(fnmatch.translate(pattern.decode("latin-1").replace("[^", "[!")))
