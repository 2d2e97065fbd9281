"""Interface of a session: a shell with state."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from cove.api.files import Files
from cove.api.named import Named
from cove.api.process import Process
from cove.model import ExecResult


class Session(Named, ABC):
    """A persistent bash: what one command leaves behind, the next one finds."""

    id: str
    files: Files

    @abstractmethod
    async def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
        stdin: bytes | str | None = None,
        max_output: int | None = None,
    ) -> ExecResult:
        """Run one command in the shell. Commands of one session run one at a time, in the order they came.

        `cwd` and `env` hold for this call only. When `timeout` is over the command is interrupted and the session
        goes on with its state; if bash cannot be brought back, it is restarted and the result says so. The time
        counts from the call: a command whose turn has not come by then is not started. A command that ends the
        shell (`exit`, `exec`) raises SessionTerminated.

        It returns when the command has ended. To read output while it comes, start a process:

            process = await session.start_process(command, keep=False)
            async for event in process.logs(): ...
            exit = await process.wait()
        """

    @abstractmethod
    async def start_process(
        self,
        command: str | Sequence[str],
        *,
        id: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
        stdin: bool = False,
        keep: bool = True,
        lossless: bool = False,
    ) -> Process:
        """Start a process from a copy of the session's state; it changes nothing in the session.

        A session with more than 16 MiB of state raises LimitExceeded here.
        """

    @abstractmethod
    async def set_env(self, env: Mapping[str, str | None]) -> None:
        """Export variables in the shell; None unsets."""

    @abstractmethod
    async def fork(self) -> "Session":
        """Copy the session with its state: directory, variables, functions, options, aliases, limits, umask.

        It waits for its turn like a command. The copy is a session of its own, with a new id and another shell. Jobs,
        traps and open descriptors are not copied. A session with more than 16 MiB of state raises LimitExceeded.
        """

    @abstractmethod
    async def cwd(self) -> str:
        """Return the working directory after the last completed command."""

    @abstractmethod
    async def env(self) -> dict[str, str]:
        """Return the exported variables after the last completed command; LimitExceeded where they are over 2 MiB."""

    @abstractmethod
    async def delete(self) -> None:
        """End the shell, its running command and every process it started. Idempotent."""
