"""Requests for files."""

from cove.wire.requests.request import Request


class FilePath(Request, frozen=True):
    """One file."""

    path: str


class ReadFile(Request, frozen=True):
    """A file, or the bytes from `start` up to, not including, `end`."""

    path: str
    start: int = 0
    end: int | None = None


class WriteFile(Request, frozen=True):
    """The file that the content goes to."""

    path: str
    mode: int | None = None


class MakeDirectory(Request, frozen=True):
    """With `parents` those above it too."""

    path: str
    parents: bool = True


class Rename(Request, frozen=True):
    """On one file system."""

    old: str
    new: str


class Transfer(Request, frozen=True):
    """As `mv` and `cp -r`."""

    source: str
    destination: str


class ListFiles(Request, frozen=True):
    """The directory to list."""

    path: str = "."
    recursive: bool = False
    hidden: bool = True


class ChangeMode(Request, frozen=True):
    """Permission bits."""

    path: str
    mode: int


class Glob(Request, frozen=True):
    """The pattern that paths below `root` must match."""

    pattern: str
    root: str = "."


class Search(Request, frozen=True):
    """The regular expression that lines must match."""

    pattern: str
    path: str = "."
    glob: str | None = None
    limit: int = 1000


class Replace(Request, frozen=True):
    """Exact text."""

    path: str
    old: str
    new: str
    count: int | None = 1


class Watch(Request, frozen=True):
    """A tree or a file."""

    path: str = "."
    recursive: bool = True
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = (".git", "node_modules")


class CheckChanges(Watch, frozen=True):
    """The version to compare with."""

    since: str | None = None
