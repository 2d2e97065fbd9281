"""Credentials that came with a call, for the buckets of one sandbox: a file that only we can read. Blocks.

It is in the sandbox's place, outside what any jail shows and what a snapshot takes.
"""

from collections.abc import Set
from pathlib import Path

import msgspec

from cove.local.state import replace_file


class BucketCredentials:
    """By the target of the mount."""

    def __init__(self, place: Path) -> None:
        self._path = place / "bucket-credentials.json"

    def find(self, target: str) -> str | None:
        """Return what was kept for that target."""
        return self._read().get(target)

    def keep(self, target: str, credentials: str | None) -> None:
        """Keep them; None forgets them."""
        known = self._read()
        if known.get(target) == credentials:
            return
        kept = {name: value for name, value in known.items() if name != target}
        if credentials is not None:
            kept[target] = credentials
        replace_file(self._path, msgspec.json.encode(kept), mode=0o600)

    def keep_only(self, targets: Set[str]) -> None:
        """Forget those of all other targets."""
        known = self._read()
        if not known.keys() <= targets:
            kept = {name: value for name, value in known.items() if name in targets}
            replace_file(self._path, msgspec.json.encode(kept), mode=0o600)

    def _read(self) -> dict[str, str]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            return {}
