"""Find the API key for a server: given, from the environment, or from this machine's state directory."""

import os
from pathlib import Path
from urllib.parse import urlsplit

from cove.errors import Unauthorized, ValidationFailed
from cove.local.state import default_home

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def find_key(url: str, api_key: str | None) -> str | None:
    """The given one, COVE_API_KEY, or that of a running server of this user: that is shown to this machine only.

    A server leaves a key that it was given in `server/key`, and one that it made in `key`.
    """
    if not isinstance(url, str):
        raise ValidationFailed(f"url must be a string, not {type(url).__name__}")
    if chosen := api_key or os.environ.get("COVE_API_KEY"):
        return _check(chosen)
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        raise ValidationFailed(f"{url} is not the address of a server") from None
    if host not in _LOOPBACK and not host.endswith(".localhost"):
        return None
    home = default_home()
    return _read(home / "server" / "key") or _read(home / "key")


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        raise Unauthorized(
            f"the server's key in {path} belongs to another user: give api_key= or COVE_API_KEY"
        ) from None


def _check(key: str) -> str:
    """The key, without the newline that a file ends with."""
    if not isinstance(key, str):
        raise ValidationFailed(f"api_key must be a string, not {type(key).__name__}")
    stripped = key.strip()
    if not stripped.isascii() or not stripped.isprintable():
        raise ValidationFailed("the key for the server has characters that no key has")
    return stripped
