"""The server's API key: configured, or generated once and kept where only this user can read it."""

import os
import secrets
from pathlib import Path

from cove.errors import SandboxUnavailable, ValidationFailed
from cove.local.state import sync_directory

KEY_FILE = "key"
_GIVEN_KEY = Path("server", "key")
_RANDOM_BYTES = 32
_LEAST_LENGTH = 8


def load_key(home: Path, configured: str | None = None) -> str:
    """Load the configured key, COVE_API_KEY, or the one in the state directory, made if it is not there. Blocks."""
    if chosen := configured or os.environ.get("COVE_API_KEY"):
        return _check(chosen)
    path = home / KEY_FILE
    try:
        if not path.exists():
            _make(path)
        return _read(path)
    except OSError as error:
        raise SandboxUnavailable(f"cannot keep the server's key in {path}: {error.strerror}") from error


def leave_key(home: Path, given: str | None) -> None:
    """Leave a key that the server was given where clients of this user find it; without one, nothing. Blocks."""
    path = home / _GIVEN_KEY
    path.unlink(missing_ok=True)
    if given is not None:
        with open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(given + "\n")


def _check(key: str) -> str:
    if len(key) < _LEAST_LENGTH or not key.isascii() or not key.isprintable() or " " in key:
        raise ValidationFailed(f"an API key has at least {_LEAST_LENGTH} visible ASCII characters")
    return key


def _read(path: Path) -> str:
    with path.open() as file:
        found = os.fstat(file.fileno())
        if found.st_uid not in (0, os.geteuid()):
            raise SandboxUnavailable(f"the server's key in {path} belongs to another user, who knows it: remove it")
        if found.st_mode & 0o077:
            raise SandboxUnavailable(f"others can read the server's key: `chmod 600 {path}`, or remove it")
        return _check(file.read().strip())


def _make(path: Path) -> None:
    """Of several that make one at the same time, one wins."""
    building = path.with_name(f".{KEY_FILE}-{secrets.token_hex(8)}")
    descriptor = os.open(building, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(_RANDOM_BYTES) + "\n")
            file.flush()
            os.fsync(descriptor)  # clients keep the key: an empty file after a crash would lock them out
        os.link(building, path)
        sync_directory(path.parent)
    except FileExistsError:
        return
    finally:
        building.unlink()
