"""Values of the Git API."""

from enum import StrEnum

import msgspec


class GitClone(msgspec.Struct, frozen=True, kw_only=True):
    """A cloned repository. A detached one has no branch, an empty one no commit."""

    path: str
    branch: str | None
    commit: str | None


class GitHead(msgspec.Struct, frozen=True, kw_only=True):
    """The checkout: a branch, unless HEAD is detached, and a commit, unless there is none yet."""

    branch: str | None
    commit: str | None


class GitChange(StrEnum):
    """The kind of difference between a file and what it is compared with."""

    UNMODIFIED = "unmodified"
    MODIFIED = "modified"
    TYPE_CHANGED = "type_changed"
    ADDED = "added"
    DELETED = "deleted"
    RENAMED = "renamed"
    COPIED = "copied"
    UNMERGED = "unmerged"
    UNTRACKED = "untracked"


class GitFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that differs: `staged` is the index beside the commit, `unstaged` the file beside the index.

    Paths begin at the top of the repository; that of a directory of which nothing is tracked ends with a slash.
    """

    path: str
    staged: GitChange
    unstaged: GitChange
    old_path: str | None = None
    is_conflicted: bool = False


class GitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The checkout, its distance from the upstream, and which files differ."""

    branch: str | None
    commit: str | None
    upstream: str | None = None
    ahead: int = 0
    behind: int = 0
    files: tuple[GitFile, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Return whether nothing differs, and nothing is untracked."""
        return not self.files


class GitBranch(msgspec.Struct, frozen=True, kw_only=True):
    """A branch of the repository, its last commit, and the branch that it follows."""

    name: str
    commit: str
    is_current: bool = False
    upstream: str | None = None
