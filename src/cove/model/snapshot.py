"""Descriptions of snapshots, and of what a reset is proven by."""

from datetime import datetime
from enum import StrEnum

import msgspec


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


class ResetReport(msgspec.Struct, frozen=True, kw_only=True):
    """The proof that a sandbox is as it was created.

    `method` is "layers" when it stands on the unchanged layers of its creation with nothing on top, or "empty" when it
    was created without any. `layers` are their ids, bottom first; `files` is how many there are on top: none.
    """

    method: str
    layers: tuple[str, ...] = ()
    files: int = 0
