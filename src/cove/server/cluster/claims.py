"""Claims on names that this node keeps: a small file each, changed under a lock, one change at a time. Blocks.

A file outlives a crash of the machine: a name that was forgotten could be given to two nodes.
"""

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from cove.linux.file_lock import waiting_lock
from cove.local.state import replace_file
from cove.model.cluster import Claim


class Claims:
    """The claims in one state directory. Epochs of a name only grow, also from one claim of it to the next.

    A name that is free has no file that could say where they were: they begin with the time in milliseconds.
    """

    def __init__(self, home: Path) -> None:
        self._path = home / "claims"

    def claim(self, name: str, node: str, epoch: int | None = None) -> Claim:
        """Claim a name for a node, and return the claim that holds: see `Placement.claim`."""
        with self._locked(name) as path:
            held = _read(path)
            if held is not None and held.node != node and held.epoch != epoch:
                return held
            begin = time.time_ns() // 1_000_000
            taken = Claim(name=name, node=node, epoch=begin if held is None else held.epoch + 1)
            replace_file(path, msgspec.json.encode(taken), durable=True)
            return taken

    def find(self, name: str) -> Claim | None:
        """Return the claim that holds."""
        return _read(self._path / _digest(name))

    def unclaim(self, claim: Claim) -> None:
        """Free the name, if exactly this claim holds it."""
        with self._locked(claim.name) as path:
            if _read(path) == claim:
                path.unlink()

    @contextmanager
    def _locked(self, name: str) -> Iterator[Path]:
        self._path.mkdir(mode=0o700, exist_ok=True)
        digest = _digest(name)
        with waiting_lock(self._path / f"lock-{digest[:2]}"):
            yield self._path / digest


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def _read(path: Path) -> Claim | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Claim)
    except FileNotFoundError:
        return None
