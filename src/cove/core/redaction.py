"""Blank out secrets in a stream of bytes, in place: what is hidden keeps its length, so that framing stays true.

An upstream may echo a request's headers. A secret that is cut in two by the pieces in which an answer comes is found
all the same: the last bytes of a piece wait for the next.
"""

import base64
import html
import json
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

_MASK = b"*"
_LEAST_BYTES = 4
_PERCENT = re.compile("%[0-9A-F]{2}")


def forms_of(secret: str) -> list[str]:
    """Return the forms in which a host may send a secret back: as it is, and in URLs, JSON, HTML and Base64."""
    in_urls = [quote(secret), quote(secret, safe=""), quote_plus(secret)]
    in_urls += [_PERCENT.sub(lambda match: match[0].lower(), each) for each in in_urls]
    in_json = [json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]]
    in_json += [each.replace("/", "\\/") for each in in_json]
    in_base64 = base64.b64encode(secret.encode()).decode().rstrip("=")
    in_html = [html.escape(secret), html.escape(secret, quote=False)]
    forms = [secret, *in_urls, *in_json, *in_html, in_base64, in_base64.replace("+", "-").replace("/", "_")]
    return list(dict.fromkeys(forms))


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
