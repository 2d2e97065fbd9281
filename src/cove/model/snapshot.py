"""Descriptions of snapshots, and of what a reset is proven by."""

from datetime import datetime
from enum import StrEnum

import msgspec

from cove.errors import ValidationFailed

MOST_NAME_CHARACTERS = 256


def check_snapshot_name(name: str | None) -> None:
    """Raise ValidationFailed for what is no name."""
    if name is not None and (not isinstance(name, str) or len(name) > MOST_NAME_CHARACTERS or not name.isprintable()):
        raise ValidationFailed(
            f"the name of a snapshot must be printable text of at most {MOST_NAME_CHARACTERS} characters"
        )


class SnapshotMethod(StrEnum):
    """The way in which snapshots are made: by layers on one another, or by copies of all files."""

    OVERLAY = "overlay"
    COPY = "copy"


class SnapshotInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one snapshot: the files of a sandbox at one moment.

    `parent` is the snapshot that the sandbox stood on. `size` is what the files that it added take on the disk: None
    until it is counted, which `get` and `list` do.
    """

    id: str
    created_at: datetime
    name: str | None = None
    labels: dict[str, str] = {}
    size: int | None = None
    parent: str | None = None
    owner: str | None = None


class ResetReport(msgspec.Struct, frozen=True, kw_only=True):
    """The proof that a sandbox is as it was created: a new jail, and files that were looked at.

    `method` is "layers" when it stands on the unchanged layers of its creation with nothing on top, "empty" when it
    was created without any, or "copy" when those layers were copied anew, where there are no overlays. `layers` are
    their ids, bottom first; `files` is how many there are on top, or differ from them: none. Of a copy, `digest` is
    that of all its files. `processes` run in the new jail, beside Cove's own: none but a `startup`.
    `shared_memory` is the number of files in /dev/shm.
    """

    method: str
    layers: tuple[str, ...] = ()
    files: int = 0
    digest: str | None = None
    processes: int = 0
    shared_memory: int = 0
