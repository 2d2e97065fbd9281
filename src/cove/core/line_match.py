"""Find a line in output that arrives in pieces on two streams."""

import codecs
import re

from cove.model import LogMatch

# A line longer than this is looked at in parts.
_LONGEST_LINE = 1 << 20


class LineMatcher:
    """Fed with chunks of each stream; answers with the first line that fits."""

    def __init__(self, pattern: str | re.Pattern[str]) -> None:
        self._pattern = pattern
        self._rest = {"stdout": "", "stderr": ""}
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in self._rest}

    def feed(self, stream: str, data: bytes) -> LogMatch | None:
        """The match that this chunk completes, if any."""
        text = self._rest[stream] + self._decoders[stream].decode(data)
        *lines, rest = text.split("\n")
        for line in lines:
            if (found := self._match(line.removesuffix("\r"))) is not None:
                return found
        self._rest[stream] = rest[-_LONGEST_LINE:]
        return self._match(rest) if isinstance(self._pattern, str) and rest else None

    def finish(self) -> LogMatch | None:
        """The match in a last line without an end, if any."""
        for rest in self._rest.values():
            if rest and (found := self._match(rest)) is not None:
                return found
        return None

    def _match(self, line: str) -> LogMatch | None:
        if isinstance(self._pattern, str):
            return LogMatch(line) if self._pattern in line else None
        found = self._pattern.search(line)
        return None if found is None else LogMatch(line, found.groups())
