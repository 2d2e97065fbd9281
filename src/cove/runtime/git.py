"""Git inside the sandbox: ordinary commands whose credentials travel apart from them."""

from collections.abc import Callable, Mapping, Sequence

from cove import api
from cove.core import git_command as plans
from cove.core.command import build_invocation, check_max_output, check_timeout, merge_environment
from cove.core.file_path import decode_path, resolve_path
from cove.core.git_command import GitCommand, explain_failure, plan_clone
from cove.core.git_output import parse_branches, parse_commit, parse_status
from cove.errors import CoveError, FileTooLarge, GitFailed
from cove.local.threads import in_thread
from cove.model import ExecResult, GitBranch, GitClone, GitHead, GitStatus, Outcome
from cove.runtime.errand import Errands
from cove.runtime.exec import run_command
from cove.runtime.file_access import FileAccess
from cove.runtime.file_journal import journaled
from cove.runtime.gate import Gate, gated
from cove.runtime.journal import Journal
from cove.runtime.spawner import Spawner
from cove.runtime.tracing import traced

_MISSING = "cove: git: command not found"
_MOST_BYTES = 64 << 10
_MOST_LIST_BYTES = 4 << 20


@traced("git", api.Git)
@gated()
@journaled("git.", clone="path", commit="path", pull="path", push="path", checkout="path")
class Git(api.Git):
    """`base` gives the working directory, `environment` the variables of what is started in the sandbox."""

    def __init__(
        self,
        spawner: Spawner,
        access: FileAccess,
        errands: Errands,
        base: Callable[[], str],
        environment: Callable[[], Mapping[str, str]],
    ) -> None:
        self._spawner = spawner
        self._access = access
        self._errands = errands
        self._base = base
        self._environment = environment

    @property
    def gate(self) -> Gate:
        """The gate of its sandbox."""
        return self._access.gate

    @property
    def journal(self) -> Journal:
        """The journal of its sandbox."""
        return self._access.journal

    def work_in(self, other: "Git") -> None:
        """Work in the jail that another one works in: this one's has ended."""
        self._spawner, self._access, self._errands = other._spawner, other._access, other._errands

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
        clone = plan_clone(url, path, branch=branch, depth=depth, token=token)
        where = resolve_path(self._base(), clone.path)
        is_new = await self._access.stat_or_none(where) is None
        argv = (*clone.command.argv[:-1], decode_path(where))
        command = GitCommand(argv, clone.command.subject, clone.command.env, clone.command.secrets)
        try:
            await self._run(command, timeout)
        except BaseException:
            if is_new and not self._spawner.closed:
                await self._remove(where)
            raise
        head = await self._head(decode_path(where))
        return GitClone(path=decode_path(where).rstrip("/"), branch=head.branch, commit=head.commit)

    async def status(self, path: str = ".", *, timeout: float | None = None) -> GitStatus:
        result = await self._list(plans.plan_status(self._where(path)), timeout)
        return await in_thread(parse_status, result.stdout_bytes)

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
        command = plans.plan_diff(self._where(path), base, paths, staged=staged)
        limit = check_max_output(max_bytes)
        result = await self._run(command, timeout, limit)
        if result.truncated and len(result.stdout_bytes) >= limit:
            advice = "name fewer `paths`, or raise `max_bytes`"
            raise FileTooLarge(f"{command.subject}: the patch is over {limit} bytes: {advice}")
        return await in_thread(_decode, result.stdout_bytes)

    async def add(self, paths: Sequence[str] | None = None, path: str = ".", *, timeout: float | None = None) -> None:
        await self._run(plans.plan_add(self._where(path), paths), timeout)

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
        where = self._where(path)
        command = plans.plan_commit(where, message, everything=all, allow_empty=allow_empty, author=author)
        await self._run(command, timeout)
        return await self._head(where)

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
        command = plans.plan_push(
            self._where(path), remote, branch, force=force, set_upstream=set_upstream, token=token, url=url
        )
        await self._run(command, timeout)

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
        where = self._where(path)
        await self._run(plans.plan_pull(where, remote, branch, rebase=rebase, token=token, url=url), timeout)
        return await self._head(where)

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
        await self._run(plans.plan_branch(self._where(path), name, start, delete=delete, force=force), timeout)

    async def branches(self, path: str = ".", *, timeout: float | None = None) -> list[GitBranch]:
        result = await self._list(plans.plan_branches(self._where(path)), timeout)
        return await in_thread(parse_branches, result.stdout_bytes)

    async def checkout(
        self, ref: str, path: str = ".", *, create: bool = False, force: bool = False, timeout: float | None = None
    ) -> GitHead:
        where = self._where(path)
        await self._run(plans.plan_checkout(where, ref, create=create, force=force), timeout)
        return await self._head(where)

    def _where(self, path: str) -> str:
        return decode_path(resolve_path(self._base(), path))

    async def _head(self, where: str) -> GitHead:
        """Return what has been checked out."""
        commit = await self._start(plans.plan_commit_name(where), None, _MOST_BYTES)
        branch = await self._start(plans.plan_branch_name(where), None, _MOST_BYTES)
        return GitHead(branch=branch.stdout.strip() or None, commit=parse_commit(commit.stdout_bytes))

    async def _list(self, command: GitCommand, timeout: float | None) -> ExecResult:
        """Run what is parsed: the whole of it, or nothing."""
        result = await self._run(command, timeout, _MOST_LIST_BYTES)
        if result.truncated:
            raise GitFailed(f"{command.subject}: what it lists is over {_MOST_LIST_BYTES} bytes")
        return result

    async def _run(self, command: GitCommand, timeout: float | None, most: int = _MOST_BYTES) -> ExecResult:
        """Run a command that succeeds, or raise the error that it means."""
        result = await self._start(command, check_timeout(timeout), most)
        if result.outcome is Outcome.LOST or self._spawner.closed:
            raise self._spawner.link.explain(True)
        if result.ok:
            return result
        if _MISSING in result.stderr:
            raise GitFailed("git is not installed on this machine: `sudo apt install git`")
        raise explain_failure(command, f"{result.stdout[-_MOST_BYTES:]}\n{result.stderr}", timed_out=result.timed_out)

    async def _start(self, command: GitCommand, timeout: float | None, most: int) -> ExecResult:
        merged = merge_environment(self._environment(), command.env)
        invocation = build_invocation(command.argv, cwd=self._base(), env=merged)
        return await run_command(
            self._spawner, command.argv, invocation, timeout=timeout, stdin=command.stdin, max_output=most
        )

    async def _remove(self, where: bytes) -> None:
        """Remove what a clone that was ended left behind; git itself removes it when it fails on its own."""
        try:
            await self._errands.run("remove", where, subject=decode_path(where))
        except CoveError:
            return  # there is nothing, or the clone's own failure is what the caller shall hear of


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "replace")
