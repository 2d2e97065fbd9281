"""Values of backups and exports."""

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


class TransferProgress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """The progress of an export, a load or a pull: layers that are done, of so many, and bytes so far.

    `total_layers` and `total_bytes` are 0 where they are not known.
    """

    layers: int
    total_layers: int
    bytes: int
    total_bytes: int = 0


class ExportInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An export: where it can be loaded from, the snapshot's digest, and what had to be written for it.

    Layers that were there already are counted in `layers` only.
    """

    location: str
    digest: str
    layers: int
    sent_layers: int
    sent_bytes: int
