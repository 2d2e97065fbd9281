"""Exposed ports: their names and tokens, and an exposure as one DNS label."""

import hmac
import re
from collections.abc import Iterable

import msgspec

from cove.core.cluster import CODE_LENGTH
from cove.core.identifier import KEY_LENGTH, new_identifier
from cove.core.readiness import check_port
from cove.errors import ValidationFailed

_TOKEN_LENGTH = 24
_NO_TOKEN = "-" * _TOKEN_LENGTH
_MOST_NAME_CHARACTERS = 128
_TOKEN = re.compile(r"[a-z0-9_]{1,40}")
_LABEL = re.compile(
    rf"([1-9][0-9]{{0,4}})-([a-z2-7]{{{KEY_LENGTH}}})((?:[a-z2-7]{{{CODE_LENGTH}}})?)-([a-z0-9_]{{1,40}})"
)


class Exposure(msgspec.Struct, frozen=True, kw_only=True):
    """One port that whoever shows the token may reach; `code` is that of the node where it was first exposed."""

    port: int
    token: str
    name: str | None = None
    code: str = ""

    def label(self, key: str, code: str = "") -> str:
        """Return the exposure as one label of a host name, at most 63 characters; `code` is that of this node."""
        return f"{self.port}-{key}{self.code or code}-{self.token}"


class Label(msgspec.Struct, frozen=True):
    """The claim of a label; nothing of it is known to be true."""

    port: int
    key: str
    token: str
    code: str = ""


def make_exposure(port: int, name: str | None, token: str | None) -> Exposure:
    """Return a validated exposure; without a token one that cannot be guessed."""
    check_port(port)
    if token is None:
        token = new_identifier(_TOKEN_LENGTH)
    elif not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise ValidationFailed("token must be 1-40 of a-z, 0-9 and _")
    if name is not None and (not isinstance(name, str) or not 1 <= len(name) <= _MOST_NAME_CHARACTERS):
        raise ValidationFailed(f"name must be a string of 1-{_MOST_NAME_CHARACTERS} characters")
    return Exposure(port=port, token=token, name=name)


def parse_label(text: str) -> Label | None:
    """Return the label, if the text is one."""
    match = _LABEL.fullmatch(text)
    return None if match is None else Label(int(match[1]), match[2], match[4], match[3])


def is_exposed(exposures: Iterable[Exposure], port: int, token: str) -> bool:
    """Return whether one of them has this port and this token, in constant time."""
    known = next((exposure.token for exposure in exposures if exposure.port == port), None)
    is_equal = hmac.compare_digest((known or _NO_TOKEN).encode(), token.encode())
    return is_equal and known is not None
