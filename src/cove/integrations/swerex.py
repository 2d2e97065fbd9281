"""SWE-ReX's deployment and runtime on Cove: what SWE-agent needs to work in a sandbox."""

import errno
import logging
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict
from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex.exceptions import (
    CommandTimeoutError,
    DeploymentNotStartedError,
    DeploymentStartupError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex.runtime.abstract import (
    AbstractRuntime,
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionRequest,
    CloseBashSessionResponse,
    CloseResponse,
    Command,
    CommandResponse,
    CreateBashSessionRequest,
    CreateBashSessionResponse,
    IsAliveResponse,
    ReadFileRequest,
    ReadFileResponse,
    UploadRequest,
    UploadResponse,
    WriteFileRequest,
    WriteFileResponse,
)
from swerex.utils.log import get_logger

from cove.api import AsyncSandbox
from cove.errors import CoveError, FileNotFound, IsDirectory, PermissionDenied
from cove.integrations.swerex_session import BashSession
from cove.local.threads import in_thread
from cove.model import ExecResult, Limits, Mount, NetworkPolicy, SandboxStatus, SpecFields

_MOST_OUTPUT = 16 << 20


class CoveDeploymentConfig(BaseModel):
    """The sandbox of a deployment.

    `network` is none, internet, or the names that may be reached; `mounts` are the host's directories and where they
    are inside, writable. With `url` it is on that server, as with COVE_URL; its key is COVE_API_KEY.
    """

    model_config = ConfigDict(extra="forbid")

    type: Literal["cove"] = "cove"
    image: str = "host"
    user: str | None = None
    workdir: str = "/workspace"
    env: dict[str, str] = {}
    network: Literal["none", "internet"] | list[str] = "none"
    mounts: dict[str, str] = {}
    memory: int | None = None
    cpus: float | None = None
    lifetime: float | None = None
    url: str | None = None

    def get_deployment(self) -> "CoveDeployment":
        """Make the deployment, as SWE-ReX does of its own configurations."""
        return CoveDeployment.from_config(self)

    def fields(self) -> SpecFields:
        """Return what the sandbox is created with."""
        network = self.network if isinstance(self.network, str) else NetworkPolicy(allow=tuple(self.network))
        return SpecFields(
            image=self.image,
            user=self.user,
            workdir=self.workdir,
            env=self.env,
            network=network,
            mounts=[Mount(source=source, target=target, read_only=False) for source, target in self.mounts.items()],
            limits=Limits(memory=self.memory, cpus=self.cpus),
            lifetime=self.lifetime,
        )


class CoveRuntime(AbstractRuntime):
    """Runs commands, sessions and file operations in one sandbox."""

    def __init__(self, sandbox: AsyncSandbox, *, logger: logging.Logger | None = None) -> None:
        self.sandbox = sandbox
        self.logger = logger or get_logger("rex-runtime")
        self._sessions: dict[str, BashSession] = {}

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Say whether the sandbox runs."""
        try:
            status = (await self.sandbox.info()).status
        except CoveError as error:
            return IsAliveResponse(is_alive=False, message=str(error))
        return IsAliveResponse(is_alive=status is SandboxStatus.RUNNING, message=f"the sandbox is {status}")

    async def create_session(self, request: CreateBashSessionRequest) -> CreateBashSessionResponse:
        """Start a shell under a name."""
        if request.session in self._sessions:
            raise SessionExistsError(f"session {request.session} already exists")
        session = self._sessions[request.session] = BashSession(self.sandbox)
        try:
            output = await session.start(request.startup_source, request.startup_timeout)
        except BaseException:
            del self._sessions[request.session]
            await session.close()
            raise
        return CreateBashSessionResponse(output=output)

    async def run_in_session(self, action: BashAction | BashInterruptAction) -> BashObservation:
        """Run a command in a session, type to what runs there, or interrupt it."""
        session = self._find(action.session)
        if isinstance(action, BashInterruptAction):
            return await session.interrupt(action)
        return await session.run(action)

    async def close_session(self, request: CloseBashSessionRequest) -> CloseBashSessionResponse:
        """End a shell and all that it started."""
        await self._find(request.session).close()
        del self._sessions[request.session]
        return CloseBashSessionResponse()

    def _find(self, name: str) -> BashSession:
        if name not in self._sessions:
            raise SessionDoesNotExistError(f"session {name!r} does not exist")
        return self._sessions[name]

    async def execute(self, command: Command) -> CommandResponse:
        """Run a command on its own, as `subprocess.run` does."""
        words = _words(command)
        result = await self.sandbox.exec(
            words, cwd=command.cwd, env=command.env, timeout=command.timeout, max_output=_MOST_OUTPUT
        )
        if result.timed_out:
            raise CommandTimeoutError(f"Timeout ({command.timeout}s) exceeded while running command")
        response = _response(result)
        if command.check and not result.ok:
            message = f"Command {command.command!r} failed with exit code {result.exit_code}: {response}"
            raise NonZeroExitCodeError(f"{command.error_msg}: {message}" if command.error_msg else message)
        return response

    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        """Read a text file."""
        with _translated(request.path):
            content = await self.sandbox.files.read(request.path)
        return ReadFileResponse(content=content.decode(request.encoding or "utf-8", request.errors or "strict"))

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        """Write a text file; missing directories are made."""
        with _translated(request.path):
            await self.sandbox.files.write(request.path, request.content)
        return WriteFileResponse()

    async def upload(self, request: UploadRequest) -> UploadResponse:
        """Copy a file or directory of the caller's into the sandbox."""
        source = Path(request.source_path)
        with _translated(request.target_path):
            if await in_thread(source.is_dir):
                await self.sandbox.files.upload(request.source_path, request.target_path)
            else:
                await self.sandbox.files.write(request.target_path, await in_thread(source.read_bytes))
        return UploadResponse()

    async def close(self) -> CloseResponse:
        """End all sessions."""
        while self._sessions:
            _, session = self._sessions.popitem()
            await session.close()
        return CloseResponse()


class CoveDeployment(AbstractDeployment):
    """Makes the sandbox and destroys it: in this program, or on a server."""

    _runtime: CoveRuntime | None = None  # also of one that was refused, which is stopped when it is collected

    def __init__(self, *, logger: logging.Logger | None = None, **fields: object) -> None:
        self._config = CoveDeploymentConfig.model_validate(fields)
        self.logger = logger or get_logger("rex-deploy")
        self._hooks = CombinedDeploymentHook()

    @classmethod
    def from_config(cls, config: CoveDeploymentConfig) -> "CoveDeployment":
        """Make one of its configuration."""
        return cls(**config.model_dump())

    def add_hook(self, hook: DeploymentHook) -> None:
        """Tell a hook of its steps."""
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Say whether the sandbox runs."""
        return await self.runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        """Create the sandbox."""
        if self._runtime is not None:
            return
        self._hooks.on_custom_step("Creating the sandbox")
        try:
            sandbox = await AsyncSandbox.create(url=self._config.url, **self._config.fields())
        except CoveError as error:
            raise DeploymentStartupError(str(error)) from error
        self._runtime = CoveRuntime(sandbox, logger=self.logger)

    async def stop(self) -> None:
        """Destroy the sandbox. Idempotent."""
        if self._runtime is not None:
            runtime, self._runtime = self._runtime, None
            try:
                await runtime.close()
            finally:
                await runtime.sandbox.destroy()

    @property
    def runtime(self) -> CoveRuntime:
        """Return the runtime, once it is started."""
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime


def _words(command: Command) -> str | list[str]:
    """Return what is run: a string by bash, a list as it is, with its streams merged where that is wanted."""
    if isinstance(command.command, str):
        words = ["bash", "-c", command.command] if command.shell else [command.command]
    else:
        words = list(command.command)
    return ["bash", "-c", 'exec "$@" 2>&1', "bash", *words] if command.merge_output_streams else words


def _response(result: ExecResult) -> CommandResponse:
    return CommandResponse(
        stdout=result.stdout_bytes.decode("utf-8", "backslashreplace"),
        stderr=result.stderr_bytes.decode("utf-8", "backslashreplace"),
        exit_code=result.exit_code,
    )


@contextmanager
def _translated(path: str) -> Generator[None, None, None]:
    """Raise Python's own errors for Cove's."""
    try:
        yield
    except FileNotFound as error:
        raise FileNotFoundError(errno.ENOENT, str(error), path) from error
    except IsDirectory as error:
        raise IsADirectoryError(errno.EISDIR, str(error), path) from error
    except PermissionDenied as error:
        raise PermissionError(errno.EACCES, str(error), path) from error
