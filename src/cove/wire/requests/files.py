"""Requests for files."""

from cove.wire.requests.request import Request


class FileRequest(Request, frozen=True):
    """The user who asks, where it is not the sandbox's own."""

    user: str | None = None


class FilePath(FileRequest, frozen=True, kw_only=True):
    """One file."""

    path: str


class ReadFile(FileRequest, frozen=True, kw_only=True):
    """A file, or the bytes from `start` up to, not including, `end`."""

    path: str
    start: int = 0
    end: int | None = None


class WriteFile(FileRequest, frozen=True, kw_only=True):
    """The file that the content goes to."""

    path: str
    mode: int | None = None


class MakeDirectory(FileRequest, frozen=True, kw_only=True):
    """With `parents` those above it too."""

    path: str
    parents: bool = True


class Rename(FileRequest, frozen=True, kw_only=True):
    """On one file system."""

    old: str
    new: str


class Transfer(FileRequest, frozen=True, kw_only=True):
    """As `mv` and `cp -r`."""

    source: str
    destination: str


class ListFiles(FileRequest, frozen=True, kw_only=True):
    """The directory to list."""

    path: str = "."
    recursive: bool = False
    hidden: bool = True


class ChangeMode(FileRequest, frozen=True, kw_only=True):
    """Permission bits."""

    path: str
    mode: int


class Glob(FileRequest, frozen=True, kw_only=True):
    """The pattern that paths below `root` must match."""

    pattern: str
    root: str = "."


class Search(FileRequest, frozen=True, kw_only=True):
    """The regular expression that lines must match."""

    pattern: str
    path: str = "."
    glob: str | None = None
    limit: int = 1000


class Replace(FileRequest, frozen=True, kw_only=True):
    """Exact text."""

    path: str
    old: str
    new: str
    count: int | None = 1


class Watch(FileRequest, frozen=True, kw_only=True):
    """A tree or a file."""

    path: str = "."
    recursive: bool = True
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = (".git", "node_modules")


class CheckChanges(Watch, frozen=True, kw_only=True):
    """The version to compare with."""

    since: str | None = None
