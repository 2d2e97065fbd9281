"""Inspect AI's sandbox `cove`: a sandbox for each sample, in the program that evaluates or on a server.

The package registers it by the entry point group `inspect_ai`: `sandbox="cove"` in a task is all.
"""

import errno
import os
import shlex
from collections.abc import Generator
from contextlib import contextmanager
from typing import ClassVar, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)

from cove.api import AsyncSandbox
from cove.errors import (
    CoveError,
    FileExists,
    FileNotFound,
    FileTooLarge,
    IsDirectory,
    NotDirectory,
    PermissionDenied,
    SandboxNotFound,
    UserUnavailable,
)
from cove.integrations.inspect_config import FILES, CoveSandboxConfig, read_config
from cove.local.threads import in_thread
from cove.model import ExecResult as CoveResult
from cove.tasks import settled

# The label of all sandboxes that are made here.
LABEL = "inspect"
_NOT_EXECUTABLE = 126
_PER_CORE = 8
_LABEL_CHARACTERS = 200
_ERRORS: dict[type[CoveError], tuple[type[OSError], int]] = {
    FileNotFound: (FileNotFoundError, errno.ENOENT),
    IsDirectory: (IsADirectoryError, errno.EISDIR),
    NotDirectory: (NotADirectoryError, errno.ENOTDIR),
    FileExists: (FileExistsError, errno.EEXIST),
    PermissionDenied: (PermissionError, errno.EACCES),
}


@sandboxenv(name="cove")
class CoveSandboxEnvironment(SandboxEnvironment):
    """One sandbox of a sample. `living` has all that were not cleaned up yet."""

    living: ClassVar[dict[str, "CoveSandboxEnvironment"]] = {}

    def __init__(self, sandbox: AsyncSandbox, config: CoveSandboxConfig) -> None:
        super().__init__()
        self.sandbox = sandbox
        self.config = config

    @classmethod
    def config_files(cls) -> list[str]:
        """Name the files that are found beside a task."""
        return FILES

    @classmethod
    def config_deserialize(cls, config: dict[str, object]) -> CoveSandboxConfig:
        """Read a configuration from a log."""
        return CoveSandboxConfig.model_validate(config)

    @classmethod
    def default_concurrency(cls) -> int:
        """Return how many samples have a sandbox at once, unless `max_sandboxes` says otherwise."""
        return _PER_CORE * len(os.sched_getaffinity(0))

    @classmethod
    async def sample_init(
        cls, task_name: str, config: object, metadata: dict[str, str]
    ) -> "dict[str, SandboxEnvironment]":
        """Create the sandbox of a sample and run the setup of the configuration. A cancel leaves nothing."""
        chosen = await in_thread(read_config, config)
        fields = chosen.fields()
        fields["labels"] = {LABEL: _label(task_name), "sample": _label(str(metadata.get("__sample_id__", "")))}
        sandbox = await AsyncSandbox.create(url=chosen.url, **fields)
        made = cls.living[sandbox.id] = cls(sandbox, chosen)
        try:
            await made.set_up()
        except BaseException:
            await made.end()
            raise
        return {"default": made}

    async def set_up(self) -> None:
        """Run the setup script of the configuration, if there is one."""
        if self.config.setup is not None:
            result = await self.sandbox.exec(
                self.config.setup, timeout=self.config.setup_timeout, user=self.config.setup_user
            )
            if not result.ok:
                raise RuntimeError(
                    f"the setup of sandbox 'cove' {result.outcome} with {result.exit_code}: {result.stderr[-2000:]}"
                )

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: object, environments: "dict[str, SandboxEnvironment]", interrupted: bool
    ) -> None:
        """Destroy the sandboxes of a sample."""
        for each in environments.values():
            await each.as_type(CoveSandboxEnvironment).end()

    @classmethod
    async def task_cleanup(cls, task_name: str, config: object, cleanup: bool) -> None:
        """Destroy what no sample has cleaned up; without `cleanup`, say what stays on a server."""
        for each in list(cls.living.values()):
            if cleanup:
                await each.end()
            elif each.is_on_server:
                print(f"Sandbox {each.sandbox.id} stays: inspect sandbox cleanup cove {each.sandbox.id}")  # noqa: T201  # as Inspect's own do

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Destroy the sandboxes that evaluations have left on the server of COVE_URL: all, or that one."""
        if "COVE_URL" not in os.environ:
            print("Sandboxes in a program end with it: nothing is left. COVE_URL names a server.")  # noqa: T201  # as above
            return
        found = [each.id for each in await AsyncSandbox.list() if LABEL in each.spec.labels]
        if id is not None and id not in found:
            raise SandboxNotFound(f"no evaluation has left a sandbox {id}", id=id)
        for each in found if id is None else [id]:
            await (await AsyncSandbox.connect(each)).destroy()
            print(f"Destroyed {each}")  # noqa: T201  # as above

    async def end(self) -> None:
        """Destroy the sandbox. Idempotent; a cancel waits for it."""
        self.living.pop(self.sandbox.id, None)
        await settled(self.sandbox.destroy())

    @property
    def is_on_server(self) -> bool:
        """Return whether others can reach it."""
        return bool(self.config.url or os.environ.get("COVE_URL"))

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> "ExecResult[str]":
        """Run a command. A timeout ends all that it started, so there is nothing to retry."""
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        with _translated(cmd[0] if cmd else ""):
            result = await self.sandbox.exec(
                cmd, stdin=input, cwd=cwd, env=env, user=user, timeout=timeout, max_output=limit
            )
        _check(result, timeout)
        return ExecResult(success=result.ok, returncode=result.exit_code, stdout=result.stdout, stderr=result.stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file; missing directories are made."""
        with _translated(file):
            await self.sandbox.files.write(file, contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a file of a bounded size, exactly."""
        limit, content = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE, bytearray()
        with _translated(file):
            async for chunk in self.sandbox.files.read_stream(file, end=limit + 1):
                content += chunk
        if len(content) > limit:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return content.decode("utf-8") if text else bytes(content)

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """Say how a person gets a terminal in it, on a server."""
        if not self.is_on_server:
            raise NotImplementedError(
                "a sandbox in this program can be reached from it alone: name a server by COVE_URL, or `url`"
            )
        if (await self._status()) != "running":
            raise ConnectionError(f"sandbox {self.sandbox.id} does not run")
        words = ["cove", "shell", "--in", self.sandbox.id]
        words += [] if self.config.url is None else ["--url", self.config.url]
        words += [] if user is None else ["--", "su", "-", user]
        return SandboxConnection(type="cove", command=shlex.join(words), container=self.sandbox.id)

    async def _status(self) -> str:
        try:
            return (await self.sandbox.info()).status
        except CoveError as error:
            raise ConnectionError(f"sandbox {self.sandbox.id}: {error}") from error

    def default_polling_interval(self) -> float:
        """Return the seconds between two looks of Inspect's own tools."""
        return 0.2


def _check(result: CoveResult, timeout: int | None) -> None:
    """Raise what Inspect expects to be raised for some ends of a command."""
    if result.is_infrastructure_failure:
        raise SandboxUnavailableError("the sandbox was lost while the command ran")
    if result.timed_out:
        error = TimeoutError(f"Command timed out after {timeout} seconds")
        error.truncated_output = result.stdout + result.stderr  # type: ignore[attr-defined]  # where Inspect looks
        raise error
    if result.truncated:
        raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, result.stdout + result.stderr)
    if result.exit_code == _NOT_EXECUTABLE and result.stderr.startswith("cove: "):
        raise PermissionError(errno.EACCES, result.stderr.strip())


@contextmanager
def _translated(name: str) -> Generator[None, None, None]:
    """Raise Python's own errors for Cove's."""
    try:
        yield
    except UserUnavailable as error:
        raise SandboxUserUnsupportedError(str(error)) from error
    except FileTooLarge as error:
        raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from error
    except CoveError as error:
        if error.is_infrastructure_failure:
            raise SandboxUnavailableError(str(error)) from error
        kind, number = _ERRORS.get(type(error), (None, 0))
        if kind is None:
            raise
        raise kind(number, str(error), name) from error


def _label(text: str) -> str:
    """Return what may be the value of a label."""
    return "".join(each if each.isprintable() else "?" for each in text)[:_LABEL_CHARACTERS]
