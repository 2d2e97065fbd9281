"""Sessions of the console: what a browser shows in the place of a key, after somebody has logged in with one.

A session is a file of the state directory, so that every worker and the next server know it. Its name is a digest of
the cookie's token, and it says which key was used, and a proof of it that only token and key together make. The key is
looked up again for every request: a session ends with its key, be it revoked, rotated or over.
"""

import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from cove.core.api_key import digest_of, handle_of
from cove.local.state import replace_file
from cove.server.gateway.auth import SERVER
from cove.server.gateway.key_ring import KeyRing, Principal

DIRECTORY: Final = Path("server", "console")
SESSION_SECONDS: Final = 12 * 3600.0
MOST_PER_KEY: Final = 32
_TOKEN = re.compile(rb"cove_console_[A-Za-z0-9_-]{43}")
_PREFIX: Final = "cove_console_"
_RANDOM_BYTES: Final = 32
_NAME = re.compile(r"[0-9a-f]{64}")


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A session as it is kept. `handle` is the public part of a tenant's or an admin's key; the server's has none."""

    handle: str
    proof: str
    expires: float


class Sessions:
    """The sessions of a state directory, as the keys of that server let them be."""

    def __init__(self, home: Path, key: str | None, ring: KeyRing | None) -> None:
        self._directory = home / DIRECTORY
        self._key = key or ""
        self._ring = ring

    def begin(self, key: str) -> str:
        """Make a session for a key that holds, and return its token; the oldest of too many end. Blocks."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = "" if self._is_servers(key) else handle_of(key) or ""
        now = time.time()
        self._make_room(handle, now)
        token = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
        session = Session(handle=handle, proof=_prove(token, digest_of(key)), expires=now + SESSION_SECONDS)
        replace_file(self._path(token), msgspec.json.encode(session))
        return token

    def end(self, token: str) -> None:
        """Forget a session. Blocks."""
        self._path(token).unlink(missing_ok=True)

    def look_up(self, token: bytes) -> tuple[Principal, float] | None:
        """Return whose a session is, and when it is over; None for one that is. Blocks, for microseconds."""
        session = self._read(token)
        if session is None or session.expires <= time.time():
            return None
        text = token.decode("ascii")
        principal = self._find(session, text)
        return None if principal is None else (principal, session.expires)

    def find(self, token: bytes) -> Principal | None:
        """Return whose a session is; None for what is none, or is over."""
        found = self.look_up(token)
        return None if found is None else found[0]

    def _find(self, session: Session, token: str) -> Principal | None:
        def is_right(digest: str) -> bool:
            return hmac.compare_digest(_prove(token, digest), session.proof)

        if not session.handle:
            return SERVER if is_right(digest_of(self._key)) else None
        return None if self._ring is None else self._ring.find_by_handle(session.handle, is_right)

    def _is_servers(self, key: str) -> bool:
        return hmac.compare_digest(key.encode("utf-8", "surrogateescape"), self._key.encode())

    def _read(self, token: bytes) -> Session | None:
        if _TOKEN.fullmatch(token) is None:
            return None
        try:
            return _decode(self._path(token.decode("ascii")))
        except FileNotFoundError:
            return None

    def _path(self, token: str) -> Path:
        return self._directory / hashlib.sha256(token.encode()).hexdigest()

    def _make_room(self, handle: str, now: float) -> None:
        """Remove what is over, and of one key's sessions those that would be too many."""
        same: list[tuple[float, Path]] = []
        for path, session in self._all():
            if session is None or session.expires <= now:
                path.unlink(missing_ok=True)
            elif session.handle == handle:
                same.append((session.expires, path))
        for _, path in sorted(same)[: max(0, len(same) - MOST_PER_KEY + 1)]:
            path.unlink(missing_ok=True)

    def _all(self) -> Iterator[tuple[Path, Session | None]]:
        for name in os.listdir(self._directory):
            if _NAME.fullmatch(name):
                with suppress(FileNotFoundError):
                    yield self._directory / name, _decode(self._directory / name)


def _prove(token: str, digest: str) -> str:
    return hmac.new(token.encode(), digest.encode(), "sha256").hexdigest()


def _decode(path: Path) -> Session | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Session)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None  # spoilt by a crash of the machine
