"""Client of Git in a sandbox."""

from collections.abc import Sequence

from cove import api
from cove.client.calls import Calls
from cove.core.command import check_timeout
from cove.errors import ValidationFailed
from cove.model import GitBranch, GitClone, GitHead, GitStatus
from cove.wire import operations, requests
from cove.wire.replies import Diff


class Git(api.Git):
    """Repositories inside the sandbox."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

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
        request = requests.CloneRepository(
            url=url, path=path, branch=branch, depth=depth, timeout=check_timeout(timeout), token=token
        )
        return await self._calls.get(operations.CLONE, GitClone, request=request)

    async def status(self, path: str = ".", *, timeout: float | None = None) -> GitStatus:
        request = requests.Repository(path=path, timeout=check_timeout(timeout))
        return await self._calls.get(operations.GIT_STATUS, GitStatus, request=request)

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
        request = requests.DiffRepository(
            path=path,
            paths=tuple(_list(paths)),
            base=base,
            staged=staged,
            max_bytes=max_bytes,
            timeout=check_timeout(timeout),
        )
        return (await self._calls.get(operations.GIT_DIFF, Diff, request=request)).diff

    async def add(self, paths: Sequence[str] | None = None, path: str = ".", *, timeout: float | None = None) -> None:
        named = None if paths is None else _list(paths)
        request = requests.AddToRepository(path=path, paths=named, timeout=check_timeout(timeout))
        await self._calls.do(operations.GIT_ADD, request=request)

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
        request = requests.Commit(
            path=path, message=message, all=all, allow_empty=allow_empty, author=author, timeout=check_timeout(timeout)
        )
        return await self._calls.get(operations.GIT_COMMIT, GitHead, request=request)

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
        request = requests.Push(
            path=path,
            remote=remote,
            branch=branch,
            force=force,
            set_upstream=set_upstream,
            token=token,
            url=url,
            timeout=check_timeout(timeout),
        )
        await self._calls.do(operations.GIT_PUSH, request=request)

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
        request = requests.Pull(
            path=path,
            remote=remote,
            branch=branch,
            rebase=rebase,
            token=token,
            url=url,
            timeout=check_timeout(timeout),
        )
        return await self._calls.get(operations.GIT_PULL, GitHead, request=request)

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
        request = requests.ChangeBranch(
            path=path, name=name, start=start, delete=delete, force=force, timeout=check_timeout(timeout)
        )
        await self._calls.do(operations.GIT_BRANCH, request=request)

    async def branches(self, path: str = ".", *, timeout: float | None = None) -> list[GitBranch]:
        request = requests.Repository(path=path, timeout=check_timeout(timeout))
        return await self._calls.get(operations.GIT_BRANCHES, list[GitBranch], request=request)

    async def checkout(
        self, ref: str, path: str = ".", *, create: bool = False, force: bool = False, timeout: float | None = None
    ) -> GitHead:
        request = requests.Checkout(path=path, ref=ref, create=create, force=force, timeout=check_timeout(timeout))
        return await self._calls.get(operations.GIT_CHECKOUT, GitHead, request=request)


def _list(paths: Sequence[str]) -> list[str]:
    if isinstance(paths, str) or not isinstance(paths, Sequence):
        raise ValidationFailed("paths must be a list of strings")
    return list(paths)
