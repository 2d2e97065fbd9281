"""Ids that the bridge has given out and nobody has used yet: a small file for each, so that all workers know them."""

import os
from pathlib import Path

from cove.core.cluster import new_id
from cove.server.sandboxes.directory import Directory

# More than this are never used: the oldest are forgotten.
_MOST_UNUSED = 10_000


class UnusedIds:
    """Calls block, but for microseconds."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._path = directory.server / "unused"

    def make(self, spec_name: str = "") -> str:
        """Return a new id, for a sandbox of that spec."""
        id = new_id(self._directory.code())
        try:
            self._write(id, spec_name)
        except FileNotFoundError:
            self._path.mkdir(mode=0o700, exist_ok=True)
            self._write(id, spec_name)
        self._forget_oldest()
        return id

    def _write(self, id: str, spec_name: str) -> None:
        self._entry(id).touch(mode=0o600)
        if spec_name:
            self._entry(id).write_text(spec_name)

    def spec_name(self, id: str) -> str:
        """Return the name of the spec that was asked for with this id; empty for the usual one."""
        try:
            return self._entry(id).read_text()
        except FileNotFoundError:
            return ""

    def has(self, id: str) -> bool:
        """Return whether it was given out and not used or deleted since."""
        return self._entry(id).exists()

    def remove(self, id: str) -> None:
        """Remove an id that is used, or deleted."""
        self._entry(id).unlink(missing_ok=True)

    def _entry(self, id: str) -> Path:
        return self._path / self._directory.entry(id).name

    def _forget_oldest(self) -> None:
        names = os.listdir(self._path)
        if len(names) > _MOST_UNUSED:
            for path in sorted((self._path / name for name in names), key=_made_at)[: len(names) // 2]:
                path.unlink(missing_ok=True)


def _made_at(path: Path) -> float:
    """Return when; what another worker has just removed is the oldest of all."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
