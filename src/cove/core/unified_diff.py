"""Write differences of files as a unified patch that `git apply` takes; bounded in steps and bytes.

Contents are untrusted: the search for the shortest script (Myers, O(ND)) has a budget of steps, shared by all files of
a patch. When it is used up, lines that differ are shown as replaced as a whole, which is a valid patch too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

MOST_STEPS: Final = 2_000_000
_MOST_EDITS: Final = 1000
_CONTEXT: Final = 3
_NO_NEWLINE: Final = "\\ No newline at end of file\n"
_ESCAPES: Final = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}
_PRINTABLE: Final = range(32, 127)

Match = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class FileState:
    """One side of a difference: the mode as git(1) writes it, and the content unless it is not to be shown."""

    mode: int
    content: bytes | None


@dataclass(slots=True)
class Steps:
    """The budget of a patch."""

    left: int = MOST_STEPS

    def take(self, count: int) -> bool:
        """Spend some; False when there are not so many."""
        self.left -= count
        return self.left >= 0


@dataclass(slots=True)
class Patch:
    """A patch in the making, cut at whole files."""

    most_bytes: int
    steps: Steps = field(default_factory=Steps)
    _parts: list[str] = field(default_factory=list)
    _bytes: int = 0
    _left_out: int = 0

    @property
    def is_full(self) -> bool:
        """Return whether nothing more fits, so that nothing more need be read."""
        return self._left_out > 0

    def leave_out(self, count: int = 1) -> None:
        """Note files that are not shown."""
        self._left_out += count

    def add(self, path: bytes, before: FileState | None, after: FileState | None) -> None:
        """Append the difference of one file, or leave it out when it does not fit."""
        text = file_diff(path, before, after, self.steps)
        self._bytes += len(text.encode())
        if self._left_out or self._bytes > self.most_bytes:
            self._left_out += 1
        else:
            self._parts.append(text)

    def text(self) -> str:
        """Return the patch; one that was cut says so in its last line."""
        if not self._left_out:
            return "".join(self._parts)
        cut = f"cut: {self._left_out} more files differ, over {self.most_bytes} bytes in all: name a path\n"
        return "".join((*self._parts, cut))


def file_diff(path: bytes, before: FileState | None, after: FileState | None, steps: Steps) -> str:
    """Return the difference of one file; None is a file that is not there."""
    old, new = quote(b"a/" + path), quote(b"b/" + path)
    lines = [f"diff --git {old} {new}\n", *_modes(before, after)]
    was = b"" if before is None else before.content
    now = b"" if after is None else after.content
    if was == now and was is not None:
        return "".join(lines) if len(lines) > 1 else ""
    old, new = old if before is not None else "/dev/null", new if after is not None else "/dev/null"
    if was is None or now is None or _is_binary(was) or _is_binary(now):
        return "".join((*lines, f"Binary files {old} and {new} differ\n"))
    return "".join((*lines, f"--- {old}\n+++ {new}\n", *_hunks(_lines(was), _lines(now), steps)))


def _modes(before: FileState | None, after: FileState | None) -> Iterator[str]:
    if before is None and after is not None:
        yield f"new file mode {after.mode:o}\n"
    elif after is None and before is not None:
        yield f"deleted file mode {before.mode:o}\n"
    elif before is not None and after is not None and before.mode != after.mode:
        yield f"old mode {before.mode:o}\nnew mode {after.mode:o}\n"


def quote(path: bytes) -> str:
    """Return a path as git(1) writes it: between quotes where it has what is not printable."""
    if all(byte in _PRINTABLE and byte not in _ESCAPES for byte in path):
        return path.decode("ascii")
    try:
        text = path.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and text and not any(mark in text for mark in '"\\'):
        return text
    return '"' + "".join(_escaped(byte) for byte in path) + '"'


def _escaped(byte: int) -> str:
    if byte in _ESCAPES:
        return "\\" + _ESCAPES[byte]
    return chr(byte) if byte in _PRINTABLE else f"\\{byte:03o}"


def _is_binary(content: bytes) -> bool:
    """Return whether this is no text: only text goes through a patch and comes out the same."""
    if b"\0" in content:
        return True
    try:
        content.decode()
    except UnicodeDecodeError:
        return True
    return False


def _lines(content: bytes) -> list[str]:
    pieces = content.decode().split("\n")
    lines = [piece + "\n" for piece in pieces[:-1]]
    return [*lines, pieces[-1]] if pieces[-1] else lines


def _hunks(old: Sequence[str], new: Sequence[str], steps: Steps) -> Iterator[str]:
    """Group what differs with the lines around it."""
    edits = list(_edits(matches(old, new, steps), len(old), len(new)))
    at = 0
    while at < len(edits):
        end = at + 1
        while end < len(edits) and edits[end][0] - edits[end - 1][1] <= 2 * _CONTEXT:
            end += 1
        yield from _hunk(old, new, edits[at:end])
        at = end


Edit = tuple[int, int, int, int]


def _edits(found: Sequence[Match], old_size: int, new_size: int) -> Iterator[Edit]:
    """Yield what lies between the matches: which lines become which."""
    old_at = new_at = 0
    for old, new, length in (*found, (old_size, new_size, 0)):
        if old_at < old or new_at < new:
            yield old_at, old, new_at, new
        old_at, new_at = old + length, new + length


def _hunk(old: Sequence[str], new: Sequence[str], edits: Sequence[Edit]) -> Iterator[str]:
    first, last = edits[0], edits[-1]
    before = min(_CONTEXT, first[0])
    after = min(_CONTEXT, len(old) - last[1])
    yield f"@@ -{_range(first[0] - before, last[1] + after)} +{_range(first[2] - before, last[3] + after)} @@\n"
    at = first[0] - before
    for old_start, old_end, new_start, new_end in edits:
        yield from _marked(" ", old[at:old_start])
        yield from _marked("-", old[old_start:old_end])
        yield from _marked("+", new[new_start:new_end])
        at = old_end
    yield from _marked(" ", old[at : at + after])


def _range(start: int, end: int) -> str:
    """Write a range as diff(1) does: the line before it where it is empty."""
    size = end - start
    first = start + 1 if size else start
    return f"{first}" if size == 1 else f"{first},{size}"


def _marked(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield mark + line if line.endswith("\n") else f"{mark}{line}\n{_NO_NEWLINE}"


def matches(old: Sequence[str], new: Sequence[str], steps: Steps) -> list[Match]:
    """Find runs of equal lines, in order, as (place in old, place in new, length)."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    inner = _search(old[head : len(old) - tail], new[head : len(new) - tail], steps)
    found = [(0, 0, head), *((x + head, y + head, n) for x, y, n in inner), (len(old) - tail, len(new) - tail, tail)]
    return [match for match in found if match[2]]


def _search(old: Sequence[str], new: Sequence[str], steps: Steps) -> list[Match]:
    """Find the shortest script; nothing where that takes too long."""
    reached: dict[int, int] = {1: 0}
    trace: list[dict[int, int]] = []
    for edits in range(min(len(old) + len(new), _MOST_EDITS) + 1):
        trace.append(dict(reached))
        for diagonal in range(-edits, edits + 1, 2):
            start = _start(reached, diagonal, edits)
            x = start
            while x < len(old) and x - diagonal < len(new) and old[x] == new[x - diagonal]:
                x += 1
            reached[diagonal] = x
            if not steps.take(1 + x - start):
                return []
            if x >= len(old) and x - diagonal >= len(new):
                return _walk_back(trace, len(old), len(new))
    return []


def _start(reached: dict[int, int], diagonal: int, edits: int) -> int:
    """Return where a diagonal is entered: from above, or from the left."""
    down = diagonal == -edits or (diagonal != edits and reached[diagonal - 1] < reached[diagonal + 1])
    return reached[diagonal + 1] if down else reached[diagonal - 1] + 1


def _walk_back(trace: Sequence[dict[int, int]], x: int, y: int) -> list[Match]:
    found: list[Match] = []
    for edits in range(len(trace) - 1, -1, -1):
        reached, diagonal = trace[edits], x - y
        start = _start(reached, diagonal, edits)
        if x > start:
            found.append((start, start - diagonal, x - start))
        down = diagonal == -edits or (diagonal != edits and reached[diagonal - 1] < reached[diagonal + 1])
        diagonal += 1 if down else -1
        x = reached.get(diagonal, 0)
        y = x - diagonal
    found.reverse()
    return [match for match in found if match[0] >= 0 and match[1] >= 0]
