"""Tokens and signatures of E2B's protocol, and how a request names a sandbox."""

import base64
import hashlib
import hmac
import re
from enum import StrEnum
from typing import Final

from cove.core.identifier import SANDBOX_ID

_HOST = re.compile(rf"(\d{{1,5}})-({SANDBOX_ID})\.[a-z0-9.:-]+")
_SIGNATURE = re.compile(r"v1_[A-Za-z0-9+/]{43}")
_HEX_KEY = "e2b_"
_ID_LENGTH: Final = 26
HIGHEST_PORT: Final = 65535


class TokenKind(StrEnum):
    """The right that a token gives: files and processes inside, or what listens on ports inside."""

    ACCESS = "access"
    TRAFFIC = "traffic"


class Tokens:
    """Makes and checks tokens by a secret: nothing is stored. A token is for one sandbox, not for its id alone."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def make(self, kind: TokenKind, id: str, key: str) -> str:
        """Return the token of the sandbox that has this id and key."""
        return self._digest("token", kind.value, id, key).hex()

    def check(self, shown: str, kind: TokenKind, id: str, key: str) -> bool:
        """Return whether this is the token, in a time that tells nothing."""
        return hmac.compare_digest(shown.encode("utf-8", "replace"), self.make(kind, id, key).encode())

    def id_for(self, idempotency_key: str, tenant: str) -> str:
        """Return the id that a sandbox made under this key always has; no two tenants have one id."""
        digest = self._digest("id", idempotency_key, *([tenant] if tenant else []))
        return base64.b32encode(digest).decode().lower().rstrip("=")[:_ID_LENGTH]

    def _digest(self, *parts: str) -> bytes:
        message = b"".join(b"%d:%b" % (len(part), part) for part in (p.encode("utf-8", "replace") for p in parts))
        return hmac.digest(self._secret, message, hashlib.sha256)


def is_signature(text: str) -> bool:
    """Return whether a text can be a signature."""
    return _SIGNATURE.fullmatch(text) is not None


def sign_file(path: str, operation: str, user: str, token: str, expiry: str | None) -> str:
    """Return the signature of a URL of a file: `operation` is `read` or `write`, `expiry` as the URL has it."""
    text = ":".join((path, operation, user, token, *(() if expiry is None else (expiry,))))
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
    return "v1_" + base64.b64encode(digest).decode().rstrip("=")


def is_expired(expiry: str | None, now: float) -> bool:
    """Return whether a signature's time is over; one that is no time is."""
    if expiry is None:
        return False
    return not (expiry.isascii() and expiry.isdigit() and len(expiry) <= 15) or int(expiry) < now


def parse_host(host: str) -> tuple[int, str] | None:
    """Return the port and the sandbox that a host name such as `49983-ID.example.org` names."""
    found = _HOST.fullmatch(host.lower())
    if found is None or not 0 < int(found[1]) <= HIGHEST_PORT:
        return None
    return int(found[1]), found[2]


def decode_key(key: str) -> str:
    """Return a server's key that was written as `e2b_` and hexadecimal digits; any other as it is."""
    if not key.startswith(_HEX_KEY):
        return key
    try:
        return bytes.fromhex(key[len(_HEX_KEY) :]).decode()
    except ValueError:
        return key
