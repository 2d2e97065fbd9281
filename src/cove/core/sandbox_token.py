"""Tokens for one sandbox: signed, short-lived, for some operations only. Nothing is stored.

The signature covers the key of the sandbox's place, which no other ever has: a token ends with its sandbox.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from cove.errors import ValidationFailed

LONGEST_SECONDS: Final = 30 * 24 * 3600.0
_MOST_OPERATIONS: Final = 64
_MOST_CHARACTERS: Final = 4096
_PREFIX: Final = "covet_"
_TOKEN = re.compile(r"covet_([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]{43})")


class Grant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rights of a token: `operations` until `expires`; with a `path`, on that file alone."""

    id: str
    operations: tuple[str, ...]
    expires: float
    tenant: str = ""
    path: str | None = None


class Shown(NamedTuple):
    """A token as somebody showed it: its grant counts for nothing until `is_signed`."""

    grant: Grant
    payload: str
    signature: str


class Kind(NamedTuple):
    """An operation as tokens know it: its name, the family it belongs to, and whether it only reads."""

    name: str
    family: str
    is_read: bool


def make_token(secret: bytes, key: str, grant: Grant) -> str:
    """Make the token of a grant for the sandbox whose place has that key."""
    payload = _encode(msgspec.json.encode(grant))
    token = f"{_PREFIX}{payload}.{_sign(secret, key, payload)}"
    if len(token) > _MOST_CHARACTERS:
        raise ValidationFailed(f"a token has at most {_MOST_CHARACTERS} characters: name fewer operations")
    return token


def read_token(text: str) -> Shown | None:
    """Read a token; None for what is none."""
    found = _TOKEN.fullmatch(text) if len(text) <= _MOST_CHARACTERS else None
    if found is None:
        return None
    try:
        grant = msgspec.json.decode(base64.urlsafe_b64decode(found[1] + "=" * (-len(found[1]) % 4)), type=Grant)
    except (msgspec.DecodeError, binascii.Error, UnicodeDecodeError):
        return None
    return Shown(grant, found[1], found[2])


def is_signed(shown: Shown, secret: bytes, key: str, now: float) -> bool:
    """Return whether a token is one of ours for the sandbox with that key, and its time is not over."""
    right = _sign(secret, key, shown.payload)
    return hmac.compare_digest(shown.signature, right) and now < shown.grant.expires


def allows(grant: Grant, kind: Kind) -> bool:
    """Return whether a grant has an operation, by its name, by its family, or as one of those that read."""
    names = {kind.name, kind.family, *([f"{kind.family}.read"] if kind.is_read else ())}
    return not names.isdisjoint(grant.operations)


def check_operations(operations: Sequence[str], kinds: Sequence[Kind]) -> tuple[str, ...]:
    """Return what a token is to be for; ValidationFailed for a name of nothing."""
    if isinstance(operations, str) or not operations or len(operations) > _MOST_OPERATIONS:
        raise ValidationFailed(f"a token is for a list of 1 to {_MOST_OPERATIONS} operations")
    families = {kind.family for kind in kinds}
    known = {kind.name for kind in kinds} | families | {f"{kind.family}.read" for kind in kinds if kind.is_read}
    for name in operations:
        if name not in known:
            raise ValidationFailed(f"there is no operation {name!r}: families are {', '.join(sorted(families))}")
    return tuple(dict.fromkeys(operations))


def check_expiry(seconds: float) -> float:
    """Return how long a token is to hold; ValidationFailed for too long."""
    if not 0 < seconds <= LONGEST_SECONDS:
        raise ValidationFailed(f"a token holds for more than 0 and at most {LONGEST_SECONDS:.0f} seconds")
    return seconds


def _sign(secret: bytes, key: str, payload: str) -> str:
    return _encode(hmac.digest(secret, f"sandbox-token\0{key}\0{payload}".encode(), hashlib.sha256))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
