"""Git inside the sandbox: an ordinary command whose credentials travel apart from it."""

from collections.abc import Callable, Mapping

from cove import api
from cove.core.command import build_invocation, check_timeout, merge_environment
from cove.core.file_path import decode_path, resolve_path
from cove.core.git_clone import explain_failure, plan_clone
from cove.errors import CoveError, GitFailed
from cove.model import ExecResult, GitClone
from cove.runtime.errand import Errands
from cove.runtime.exec import run_command
from cove.runtime.file_access import FileAccess
from cove.runtime.spawner import Spawner

_MISSING = "cove: git: command not found"


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
        """See api.Git."""
        clone = plan_clone(url, path, branch=branch, depth=depth, token=token)
        seconds = check_timeout(timeout)
        where = resolve_path(self._base(), clone.path)
        is_new = await self._access.stat_or_none(where) is None
        try:
            result = await self._run([*clone.argv[:-1], decode_path(where)], clone.env, seconds)
            if self._spawner.closed:
                raise self._spawner.link.explain(True)
            if not result.ok:
                raise explain_failure(clone, result.stderr, timed_out=result.timed_out)
        except BaseException as error:
            if is_new and not self._spawner.closed:
                await self._remove(where)
            if isinstance(error, GitFailed) and _MISSING in error.message:
                raise GitFailed("git is not installed on this machine: `sudo apt install git`") from None
            raise
        return await self._describe(where)

    async def _describe(self, where: bytes) -> GitClone:
        """What has been checked out."""
        path = decode_path(where)
        commit = await self._run(["git", "-C", path, "rev-parse", "--verify", "--quiet", "HEAD"], {}, None)
        branch = await self._run(["git", "-C", path, "symbolic-ref", "--short", "--quiet", "HEAD"], {}, None)
        return GitClone(
            path=path.rstrip("/"), branch=branch.stdout.strip() or None, commit=commit.stdout.strip() or None
        )

    async def _run(self, argv: list[str], env: Mapping[str, str], timeout: float | None) -> ExecResult:
        merged = merge_environment(self._environment(), env)
        invocation = build_invocation(argv, cwd=self._base(), env=merged)
        return await run_command(self._spawner, argv, invocation, timeout=timeout, stdin=None, max_output=1 << 16)

    async def _remove(self, where: bytes) -> None:
        """What a clone that was ended left behind; git itself removes it when it fails on its own."""
        try:
            await self._errands.run("remove", where, subject=decode_path(where))
        except CoveError:
            return  # there is nothing, or the clone's own failure is what the caller shall hear of
