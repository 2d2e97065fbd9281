"""Interface of Git inside a sandbox."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from cove.model import GitBranch, GitClone, GitHead, GitStatus


class Git(ABC):
    """Repositories inside the sandbox, by the sandbox's own git: what a call does, `git` on a command line does.

    `path` is a directory of the repository. Hooks run inside, as all of git does. A call whose time is up, or that is
    cancelled, is ended and raises GitTimeout; the repository is then as git left it.

    `token`, or a password in the URL, is given to the URL's own host only and is found neither in arguments, nor in
    the repository's configuration, nor in errors. No hook runs in a call that has one. Code inside has the same user
    as git and can read it while the call runs.
    """

    @abstractmethod
    async def clone(
        self,
        url: str,
        path: str | None = None,
        *,
        branch: str | None = None,
        depth: int | None = None,
        timeout: float | None = None,
        token: str | None = None,
    ) -> GitClone:
        """Clone with the sandbox's own network; by default into a directory named like the repository."""

    @abstractmethod
    async def status(self, path: str = ".", *, timeout: float | None = None) -> GitStatus:
        """Describe the checkout: HEAD, how far it is from its upstream as last seen, and which files differ."""

    @abstractmethod
    async def diff(
        self,
        path: str = ".",
        *,
        paths: Sequence[str] = (),
        base: str | None = None,
        staged: bool = False,
        max_bytes: int = 1 << 20,
        timeout: float | None = None,
    ) -> str:
        """Changes as a patch: of files beside the index or the commit `base`, or of what is `staged`.

        Only of `paths`, if there are any. A patch over `max_bytes` raises FileTooLarge. What is not UTF-8 is replaced.
        """

    @abstractmethod
    async def add(self, paths: Sequence[str] | None = None, path: str = ".", *, timeout: float | None = None) -> None:
        """Stage files or directories, by their names and not by patterns; without any, everything."""

    @abstractmethod
    async def commit(
        self,
        message: str,
        path: str = ".",
        *,
        all: bool = False,
        allow_empty: bool = False,
        author: str | None = None,
        timeout: float | None = None,
    ) -> GitHead:
        """Record what is staged, or with `all` every change of tracked files; GitNothingToCommit if there is nothing.

        `author`, as `Name <name@example.com>`, is also the committer; without it the configuration says who it is.
        """

    @abstractmethod
    async def push(
        self,
        path: str = ".",
        *,
        remote: str = "origin",
        branch: str | None = None,
        force: bool = False,
        set_upstream: bool = False,
        token: str | None = None,
        url: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Send a branch, by default the one that is checked out, to that of the same name; GitRejected if refused.

        `remote` is a name or a URL. With the name of a remote a token needs `url`, whose host it is for: where the
        name leads is the repository's configuration, which code inside can change.
        """

    @abstractmethod
    async def pull(
        self,
        path: str = ".",
        *,
        remote: str | None = None,
        branch: str | None = None,
        rebase: bool = False,
        token: str | None = None,
        url: str | None = None,
        timeout: float | None = None,
    ) -> GitHead:
        """Fetch and merge, or rebase on, the upstream, or `branch` of `remote`; the same holds for the token.

        GitConflict leaves the merge as git does, to be resolved and committed.
        """

    @abstractmethod
    async def branch(
        self,
        name: str,
        path: str = ".",
        *,
        start: str | None = None,
        delete: bool = False,
        force: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Make a branch at `start` or at what is checked out, or delete one; `force` moves it, or drops commits."""

    @abstractmethod
    async def branches(self, path: str = ".", *, timeout: float | None = None) -> list[GitBranch]:
        """Return the local branches, by name."""

    @abstractmethod
    async def checkout(
        self, ref: str, path: str = ".", *, create: bool = False, force: bool = False, timeout: float | None = None
    ) -> GitHead:
        """Switch to a branch, a tag or a commit, or to a new branch with `create`; `force` drops local changes."""
