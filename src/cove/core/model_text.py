"""Cut text for a model's eye: its beginning and its end, at line breaks, without what only a terminal understands."""

import re
from dataclasses import dataclass
from typing import Final

_ESCAPES: Final = re.compile(r"\x1b(\[[0-?]{0,64}[ -/]{0,8}[@-~]|[@-Z\\-_])")
_UNREADABLE: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
# A cut moves to a line break that is no further away than this part of what is kept.
_NEAR: Final = 4


@dataclass(frozen=True, slots=True)
class Cut:
    """The beginning and the end of a text; `start` and `end` enclose what was left out."""

    head: str
    tail: str
    start: int
    end: int

    @property
    def is_whole(self) -> bool:
        """Return whether nothing was left out."""
        return self.start == self.end


def make_readable(text: str) -> str:
    """Remove escape sequences of terminals; put U+FFFD for control characters and for lone surrogates."""
    return _UNREADABLE.sub("\ufffd", _ESCAPES.sub("", text))


def cut_middle(text: str, most: int) -> Cut:
    """Keep at most so many characters, half of them from the end."""
    if len(text) <= most:
        return Cut(text, "", len(text), len(text))
    start = most - most // 2
    end = len(text) - most // 2
    newline = text.rfind("\n", start - start // _NEAR, start)
    if newline >= 0:
        start = newline + 1
    newline = text.find("\n", end, end + (len(text) - end) // _NEAR)
    if newline >= 0:
        end = newline + 1
    return Cut(text[:start], text[end:], start, end)
