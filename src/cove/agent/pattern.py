"""Glob patterns for names and paths: `*`, `?`, `[a-z]`, `[!a]`, and `**` for any depth."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def decode(path: bytes) -> str:
    """Return a path as text, whatever its bytes."""
    return path.decode("utf-8", "surrogateescape")


def has_magic(part: str) -> bool:
    """Return whether a part of a pattern is more than a name."""
    return any(mark in part for mark in "*?[")


def name_expression(part: str) -> str:
    """Return the regular expression for one name."""
    pieces = []
    at = 0
    while at < len(part):
        letter = part[at]
        close = part.find("]", at + 2) if letter == "[" else -1
        if letter == "*":
            pieces.append("[^/]*")
        elif letter == "?":
            pieces.append("[^/]")
        elif close > 0:
            inner = part[at + 1 : close].replace("\\", "\\\\").replace("[", "\\[")
            inner = "^/" + inner[1:] if inner[0] in "!^" else inner
            pieces.append(_letters("[%s]" % inner))
            at = close
        else:
            pieces.append(re.escape(letter))
        at += 1
    return "".join(pieces)


def _letters(expression: str) -> str:
    """The expression, or one that nothing matches: a range that runs backwards, as in a shell."""
    try:
        re.compile(expression)
    except re.error:
        return "(?!)"
    return expression


def name_matcher(part: str) -> Callable[[str], object]:
    """Make a matcher of names; one that begins with a dot has to be asked for by one."""
    shield = "" if part.startswith(".") else r"(?!\.)"
    return re.compile(shield + name_expression(part), re.DOTALL).fullmatch


def path_matcher(patterns: list[str]) -> Callable[[str], bool]:
    """Make a matcher of paths: a pattern without a slash matches the last name, one with slashes all of it."""
    names = [name_expression(each) for each in patterns if "/" not in each]
    paths = [path_expression(each) for each in patterns if "/" in each]
    name = re.compile("|".join(names), re.DOTALL).fullmatch if names else None
    whole = re.compile("|".join(paths), re.DOTALL).fullmatch if paths else None

    def matches(path: str) -> bool:
        return bool((name and name(path.rpartition("/")[2])) or (whole and whole(path + "/")))

    return matches


def path_expression(pattern: str) -> str:
    """Return the regular expression for a whole path with a slash at its end."""
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    pieces = [r"(?:[^/]+/)*" if part == "**" else name_expression(part) + "/" for part in parts]
    if parts and parts[-1] == "**":
        pieces[-1] = r"(?:[^/]+/)+"
    return "".join(pieces)


class Filter:
    """A filter of paths below a directory: not those excluded, nor below them, and of the rest those included."""

    def __init__(self, include: list[str], exclude: list[str]) -> None:
        self.includes = path_matcher(include) if include else None
        self.excludes = path_matcher(exclude)

    def enters(self, path: str) -> bool:
        return not self.excludes(path)

    def shows(self, path: str) -> bool:
        return self.includes is None or self.includes(path)
