"""Prepare a node for a cluster: its name, its secrets, and what of them can be derived. Blocks.

One secret is carried to new nodes: Ray's token. The peer key and, unless one is configured, the API key are derived
from it (HMAC), so that they are the same on every node; neither tells the token.
"""

import hashlib
import hmac
import os
import re
import secrets
import socket
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from cove.errors import ValidationFailed
from cove.local.state import replace_file
from cove.server.configuration import Configuration, built_in_defaults, load, read_settings

TOKEN_FILE = "cluster-token"  # noqa: S105  # a name
PEER_KEY_FILE = "cluster-peer-key"
_LEAST_TOKEN = 32
_MOST_TOKEN = 4096
_NAME_LENGTH = 63


def default_name() -> str:
    """Return the name of this machine, as a node can have it."""
    name = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().partition(".")[0].lower())[:_NAME_LENGTH].strip("-")
    return name or "node"


def default_ip(towards: str = "192.0.2.1") -> str:
    """Return the address of this machine by which others reach it: that of its route there. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def make_token(home: Path) -> Path:
    """Return the file of the cluster's token in the state directory, made if it is not there."""
    path = home / TOKEN_FILE
    home.mkdir(mode=0o711, parents=True, exist_ok=True)
    if not path.exists():
        replace_file(path, secrets.token_hex(32).encode() + b"\n", durable=True)
    return path


def find_token(token_file: Path | None) -> Path:
    """Return the file with Ray's token that was named, or where Ray itself looks; ValidationFailed without one."""
    usual = os.environ.get("RAY_AUTH_TOKEN_PATH") or os.path.expanduser("~/.ray/auth_token")
    path = (token_file or Path(usual)).absolute()
    if not path.exists():
        raise ValidationFailed(
            f"there is no token in {path}: whoever reaches a Ray without one runs programs there, so Cove uses none. "
            "Name the file by --token-file; `cove cluster start` makes one"
        )
    return path


def read_token(path: Path) -> bytes:
    """Return the token; ValidationFailed if others can read it, or if it is none."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            token = file.read(_MOST_TOKEN + 1).strip()
    except OSError as error:
        raise ValidationFailed(f"cannot read the token in {path}: {error.strerror}") from None
    if found.st_uid not in (0, os.geteuid()) or stat.S_IMODE(found.st_mode) & 0o077:
        raise ValidationFailed(f"others can read the token: `chmod 600 {path}`, as its owner")
    if not _LEAST_TOKEN <= len(token) <= _MOST_TOKEN:
        raise ValidationFailed(f"{path} has no token of {_LEAST_TOKEN} to {_MOST_TOKEN} characters")
    return token


def derive(token: bytes, what: str) -> str:
    """Return a secret that all who have the token can derive, and from which it cannot be found."""
    return hmac.new(token, f"cove {what}".encode(), hashlib.sha256).hexdigest()


def write_peer_key(home: Path, token: bytes) -> Path:
    """Keep the peer key, and return its file."""
    path = home / PEER_KEY_FILE
    home.mkdir(mode=0o711, parents=True, exist_ok=True)
    replace_file(path, derive(token, "peer key").encode() + b"\n")
    return path


def load_node(
    state: Path,
    config: Path | None,
    options: Mapping[str, object],
    name: str | None,
    token: Path,
    ray: Mapping[str, object],
    *,
    unlimited: bool = False,
) -> Configuration:
    """Return the configuration of a node: secrets are derived from the token, and others can reach it.

    What is given here stands above the table `cluster` of the file.
    """
    secret = read_token(token)
    said = _table(read_settings(config).get("cluster"))
    own = {
        **said,
        "node": name or said.get("node", default_name()),
        "peer_key_file": str(write_peer_key(state, secret)),
        "ray": {**_table(said.get("ray")), **ray, "token_file": str(token)},
    }
    defaults = None if unlimited else built_in_defaults(state)
    found = load(config, {**options, "cluster": own}, defaults)
    if found.is_loopback and options.get("host") is None:
        found = msgspec.structs.replace(found, host="0.0.0.0")  # noqa: S104  # other nodes must reach it; there is a key
    if found.api_key is None and "COVE_API_KEY" not in os.environ and not found.insecure_no_key:
        found = msgspec.structs.replace(found, api_key=derive(secret, "API key"))
    return found


def _table(found: object) -> dict[str, object]:
    return dict(found) if isinstance(found, dict) else {}
