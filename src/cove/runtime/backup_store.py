"""Backups on disk: a directory for each in the state directory, with the compressed archive and its record. Blocks.

A backup is written in a directory of another name, locked as long as its writer lives, and renamed when it is whole.
Deleting renames it first. What a killed program left of either is removed by whoever looks next.
"""

import builtins
import os
import re
from contextlib import suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Final

import msgspec

from cove.archive.remove_tree import remove_tree
from cove.core.backup import is_expired, is_forgotten
from cove.core.identifier import KEY_LENGTH, new_identifier
from cove.errors import BackupExpired, BackupNotFound, ValidationFailed
from cove.linux.file_lock import make_locked, try_lock, waiting_lock
from cove.linux.forking import close_in_forked_child
from cove.local.state import replace_file, sync_directory
from cove.model import BackupInfo
from cove.runtime.home import Home

_RECORD: Final = "backup.json"
_ARCHIVE: Final = "archive.tar.zst"
_LOCK: Final = "lock"
_NEW, _OLD = ".new-", ".old-"
_ID: Final = re.compile(f"[a-z2-7]{{{KEY_LENGTH}}}")


class BackupStore:
    """All backups below one state directory; of a tenant, its own."""

    def __init__(self, home: Home) -> None:
        self._home = home

    @property
    def _top(self) -> Path:
        """A sandbox may be made before it is known whose it is."""
        return self._home.own / "backups"

    def begin(self) -> "NewBackup":
        """Make room for a new one that nobody sees yet."""
        self._top.mkdir(mode=0o700, parents=True, exist_ok=True)
        id = new_identifier()
        with waiting_lock(self._top / _LOCK):
            self._sweep()
            place = self._top / (_NEW + id)
            place.mkdir(mode=0o700)
            return NewBackup(id, place, self._top / id, make_locked(place / _LOCK))

    def list(self) -> builtins.list[BackupInfo]:
        """Return those that can be restored, oldest first."""
        if not self._top.is_dir():
            return []
        with waiting_lock(self._top / _LOCK):
            self._sweep()
            found = [info for _, info in self._records() if not is_expired(info, datetime.now(UTC))]
        return sorted(found, key=lambda info: (info.created_at, info.id))

    def open(self, id: str) -> tuple[BackupInfo, FileIO]:
        """Return a backup and its archive, open: it can be read to its end also when it is deleted meanwhile."""
        info = self._find(id)
        if is_expired(info, datetime.now(UTC)):
            raise BackupExpired(f"backup {id} expired at {info.expires_at:%Y-%m-%d %H:%M:%S} UTC", id=id)
        try:
            archive = FileIO(self._top / id / _ARCHIVE)
        except FileNotFoundError:
            raise _not_found(id) from None
        if os.fstat(archive.fileno()).st_size != info.size:
            archive.close()
            raise ValidationFailed(f"backup {id} is damaged: its archive has another size than its record says")
        return info, archive

    def delete(self, id: str) -> None:
        """Remove a backup, also an expired one; BackupNotFound without such a one."""
        self._find(id)
        gone = self._top / (_OLD + id + new_identifier())
        try:
            (self._top / id).rename(gone)
        except FileNotFoundError:
            raise _not_found(id) from None
        remove_tree(str(gone))

    def _find(self, id: str) -> BackupInfo:
        info = self._read(id) if isinstance(id, str) and _ID.fullmatch(id) else None
        if info is None:
            raise _not_found(id)
        return info

    def _read(self, id: str) -> BackupInfo | None:
        with suppress(FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
            return msgspec.json.decode((self._top / id / _RECORD).read_bytes(), type=BackupInfo)
        return None

    def _records(self) -> "builtins.list[tuple[Path, BackupInfo]]":
        names = [name for name in os.listdir(self._top) if _ID.fullmatch(name)]
        return [(self._top / name, info) for name in names if (info := self._read(name)) is not None]

    def _sweep(self) -> None:
        """Remove what has expired, and what programs that were killed left half made or half removed."""
        now = datetime.now(UTC)
        for path, info in self._records():
            if is_forgotten(info, now):
                remove_tree(str(path))
            elif is_expired(info, now):
                (path / _ARCHIVE).unlink(missing_ok=True)
        for name in os.listdir(self._top):
            if name.startswith(_OLD) or (name.startswith(_NEW) and self._is_abandoned(self._top / name)):
                remove_tree(str(self._top / name))

    @staticmethod
    def _is_abandoned(place: Path) -> bool:
        lock = try_lock(place / _LOCK)
        if lock is None:
            return not (place / _LOCK).exists()
        lock.close()
        return True


class NewBackup:
    """A backup in the making: `archive` is written, then it is published or discarded."""

    def __init__(self, id: str, place: Path, final: Path, lock: FileIO) -> None:
        close_in_forked_child(lock)
        self.id = id
        self._place = place
        self._final = final
        self._lock = lock
        self.archive = os.open(place / _ARCHIVE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    @property
    def size(self) -> int:
        """The number of bytes that have been written."""
        return os.fstat(self.archive).st_size

    def publish(self, info: BackupInfo) -> None:
        """Let everybody see it, also after a crash of the machine."""
        os.fsync(self.archive)
        replace_file(self._place / _RECORD, msgspec.json.encode(info), durable=True)
        self._place.rename(self._final)
        self._place = self._final
        sync_directory(self._final.parent)
        (self._final / _LOCK).unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove it, also when it was published just now."""
        remove_tree(str(self._place))
        self.close()

    def close(self) -> None:
        """Let go of its files."""
        os.close(self.archive)
        self._lock.close()


def _not_found(id: str) -> BackupNotFound:
    return BackupNotFound(f"there is no backup {id!r:.200}: `list` names those that there are", id=str(id)[:200])
