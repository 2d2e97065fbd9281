"""Values of backups."""

from datetime import datetime

import msgspec


class BackupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One backup: `dir` is the directory that was saved in the sandbox `sandbox`, `size` what it takes on disk.

    Without `expires_at` it is kept until it is deleted.
    """

    id: str
    name: str | None
    dir: str
    sandbox: str
    created_at: datetime
    expires_at: datetime | None
    size: int
