"""The host users that sandboxes run as when Cove is root's: reserved by files that name their sandbox. Blocks."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from cove.errors import SandboxUnavailable
from cove.linux.file_lock import waiting_lock

FIRST_USER_ID = 2_000_000_000
USER_IDS = 1_000_000


class UserIds:
    """Those of one state directory. `_lock` is held while ids are given or taken back, and says which was the last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = path.with_name("users.lock")

    def allocate(self, key: str) -> int:
        """The next id that no living sandbox has."""
        with waiting_lock(self._lock) as lock:
            last = int(os.pread(lock, 20, 0) or self._first_offset())
            for step in range(1, USER_IDS):
                offset = (last + step) % USER_IDS
                reservation = self._path / str(FIRST_USER_ID + offset)
                if not reservation.exists():
                    reservation.write_text(key)
                    os.pwrite(lock, b"%-20d" % offset, 0)
                    return FIRST_USER_ID + offset
        raise SandboxUnavailable(f"all {USER_IDS} user ids of {self._path} are in use: destroy some sandboxes")

    def find(self, key: str, note: Path) -> int | None:
        """The id of a sandbox; `note` is the file that has it, unless its program was killed before it wrote that."""
        noted = _read(note)
        for reservation in [self._path / noted] if noted else self._path.iterdir():
            if _read(reservation) == key:
                return int(reservation.name)
        return None

    def release(self, user_id: int) -> None:
        """Let another sandbox have it."""
        (self._path / str(user_id)).unlink(missing_ok=True)

    def take_back(self, is_there: Callable[[str], bool]) -> None:
        """Release those whose sandbox is gone: its program was killed while it did."""
        with waiting_lock(self._lock):
            for reservation in self._path.iterdir():
                key = _read(reservation)
                if not key or not is_there(key):
                    reservation.unlink(missing_ok=True)

    def _first_offset(self) -> int:
        """Where a state directory begins to give ids: somewhere else than others that share the range."""
        found = self._path.parent.stat()
        digest = hashlib.sha256(b"%d:%d" % (found.st_dev, found.st_ino)).digest()
        return int.from_bytes(digest[:8], "big") % USER_IDS


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""  # never made, or released meanwhile by another program
