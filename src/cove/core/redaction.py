"""Blank out secrets in a stream of bytes, in place: what is hidden keeps its length, so that framing stays true.

An upstream may echo a request's headers. A secret that is cut in two by the pieces in which an answer comes is found
all the same: the last bytes of a piece wait for the next.
"""

import re
from collections.abc import Iterable

_MASK = b"*"
_LEAST_BYTES = 4


class Redactor:
    """For one answer. Secrets of fewer than four bytes are not looked for: they are in every text."""

    def __init__(self, secrets: Iterable[bytes]) -> None:
        found = sorted({secret for secret in secrets if len(secret) >= _LEAST_BYTES}, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, found))) if found else None
        self._overlap = len(found[0]) - 1 if found else 0
        self._held = b""

    def whole(self, data: bytes) -> bytes:
        """The same bytes, without secrets."""
        if self._pattern is None:
            return data
        return self._pattern.sub(lambda match: _MASK * len(match[0]), data)

    def feed(self, data: bytes) -> bytes:
        """Take a piece; return what is safe to pass on now."""
        if self._pattern is None:
            return data
        data = self._held + data
        shown = bytearray(data)
        passed = max(len(data) - self._overlap, 0)
        for match in self._pattern.finditer(data):
            if match.start() >= passed:
                break  # the bytes to come may make it a longer secret
            shown[match.start() : match.end()] = _MASK * len(match[0])
            passed = max(passed, match.end())
        self._held = data[passed:]
        return bytes(shown[:passed])

    def end(self) -> bytes:
        """Return what was held back."""
        held, self._held = self._held, b""
        return self.whole(held)
