"""OCI and Docker manifests: values, parsed from untrusted bytes.

image-spec: image-layout.md, manifest.md, image-index.md, config.md; Docker's `manifest.json` of `docker save`.
"""

import hashlib
import platform
import re
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from cove.errors import ImageInvalid

MOST_JSON_BYTES = 4 << 20
MOST_LAYERS = 128
INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

Value = TypeVar("Value")


class Platform(msgspec.Struct, frozen=True):
    """The machine that an image is for."""

    architecture: str = ""
    os: str = ""


class Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    """A blob by its digest."""

    digest: str
    size: int
    media_type: str = ""
    platform: Platform | None = None
    annotations: dict[str, str] = {}

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.digest) or self.size < 0:
            raise ValueError(f"not a digest: {self.digest[:80]!r}")


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """One image: its configuration and its layers, the lowest first."""

    config: Descriptor
    layers: list[Descriptor]


class Index(msgspec.Struct, frozen=True, rename="camel"):
    """Images for several machines, or several images in one archive."""

    manifests: list[Descriptor]


class HealthCheck(msgspec.Struct, frozen=True):
    """A command by which Docker asks whether an image's program is well; kept, not run."""

    Test: list[str] = []


class Settings(msgspec.Struct, frozen=True):
    """The settings of what runs: names as OCI writes them."""

    Env: list[str] | None = None
    Entrypoint: list[str] | None = None
    Cmd: list[str] | None = None
    WorkingDir: str = ""
    User: str = ""
    ExposedPorts: dict[str, dict[str, object]] | None = None
    Volumes: dict[str, dict[str, object]] | None = None
    Labels: dict[str, str] | None = None


class RootFs(msgspec.Struct, frozen=True):
    """The digests of the layers when they are decompressed."""

    diff_ids: list[str]

    def __post_init__(self) -> None:
        if not all(_DIGEST.fullmatch(digest) for digest in self.diff_ids):
            raise ValueError("a diff_id that is no digest")


class ImageConfig(msgspec.Struct, frozen=True):
    """The configuration of an image."""

    rootfs: RootFs
    config: Settings | None = None
    architecture: str = ""
    os: str = "linux"

    @property
    def settings(self) -> Settings:
        """Return the settings, also of an image that has none."""
        return self.config or Settings()


class SavedImage(msgspec.Struct, frozen=True):
    """One entry of the `manifest.json` that `docker save` writes."""

    Config: str
    Layers: list[str]
    RepoTags: list[str] | None = None


def decode(data: bytes, kind: type[Value], what: str) -> Value:
    """Decode a document of an image; ImageInvalid says which one is wrong, and how."""
    if len(data) > MOST_JSON_BYTES:
        raise ImageInvalid(f"the {what} of the image is larger than {MOST_JSON_BYTES >> 20} MiB")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ImageInvalid(f"the {what} of the image cannot be read: {error}") from None


def digest_of(data: bytes) -> str:
    """The digest of some bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def machine_architecture() -> str:
    """Return this machine's architecture, as images name it."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def choose(manifests: Sequence[Descriptor], architecture: str) -> Descriptor:
    """Choose the image for this machine; attestations and other architectures are passed over."""
    images = [found for found in manifests if found.media_type in (*MANIFEST_TYPES, *INDEX_TYPES, "")]
    fitting = [
        found
        for found in images
        if found.platform is None or (found.platform.os, found.platform.architecture) == ("linux", architecture)
    ]
    if not fitting:
        there = sorted({f"{found.platform.os}/{found.platform.architecture}" for found in images if found.platform})
        raise ImageInvalid(f"the image is not for linux/{architecture}; it is for {', '.join(there) or 'nothing'}")
    return fitting[0]


def check_layers(manifest_layers: int, config: ImageConfig) -> None:
    """Refuse a configuration that names other layers than the manifest."""
    if manifest_layers != len(config.rootfs.diff_ids):
        raise ImageInvalid(
            f"the image has {manifest_layers} layers and its configuration {len(config.rootfs.diff_ids)}: it is damaged"
        )
    if manifest_layers > MOST_LAYERS:
        raise ImageInvalid(f"the image has {manifest_layers} layers; at most {MOST_LAYERS} can be stacked")


def chain_ids(diff_ids: Sequence[str]) -> list[str]:
    """Name each layer together with all below it: config.md, "Layer ChainID"."""
    chain: list[str] = []
    for diff_id in diff_ids:
        chain.append(diff_id if not chain else digest_of(f"{chain[-1]} {diff_id}".encode()))
    return chain
