"""Blobs of pulls: `images/blobs/DIGEST`, a tenant's as `TENANT~DIGEST`, locked by who fetches it. Calls block.

A pull that was interrupted, or killed, leaves what it has fetched: the next one of the same blob goes on from there.
What nobody comes back for is removed after a week, and by `collect`. A blob that another pull is just fetching is
fetched into a file of its own: nobody waits for a stranger's connection.
"""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path

from cove.core.identifier import new_identifier
from cove.linux.file_lock import try_lock

MOST_AGE_SECONDS = 7 * 24 * 3600.0
_MODE = 0o600


class Blobs:
    """The blobs in a directory; a tenant goes on only with what it has fetched itself."""

    def __init__(self, directory: Path, tenant: str = "") -> None:
        self._directory = directory
        self._prefix = f"{tenant}~" if tenant else ""

    @contextmanager
    def holding(self, digests: Iterable[str]) -> Iterator[dict[str, Path]]:
        """Hold the files of these blobs. They are gone when all went well, and kept for the next when it did not."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self.collect(MOST_AGE_SECONDS)
        with ExitStack() as held:
            files = {digest: self._take(digest, held) for digest in digests}
            yield files
            for path in files.values():
                path.unlink(missing_ok=True)

    def collect(self, age: float = 0.0) -> None:
        """Remove blobs that nobody is fetching, if that was so long ago."""
        before = time.time() - age
        for path in self._directory.iterdir() if self._directory.exists() else ():
            lock = try_lock(path)
            if lock is not None:
                with lock:
                    if os.fstat(lock.fileno()).st_mtime <= before:
                        path.unlink(missing_ok=True)

    def _take(self, digest: str, held: ExitStack) -> Path:
        path = self._directory / f"{self._prefix}{digest.replace(':', '-')}"
        lock = _lock(path)
        if lock is None:
            path = path.with_name(f"{path.name}.{new_identifier()}")
            lock = _lock(path)
            assert lock is not None  # nobody knows its name
            held.callback(path.unlink, missing_ok=True)
        held.callback(lock.close)
        return path


def _lock(path: Path) -> FileIO | None:
    """Lock a file, which is made if need be; None when somebody else has it."""
    while True:
        path.touch(_MODE)
        lock = try_lock(path)
        if lock is None and path.exists():
            return None
        if lock is not None:
            if _is_at(lock, path):
                return lock
            lock.close()  # whoever had it has just removed it


def _is_at(lock: FileIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(lock.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
