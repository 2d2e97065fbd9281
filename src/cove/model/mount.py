"""Mounts of a sandbox: host directories, named volumes and buckets; the facts of a volume."""

import re
from datetime import datetime
from typing import TypeAlias
from urllib.parse import SplitResult, urlsplit

import msgspec

from cove.errors import ValidationFailed
from cove.model.network import Secret

_VOLUME_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}")
_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_HOST = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?|[0-9a-fA-F:]+")
_REGION = re.compile(r"[a-z0-9-]{1,63}")
_HIGHEST_PORT = 65535


class Mount(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="host"):
    """A host directory that the sandbox sees."""

    source: str
    target: str
    read_only: bool = True


class VolumeMount(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="volume"):
    """A named volume that the sandbox sees."""

    volume: str
    target: str
    read_only: bool = False


class BucketMount(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="bucket"):
    """A bucket of S3-compatible storage, or what lies below a prefix of it: `s3://name/prefix`.

    The value of `credentials` is `ACCESS_KEY_ID:SECRET_ACCESS_KEY`, with `:SESSION_TOKEN` if there is one. It never
    enters the sandbox. Without credentials requests are anonymous.
    """

    url: str
    endpoint: str
    target: str
    credentials: Secret | None = None
    region: str = "us-east-1"
    read_only: bool = False

    @property
    def bucket(self) -> str:
        """The name of the bucket."""
        return self.url.removeprefix("s3://").partition("/")[0]

    @property
    def prefix(self) -> str:
        """The prefix, without slashes at its ends; nothing for the whole bucket."""
        return self.url.removeprefix("s3://").partition("/")[2].strip("/")

    @property
    def host(self) -> str:
        """The host of the endpoint."""
        return _split(self.endpoint).hostname or ""

    @property
    def port(self) -> int:
        """The port of the endpoint."""
        parts = _split(self.endpoint)
        return parts.port or (443 if parts.scheme == "https" else 80)


AnyMount: TypeAlias = Mount | VolumeMount | BucketMount


class VolumeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one volume. `size` is in bytes, None without a limit.

    `is_measured` says that no file system holds the size: who passes it is ended. `used_bytes` is None where counting
    would take long: ask for one volume.
    """

    name: str
    created_at: datetime
    size: int | None = None
    is_measured: bool = False
    used_bytes: int | None = None
    owner: str | None = None


def check_volume_name(name: object) -> str:
    """Return the name, or raise ValidationFailed."""
    if not isinstance(name, str) or not _VOLUME_NAME.fullmatch(name):
        raise ValidationFailed(f"{name!r} is no name of a volume: letters, digits, '.', '_' and '-', at most 63")
    return name


def check_mount(mount: AnyMount) -> None:
    """Raise ValidationFailed for a volume's name, or a bucket's addresses, that cannot be."""
    if isinstance(mount, VolumeMount):
        check_volume_name(mount.volume)
    elif isinstance(mount, BucketMount):
        _check_bucket(mount)


def _check_bucket(mount: BucketMount) -> None:
    if not mount.url.startswith("s3://") or not _BUCKET_NAME.fullmatch(mount.bucket):
        raise ValidationFailed(f"{mount.url!r} names no bucket: write s3://name or s3://name/prefix")
    parts = mount.prefix.split("/") if mount.prefix else []
    if not mount.prefix.isprintable() or any(part in ("", ".", "..") for part in parts):
        raise ValidationFailed(f"{mount.url!r}: a prefix has neither '.', '..' nor empty parts")
    if not _REGION.fullmatch(mount.region):
        raise ValidationFailed(f"{mount.region!r} is no name of a region")
    _check_endpoint(mount.endpoint)


def _check_endpoint(endpoint: str) -> None:
    parts = _split(endpoint)
    is_bare = not any((parts.username, parts.password, parts.query, parts.fragment, parts.path.strip("/")))
    if parts.scheme not in ("http", "https") or not _HOST.fullmatch(parts.hostname or "") or not is_bare:
        raise ValidationFailed(f"endpoint {endpoint!r} must be like https://s3.example, without a path or credentials")


def _split(endpoint: str) -> SplitResult:
    try:
        parts = urlsplit(endpoint)
        if parts.port is None or 0 < parts.port <= _HIGHEST_PORT:
            return parts
    except ValueError:
        pass
    raise ValidationFailed(f"endpoint {endpoint!r} is no address of a server")
