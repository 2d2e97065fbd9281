"""The digest of a layer: SHA-256 of its canonical archive. Blocks."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cove.layers.packing import Write, pack_layer


@dataclass(slots=True)
class Hashing:
    """Passes bytes on, counted and hashed."""

    write: Write
    size: int = 0
    _hash: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    def __call__(self, data: bytes) -> None:
        """Take the next bytes."""
        self._hash.update(data)
        self.size += len(data)
        self.write(data)

    @property
    def digest(self) -> str:
        """The digest of all that has passed."""
        return f"sha256:{self._hash.hexdigest()}"


def layer_digest(data: Path, check: Callable[[], object] = lambda: None) -> str:
    """Return the digest of a layer, given by the directory with its parts; see `layers.packing` for what counts."""
    hashing = Hashing(lambda _: None)
    pack_layer(data, hashing, check)
    return hashing.digest
