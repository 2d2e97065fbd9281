"""Unified diffs of hostile files: a patch within its budget, by which the old file becomes the new one."""

import re
from collections.abc import Iterator

from cove.core.unified_diff import FileState, Patch, Steps, file_diff, quote

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def check(data: bytes) -> None:
    """Path, old content and new content, with NULs between them."""
    path, old, new = [*data.split(b"\0", 2), b"", b""][:3]
    assert "\n" not in quote(path)
    text = file_diff(path, FileState(0o100644, old), FileState(0o100644, new), Steps())
    if text and "\n@@ " in text:
        assert _applied(old.decode(), text) == new.decode()
    assert (text == "") == (old == new)
    few = file_diff(path, FileState(0o100644, old), FileState(0o100644, new), Steps(3))
    if "\n@@ " in few:
        assert _applied(old.decode(), few) == new.decode()
    patch = Patch(100)
    patch.add(path, None, FileState(0o100755, new))
    patch.add(path, FileState(0o120000, old), None)
    assert len(patch.text().encode()) <= 200


def _applied(old: str, text: str) -> str:
    """Apply a patch as patch(1) does: by line numbers, with every kept and removed line compared."""
    lines = _lines(old)
    made: list[str] = []
    at = 0
    left = text[text.index("\n@@ ") + 1 :].split("\n")
    while left and (found := _HUNK.fullmatch(left[0])):
        size = int(found[2] or 1) if found[2] != "0" else 0
        start = int(found[1]) - (1 if size else 0)
        made += lines[at:start]
        at = start
        left.pop(0)
        while left and left[0][:1] in (" ", "-", "+", "\\"):
            mark, line = left[0][:1], left[0][1:] + "\n"
            left.pop(0)
            if left and left[0].startswith("\\"):
                line = line.removesuffix("\n")
                left.pop(0)
            if mark != "+":
                assert lines[at] == line
                at += 1
            if mark != "-":
                made.append(line)
    assert left == [""]
    return "".join([*made, *lines[at:]])


def _lines(text: str) -> list[str]:
    pieces = text.split("\n")
    lines = [piece + "\n" for piece in pieces[:-1]]
    return [*lines, pieces[-1]] if pieces[-1] else lines


def seeds() -> Iterator[bytes]:
    """Files with and without a last newline, far and near changes."""
    yield b"p\0a\nb\nc\n\0a\nx\nc\n"
    yield b"p\0a\nb\0a\nb\n"
    yield b'\xff"p\n\0' + b"l\n" * 20 + b"end\0" + b"x\n" + b"l\n" * 20
    yield b"p\0\0new\n"
