"""Values of the file API: entries, matches, events, changes. They hold no cycles, so the collector passes over them."""

from datetime import datetime
from enum import StrEnum

import msgspec

MOST_DOWNLOAD_BYTES = 16 << 30


class FileKind(StrEnum):
    """The kind of an entry; a link is not followed."""

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
    """The kind of a change to a file. `resync`: so much at once that events were lost; look again at everything."""

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
    """The result of a comparison. `resync`: the version is not of this tree and filter, so nobody can tell."""

    UNCHANGED = "unchanged"
    CHANGED = "changed"
    RESYNC = "resync"


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of a tree with a version of it, and the version it has."""

    status: ChangesStatus
    version: str


class FileChangeKind(StrEnum):
    """The kind of a difference between two states of a tree."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


class FileChange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One path that differs: in its kind, its mode, its content or where it points. `size` is what it has, or had."""

    path: str
    kind: FileChangeKind
    size: int
