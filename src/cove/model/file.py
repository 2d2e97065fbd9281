"""Files as they are described, found, watched and compared. They hold no cycles, so the collector passes over them."""

from datetime import datetime
from enum import StrEnum

import msgspec

MOST_DOWNLOAD_BYTES = 16 << 30


class FileKind(StrEnum):
    """What stands under a name; a link is not followed."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


class FileInfo(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One name in a directory. `path` is absolute; `target` is where a link points, as it was written."""

    name: str
    path: str
    kind: FileKind
    size: int
    mode: int
    modified_at: datetime
    target: str | None = None


class SearchMatch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One line that matches; numbers begin with 1, a very long line is cut."""

    path: str
    line_number: int
    line: str


class FileEventKind(StrEnum):
    """What happened to a file. `resync`: so much at once that events were lost; look again at everything."""

    WATCHING = "watching"
    CREATE = "create"
    MODIFY = "modify"
    DELETE = "delete"
    MOVE = "move"
    RESYNC = "resync"


class FileEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One change; `old_path` is where a moved file was."""

    kind: FileEventKind
    path: str
    is_directory: bool = False
    old_path: str | None = None


class ChangesStatus(StrEnum):
    """Whether a tree is as it was. `resync`: the version is not of this tree and filter, so nobody can tell."""

    UNCHANGED = "unchanged"
    CHANGED = "changed"
    RESYNC = "resync"


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """How a tree compares to a version of it, and the version it has."""

    status: ChangesStatus
    version: str
