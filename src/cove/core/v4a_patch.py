"""Parse and apply patches in the V4A format, which models write: hunks found by their context, not by line numbers.

    *** Begin Patch
    *** Update File: src/answer.py
    @@ def answer():
    -    return 41
    +    return 42
    *** End Patch

A patch comes from a model and a file from a sandbox: neither is trusted. Lines are searched for in linear time
(Knuth, Morris and Pratt), first exactly, then without blanks at their ends, then without any around them; the number of
lines times the number of searches has a budget. A line that stays is written as the file has it, so that a match which
forgave blanks changes none.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from cove.errors import ValidationFailed

MOST_STEPS: Final = 5_000_000
_BEGIN: Final = "*** Begin Patch"
_END: Final = "*** End Patch"
_END_OF_FILE: Final = "*** End of File"
_MOVE: Final = "*** Move to: "
_HEADERS: Final = {"*** Add File: ": "add", "*** Delete File: ": "delete", "*** Update File: ": "update"}
_LINE_NUMBERS: Final = re.compile(r"-\d+(,\d+)? \+\d+(,\d+)? @@.*")
_SHOWN_LINES: Final = 5

Kind = Literal[" ", "-", "+"]


@dataclass(frozen=True, slots=True)
class Hunk:
    """One change: `anchors` are lines to pass first, in order; `edits` are kept, removed and added lines."""

    anchors: tuple[str, ...]
    edits: tuple[tuple[Kind, str], ...]
    is_at_end: bool = False

    @property
    def old(self) -> list[str]:
        """The lines that the file must have, one after the other."""
        return [text for kind, text in self.edits if kind != "+"]


@dataclass(frozen=True, slots=True)
class AddFile:
    """A new file."""

    path: str
    content: str


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A file that is removed."""

    path: str


@dataclass(frozen=True, slots=True)
class UpdateFile:
    """A file that is changed, and renamed where `move_to` says so."""

    path: str
    hunks: tuple[Hunk, ...]
    move_to: str | None = None


PatchedFile = AddFile | DeleteFile | UpdateFile


def parse_patch(text: str) -> tuple[PatchedFile, ...]:
    """Parse a whole patch; raises ValidationFailed, which names the line."""
    lines = [line.rstrip("\r") for line in text.strip().split("\n")]
    if lines[0].rstrip() != _BEGIN or lines[-1].rstrip() != _END or len(lines) == 1:
        raise ValidationFailed(f"a patch begins with the line {_BEGIN!r} and ends with the line {_END!r}")
    return tuple(_parse_section(section) for section in _sections(lines[1:-1]))


def parse_hunks(diff: str) -> tuple[Hunk, ...]:
    """Parse the changes of one file, as they stand below its header."""
    return _parse_hunks(_diff_lines(diff))


def parse_added(diff: str) -> str:
    """Parse the content of a new file: every line begins with a plus sign."""
    return _parse_added(_diff_lines(diff))


def _diff_lines(diff: str) -> list[str]:
    lines = [line.rstrip("\r") for line in diff.split("\n")]
    if lines and not lines[-1]:
        lines.pop()
    return lines


def _sections(lines: Sequence[str]) -> Iterator[list[str]]:
    section: list[str] = []
    for line in lines:
        if line.startswith(tuple(_HEADERS)):
            if section:
                yield section
            section = [line]
        elif section:
            section.append(line)
        elif line.strip():
            raise ValidationFailed(f"{_quoted(line)} stands before any of {', '.join(map(repr, _HEADERS))}")
    if not section:
        raise ValidationFailed("the patch changes no file")
    yield section


def _parse_section(section: list[str]) -> PatchedFile:
    header, path = next((header, section[0][len(header) :]) for header in _HEADERS if section[0].startswith(header))
    path, lines = _path(path), section[1:]
    match _HEADERS[header]:
        case "add":
            return AddFile(path, _parse_added(lines))
        case "delete":
            if any(line.strip() for line in lines):
                raise ValidationFailed(f"nothing stands below {_quoted(section[0])}: it removes the file")
            return DeleteFile(path)
    move_to = None
    if lines and lines[0].startswith(_MOVE):
        move_to = _path(lines.pop(0)[len(_MOVE) :])
    if move_to is not None and not any(line.strip() for line in lines):
        return UpdateFile(path, (), move_to)
    return UpdateFile(path, _parse_hunks(lines), move_to)


def _path(text: str) -> str:
    if not text.strip():
        raise ValidationFailed("a header of the patch names no file")
    return text.strip()


def _parse_added(lines: Sequence[str]) -> str:
    for line in lines:
        if not line.startswith("+"):
            raise ValidationFailed(f"{_quoted(line)}: every line of a new file begins with '+'")
    return "".join(line[1:] + "\n" for line in lines)


def _parse_hunks(lines: Sequence[str]) -> tuple[Hunk, ...]:
    hunks: list[Hunk] = []
    anchors: list[str] = []
    edits: list[tuple[Kind, str]] = []
    for line in lines:
        if line.startswith("@@") or line.rstrip() == _END_OF_FILE:
            is_at_end = not line.startswith("@@")
            if edits:
                hunks.append(Hunk(tuple(anchors), tuple(edits), is_at_end))
                anchors, edits = [], []
            if not is_at_end:
                anchors += _anchor(line)
        else:
            edits.append(_parse_edit(line))
    if edits:
        hunks.append(Hunk(tuple(anchors), tuple(edits)))
    if not hunks:
        raise ValidationFailed("the patch of a file has no line that begins with ' ', '-' or '+'")
    return tuple(hunks)


def _anchor(line: str) -> list[str]:
    """Return the line to look for; line numbers, as other formats have them, say nothing here."""
    text = line[2:].removeprefix(" ")
    return [] if not text.strip() or _LINE_NUMBERS.fullmatch(text) else [text]


def _parse_edit(line: str) -> tuple[Kind, str]:
    match line[:1]:
        case " " | "":
            return " ", line[1:]
        case "-":
            return "-", line[1:]
        case "+":
            return "+", line[1:]
    raise ValidationFailed(f"{_quoted(line)}: a line of a patch begins with ' ', '-', '+' or '@@'")


def apply_hunks(content: str, hunks: Sequence[Hunk]) -> str:
    """Return the changed content; raises ValidationFailed when a hunk's lines are not there.

    A last line without a line break stays without, also where another takes its place.
    """
    lines = _Lines(content.removesuffix("\n").split("\n") if content else [])
    if len(lines.exact) * sum(1 + len(hunk.anchors) for hunk in hunks) > MOST_STEPS:
        raise ValidationFailed(
            f"{len(lines.exact)} lines are too many for {len(hunks)} hunks: patch it in several steps"
        )
    chosen = _choose(lines, hunks)
    output = "".join(
        lines.exact[line] + "\n" if isinstance(line, int) else line + lines.ending + "\n" for line in chosen
    )
    is_open = bool(content) and not content.endswith("\n")
    if is_open and chosen and (chosen[-1] == len(lines.exact) - 1 or (isinstance(chosen[-1], str) and chosen[-1])):
        return output.removesuffix("\n")
    return output


def _choose(lines: "_Lines", hunks: Sequence[Hunk]) -> list[int | str]:
    """Return the lines of the changed content: the number of one that stays, the text of one that is added."""
    chosen: list[int | str] = []
    position = 0
    for number, hunk in enumerate(hunks, 1):
        at = _find_hunk(lines, hunk, position, number)
        chosen += range(position, at)
        position = at
        for kind, text in hunk.edits:
            if kind == "+":
                chosen.append(text)
                continue
            if kind == " ":
                chosen.append(position)
            position += 1
    return chosen + list(range(position, len(lines.exact)))


def _find_hunk(lines: "_Lines", hunk: Hunk, position: int, number: int) -> int:
    for anchor in hunk.anchors:
        found = lines.find([anchor], position)
        if found is None:
            raise _not_found(number, [anchor])
        position = found + 1
    old = hunk.old
    if not old:
        return position if hunk.anchors and not hunk.is_at_end else len(lines.exact)
    at_end = lines.find(old, max(position, len(lines.exact) - len(old))) if hunk.is_at_end else None
    found = lines.find(old, position) if at_end is None else at_end
    if found is None:
        raise _not_found(number, old)
    return found


def _not_found(number: int, lines: Sequence[str]) -> ValidationFailed:
    shown = "\n".join(lines[:_SHOWN_LINES]) + ("\n…" if len(lines) > _SHOWN_LINES else "")
    return ValidationFailed(
        f"hunk {number}: these lines do not stand in the file, in this order, after the hunk before: "
        f"read the file again and copy them exactly:\n{shown}"
    )


def _quoted(line: str) -> str:
    return repr(line if len(line) <= 80 else line[:80] + "…")


class _Lines:
    """The lines of a file, as they are and without blanks."""

    def __init__(self, lines: list[str]) -> None:
        self.exact = lines
        self.ending = "\r" if lines and lines[0].endswith("\r") else ""
        self._without_blanks: dict[Callable[[str], str], list[str]] = {}

    def find(self, wanted: Sequence[str], start: int) -> int | None:
        """Return where these lines stand first, at or after `start`; the strictest comparison that succeeds wins."""
        found = _search(self.exact, wanted, start)
        for strip in (str.rstrip, str.strip):
            if found is None:
                found = _search(self._stripped(strip), [strip(line) for line in wanted], start)
        return found

    def _stripped(self, strip: Callable[[str], str]) -> list[str]:
        if strip not in self._without_blanks:
            self._without_blanks[strip] = [strip(line) for line in self.exact]
        return self._without_blanks[strip]


def _search(lines: Sequence[str], wanted: Sequence[str], start: int) -> int | None:
    """Find a sequence in linear time, whatever repeats in it."""
    borders = _borders(wanted)
    matched = 0
    for index in range(start, len(lines)):
        while matched and lines[index] != wanted[matched]:
            matched = borders[matched - 1]
        if lines[index] == wanted[matched]:
            matched += 1
        if matched == len(wanted):
            return index - matched + 1
    return None


def _borders(wanted: Sequence[str]) -> list[int]:
    """Return, for every beginning of the sequence, how much of it is also its end."""
    borders = [0] * len(wanted)
    length = 0
    for index in range(1, len(wanted)):
        while length and wanted[index] != wanted[length]:
            length = borders[length - 1]
        if wanted[index] == wanted[length]:
            length += 1
        borders[index] = length
    return borders
