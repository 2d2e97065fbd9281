"""Interface of backups: directories of sandboxes, kept outside of them."""

import builtins
from abc import ABC, abstractmethod

from cove.model import BackupInfo


class Backups(ABC):
    """Backups of directories. They outlive the sandbox, and every sandbox of the same owner can restore them."""

    @abstractmethod
    async def create(
        self, dir: str, name: str | None = None, ttl: float | None = None, gitignore: bool = False
    ) -> BackupInfo:
        """Save a directory and all in it; it is there whole, or not at all.

        After `ttl` seconds it expires; by default it never does. With `gitignore` files that Git ignores there are left
        out: by every `.gitignore`, also where there is no repository. What changes meanwhile may be in it or not.
        """

    @abstractmethod
    async def restore(self, id: str, dir: str | None = None) -> BackupInfo:
        """Make a directory what the backup has: where it was saved, or at `dir`. What else is there is removed.

        What fails changes nothing. BackupNotFound without such a backup, BackupExpired when its time is over.
        """

    @abstractmethod
    async def list(self) -> builtins.list[BackupInfo]:
        """All backups that can be restored, oldest first."""

    @abstractmethod
    async def delete(self, id: str) -> None:
        """Remove a backup; BackupNotFound without such a one."""
