"""The index of an exported snapshot: its layers by digest, and what else belongs to it. Untrusted when read."""

import hashlib
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final

import msgspec

from cove.core.command import check_environment
from cove.errors import ValidationFailed

VERSION: Final = 1
MOST_INDEX_BYTES: Final = 4 << 20
MOST_LAYERS: Final = 256
MOST_LAYER_BYTES: Final = 1 << 40
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_MOST_LABELS: Final = 1000
_MOST_TEXT: Final = 1000


class IndexedLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer: the digest and the size of its archive before compression."""

    digest: str
    size: int


class SnapshotIndex(msgspec.Struct, frozen=True, kw_only=True):
    """An exported snapshot; its layers are bottom first."""

    version: int
    created_at: Annotated[datetime, msgspec.Meta(tz=True)]
    layers: tuple[IndexedLayer, ...]
    name: str | None = None
    labels: dict[str, str] = {}
    env: dict[str, str] = {}
    workdir: str = "/workspace"

    @property
    def digest(self) -> str:
        """The digest of the snapshot's files."""
        return snapshot_digest([layer.digest for layer in self.layers])


def snapshot_digest(layers: Sequence[str]) -> str:
    """Return the digest of a list of layers, bottom first: equal ones have equal layers, and so equal files."""
    return "sha256:" + hashlib.sha256("\n".join(("cove snapshot 1", *layers)).encode()).hexdigest()


def layer_file(digest: str) -> str:
    """Return the name of a layer's compressed archive in an export."""
    return f"layers/{digest.replace(':', '-')}.tar.zst"


def index_file(id: str) -> str:
    """Return the name of a snapshot's index in an export."""
    return f"snapshots/{id}.json"


def encode_index(index: SnapshotIndex) -> bytes:
    """Return the index as it is written, for people too."""
    return msgspec.json.format(msgspec.json.encode(index), indent=1) + b"\n"


def decode_index(data: bytes) -> SnapshotIndex:
    """Read an index; ValidationFailed for what is none, or is not to be believed."""
    try:
        index = msgspec.json.decode(data, type=SnapshotIndex)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValidationFailed(f"this is no index of a snapshot: {error}") from None
    if index.version != VERSION:
        raise ValidationFailed(f"the export has version {index.version}, and only {VERSION} is known here")
    if len(index.layers) > MOST_LAYERS:
        raise ValidationFailed(f"the export has more than {MOST_LAYERS} layers")
    for layer in index.layers:
        if not _DIGEST.fullmatch(layer.digest) or not 0 <= layer.size <= MOST_LAYER_BYTES:
            raise ValidationFailed(f"the export has a layer that cannot be: {layer.digest[:100]!r}, {layer.size} bytes")
    check_environment(index.env)
    _check_texts(index)
    return index


def _check_texts(index: SnapshotIndex) -> None:
    texts = [index.name or "", index.workdir, *index.labels, *index.labels.values()]
    if len(index.labels) > _MOST_LABELS or any(len(text) > _MOST_TEXT or "\0" in text for text in texts):
        raise ValidationFailed("the export has a name, a label or a directory that is too long, or no text")
    if not index.workdir.startswith("/"):
        raise ValidationFailed(f"the working directory of the export is not absolute: {index.workdir!r}")
