"""Glob patterns for names and paths: `*`, `?`, `[a-z]`, `[!a]`, and `**` for any depth.

A pattern becomes a regular expression that no text makes slow. What a `*` takes ends with the first place where the
characters up to the next `*` fit, and is never taken back: an earlier place leaves more to the rest. The same holds of
`**` and the names up to the next one. A lookahead with a group, and that group again, is how `re` is told so: versions
of Python before 3.11 know no atomic groups.
"""

from __future__ import annotations

import itertools
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ANY_NAMES = r"(?:[^/]+/)*"
NOTHING = r"(?!)"


def decode(path: bytes) -> str:
    """Return a path as text, whatever its bytes."""
    return path.decode("utf-8", "surrogateescape")


def has_magic(part: str) -> bool:
    """Return whether a part of a pattern is more than a name."""
    return any(mark in part for mark in "*?[")


def name_matcher(part: str) -> Callable[[str], object]:
    """Make a matcher of names; one that begins with a dot has to be asked for by one."""
    shield = "" if part.startswith(".") else r"(?!\.)"
    return re.compile(shield + name_expression(part, itertools.count()), re.DOTALL).fullmatch


def path_matcher(patterns: list[str]) -> Callable[[str], bool]:
    """Make a matcher of paths: a pattern without a slash matches the last name, one with slashes all of it."""
    groups = itertools.count()
    names = [name_expression(each, groups) for each in patterns if "/" not in each]
    paths = [path_expression(each, groups) for each in patterns if "/" in each]
    name = re.compile("|".join(names), re.DOTALL).fullmatch if names else None
    whole = re.compile("|".join(paths), re.DOTALL).fullmatch if paths else None

    def matches(path: str) -> bool:
        return bool((name and name(path.rpartition("/")[2])) or (whole and whole(path + "/")))

    return matches


def name_expression(part: str, groups: Iterator[int]) -> str:
    """Return the regular expression for one name; `groups` numbers those of all that are compiled together."""
    runs = [""]
    at = 0
    while at < len(part):
        letter = part[at]
        first = at + 2 if part[at + 1 : at + 2] in ("!", "^") else at + 1
        close = part.find("]", first + 1) if letter == "[" else -1
        if letter == "*":
            runs.append("")
        elif letter == "?":
            runs[-1] += "[^/]"
        elif close > 0:
            runs[-1] += letters_expression(part[at + 1 : close])
            at = close
        else:
            runs[-1] += re.escape(letter)
        at += 1
    return join_runs(runs, "[^/]*", groups)


def letters_expression(inner: str) -> str:
    """Return the regular expression for one character of a set; a range that runs backwards is empty."""
    is_negative = inner[0] in "!^"
    left = inner[1:] if is_negative else inner
    pieces = []
    while left:
        if left[1:2] == "-" and len(left) > 2:
            if left[0] <= left[2]:
                pieces.append(re.escape(left[0]) + "-" + re.escape(left[2]))
            left = left[3:]
        else:
            pieces.append(re.escape(left[0]))
            left = left[1:]
    if is_negative:
        return "[^/%s]" % "".join(pieces)
    return "[%s]" % "".join(pieces) if pieces else NOTHING


def path_expression(pattern: str, groups: Iterator[int]) -> str:
    """Return the regular expression for a whole path with a slash at its end."""
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    runs = [""]
    for part in parts:
        if part == "**":
            runs.append("")
        else:
            runs[-1] += name_expression(part, groups) + "/"
    if parts and parts[-1] == "**":
        runs[-1] = r"[^/]+/"  # it stands for what is below, not for the directory itself
    return join_runs(runs, ANY_NAMES, groups)


def join_runs(runs: list[str], anything: str, groups: Iterator[int]) -> str:
    """Join expressions with any text between them; all but the last take the first place where they fit."""
    first, *others = runs
    if not others:
        return first
    *middle, last = others
    pieces = [first]
    for run in middle:
        if run:
            group = "g%d" % next(groups)
            pieces.append("(?=(?P<%s>%s?%s))(?P=%s)" % (group, anything, run, group))
    return "".join((*pieces, anything, last))


class Filter:
    """A filter of paths below a directory: not those excluded, nor below them, and of the rest those included."""

    def __init__(self, include: list[str], exclude: list[str]) -> None:
        self.includes = path_matcher(include) if include else None
        self.excludes = path_matcher(exclude)

    def enters(self, path: str) -> bool:
        return not self.excludes(path)

    def shows(self, path: str) -> bool:
        return self.includes is None or self.includes(path)
