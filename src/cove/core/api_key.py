"""The text of an API key: a public part that finds its record, and a secret part of which a digest is kept."""

import hashlib
import hmac
import re
import secrets
from typing import Final

_PREFIX: Final = "cove"
_SECRET_BYTES: Final = 32
_KEY = re.compile(r"cove_([a-z2-7]{12})_([A-Za-z0-9_-]{43})")


def new_key(handle: str) -> str:
    """Return a new key with that public part: 256 random bits."""
    return f"{_PREFIX}_{handle}_{secrets.token_urlsafe(_SECRET_BYTES)}"


def handle_of(key: str) -> str | None:
    """Return the public part of a key; None for what is none."""
    found = _KEY.fullmatch(key)
    return None if found is None else found[1]


def digest_of(key: str) -> str:
    """Return what is kept of a key. It has too many bits to be guessed: a slow digest would add nothing."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def is_key(shown: str, digest: str) -> bool:
    """Return whether this is the key of that digest, in a time that tells nothing."""
    return hmac.compare_digest(digest_of(shown), digest)
