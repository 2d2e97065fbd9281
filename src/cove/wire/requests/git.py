"""Requests for git."""

from cove.wire.requests.request import Request, Seconds


class CloneRepository(Request, frozen=True):
    """The token is given to the URL's own host only."""

    url: str
    path: str | None = None
    branch: str | None = None
    depth: int | None = None
    timeout: Seconds = None
    token: str | None = None


class Repository(Request, frozen=True):
    """A directory of a repository."""

    path: str = "."
    timeout: Seconds = None


class DiffRepository(Repository, frozen=True):
    """Without `paths` everything is compared."""

    paths: tuple[str, ...] = ()
    base: str | None = None
    staged: bool = False
    max_bytes: int = 1 << 20


class AddToRepository(Repository, frozen=True):
    """Without `paths` everything is staged."""

    paths: list[str] | None = None


class Commit(Repository, frozen=True, kw_only=True):
    """With `all` every change of tracked files."""

    message: str
    all: bool = False
    allow_empty: bool = False
    author: str | None = None


class Push(Repository, frozen=True):
    """The token is given to the host of `url` only."""

    remote: str = "origin"
    branch: str | None = None
    force: bool = False
    set_upstream: bool = False
    token: str | None = None
    url: str | None = None


class Pull(Repository, frozen=True):
    """The token is given to the host of `url` only."""

    remote: str | None = None
    branch: str | None = None
    rebase: bool = False
    token: str | None = None
    url: str | None = None


class ChangeBranch(Repository, frozen=True, kw_only=True):
    """Make a branch, or delete it."""

    name: str
    start: str | None = None
    delete: bool = False
    force: bool = False


class Checkout(Repository, frozen=True, kw_only=True):
    """A branch, a tag or a commit; with `create` a new branch."""

    ref: str
    create: bool = False
    force: bool = False
