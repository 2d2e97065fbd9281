"""Registry credentials, from where Docker and Podman keep them: `config.json`, and credential helpers it names."""

import base64
import binascii
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from cove.errors import ValidationFailed

_HELPER_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user's name and password; the password is never shown."""

    username: str
    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        """The value of an Authorization header."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


class _Auth(msgspec.Struct, frozen=True):
    auth: str = ""
    username: str = ""
    password: str = ""


class _DockerConfig(msgspec.Struct, frozen=True, rename="camel"):
    auths: dict[str, _Auth] = {}
    cred_helpers: dict[str, str] = {}
    creds_store: str = ""


class _Helped(msgspec.Struct, frozen=True, rename="pascal"):
    username: str
    secret: str


def docker_config_path() -> Path:
    """Return the path where `docker login` keeps its configuration."""
    return Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"


def find_credentials(host: str, path: Path | None = None) -> Credentials | None:
    """Find what this user has for a registry; None without. Blocks."""
    path = path or docker_config_path()
    try:
        config = msgspec.json.decode(path.read_bytes(), type=_DockerConfig)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise ValidationFailed(f"cannot read {path}: {error}") from None
    helper = config.cred_helpers.get(host) or (config.creds_store if host in config.auths else "")
    if helper:
        return _ask_helper(helper, host)
    found = next((auth for name, auth in config.auths.items() if _host_of(name) == host), None)
    return _decode(found, path) if found is not None else None


def _host_of(name: str) -> str:
    """Docker writes some hosts as URLs."""
    return name.removeprefix("https://").removeprefix("http://").partition("/")[0]


def _decode(auth: _Auth, path: Path) -> Credentials | None:
    if auth.username:
        return Credentials(auth.username, auth.password)
    if not auth.auth:
        return None
    try:
        username, colon, password = base64.b64decode(auth.auth, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise ValidationFailed(f"{path} has credentials that cannot be decoded") from None
    return Credentials(username, password) if colon else None


def _ask_helper(helper: str, host: str) -> Credentials | None:
    if not helper.replace("-", "").replace("_", "").isalnum():
        raise ValidationFailed(f"{helper!r} is no name of a credential helper")
    try:
        answer = subprocess.run(
            [f"docker-credential-{helper}", "get"],
            input=host.encode(),
            capture_output=True,
            timeout=_HELPER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValidationFailed(f"docker-credential-{helper} could not be asked for {host}: {error}") from None
    if answer.returncode != 0:
        return None
    try:
        found = msgspec.json.decode(answer.stdout, type=_Helped)
    except msgspec.MsgspecError:
        raise ValidationFailed(f"docker-credential-{helper} gave no credentials for {host}") from None
    return Credentials(found.username, found.secret)
