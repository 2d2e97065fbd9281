"""Interface of a sandbox, wherever it runs."""

import builtins
from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Literal, Unpack

from cove.api.backups import Backups
from cove.api.code import CodeContext
from cove.api.files import Files
from cove.api.git import Git
from cove.api.image import AsyncImage
from cove.api.journal import Journaled
from cove.api.mounts import Mounts
from cove.api.named import Named
from cove.api.ports import Ports
from cove.api.process import Process
from cove.api.provider import AwaitableContext, provider_for
from cove.api.session import Session
from cove.api.sharing import Shareable
from cove.api.snapshot import AsyncSnapshot
from cove.api.terminal import Terminal
from cove.api.transaction import Transactions
from cove.model import (
    CodeContextInfo,
    CodeEvent,
    ExecResult,
    Execution,
    FileChange,
    IdleAction,
    Network,
    NetworkEvent,
    NetworkPolicy,
    ResetReport,
    SandboxInfo,
    SandboxSpec,
    SandboxStatus,
    SessionInfo,
    SpecFields,
    TerminalInfo,
    Usage,
    make_spec,
)
from cove.model.spec import HasId


class AsyncSandbox(Named, Transactions, Journaled, Shareable):
    """A Linux computer for an agent or any other program. Made by `create`, ended by `destroy`."""

    id: str
    files: Files
    git: Git
    mounts: Mounts
    ports: Ports
    backups: Backups

    @classmethod
    def create(
        cls,
        *,
        id: str | None = None,
        spec: SandboxSpec | None = None,
        url: str | None = None,
        api_key: str | None = None,
        exist_ok: bool = False,
        **spec_fields: Unpack[SpecFields],
    ) -> "AwaitableContext[AsyncSandbox]":
        """Make a sandbox; as a context manager it is destroyed at the end.

        It lives in this program unless `url` or COVE_URL names a server. Fields of SandboxSpec can be given
        directly: `create(network="host", env={"A": "1"})`. With `exist_ok` a sandbox that has the id already is
        given back as it is.
        """
        return AwaitableContext(
            lambda: provider_for(url, api_key).create(id, make_spec(spec, spec_fields), exist_ok=exist_ok), owned=True
        )

    @classmethod
    def connect(
        cls, id: str, *, url: str | None = None, api_key: str | None = None
    ) -> "AwaitableContext[AsyncSandbox]":
        """The sandbox with that id; raises SandboxNotFound. Leaving `with` detaches and destroys nothing."""
        return AwaitableContext(lambda: provider_for(url, api_key).connect(id), owned=False)

    @classmethod
    async def list(
        cls,
        *,
        labels: Mapping[str, str] | None = None,
        status: SandboxStatus | str | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> builtins.list[SandboxInfo]:
        """The sandboxes of this program, or of the server: all, or those that have these labels and this status."""
        return await provider_for(url, api_key).list(labels=labels, status=status)

    @abstractmethod
    async def info(self) -> SandboxInfo:
        """Describe the sandbox, and what the machine made possible."""

    @abstractmethod
    async def usage(self) -> Usage:
        """Measure resource usage at this moment. Counting its files takes time where there are many."""

    @abstractmethod
    async def destroy(self) -> None:
        """End everything in it and remove all it has on disk. Idempotent."""

    @abstractmethod
    async def stop(self) -> None:
        """End everything that runs; all else stays as it is until `start`. Idempotent.

        Files, environment, labels, exposed ports and sessions are there again after `start`; processes, terminals and
        code contexts have ended with the outcome `stopped`. Until then every call is SandboxStopped.
        """

    @abstractmethod
    async def start(self) -> None:
        """Start it again after `stop`, or when it is lost; resume it when it is paused. Idempotent."""

    @abstractmethod
    async def restart(self) -> None:
        """End everything that runs and start again, as `stop` and `start` do; also when it is lost."""

    @abstractmethod
    async def move(self, node: str | None = None) -> None:
        """Move it to another node of the cluster, or to that with most room; only while it is stopped. Idempotent.

        Its id, files, environment, labels, lifetime, journal and sessions go with it. If that fails, it is where it
        was. While it is moved, calls are SandboxUnavailable: nothing was started, try again.
        """

    @abstractmethod
    async def pause(self, *, wake: bool = True) -> None:
        """Freeze everything in it where it stands, and keep its memory. Idempotent.

        The next call resumes it; without `wake` only `resume` does, and other calls are SandboxPaused. Time stands
        still inside: what a command has left of its timeout it still has when it goes on. Without isolation it is
        ValidationFailed.
        """

    @abstractmethod
    async def resume(self) -> None:
        """Let everything in it go on after `pause`. Idempotent."""

    @abstractmethod
    async def set_lifetime(self, seconds: float | None) -> None:
        """Destroy it so many seconds from now, whatever was said before; None: never by itself."""

    @abstractmethod
    async def set_idle_timeout(
        self, seconds: float | None, *, action: IdleAction | Literal["stop", "pause"] = IdleAction.STOP
    ) -> None:
        """Stop or pause it when it has been idle for so long, until the next call; None: never. Ends `keep_alive`."""

    @abstractmethod
    async def set_labels(self, labels: Mapping[str, str]) -> None:
        """Replace its labels, by which `list` finds it."""

    @abstractmethod
    async def detach(self) -> None:
        """Let go of the connection to a server; the sandbox lives on. One in this program has none."""

    @abstractmethod
    async def set_env(self, env: Mapping[str, str | None]) -> None:
        """Change the environment of what starts later; None unsets."""

    @abstractmethod
    async def set_network(self, network: Network | NetworkPolicy | Literal["none", "internet"]) -> None:
        """Let this policy hold from now on, for open connections too.

        A sandbox with the host's network keeps it, and no other gets it: ValidationFailed. When something inside
        listens on a port of the policy already, it is PortInUse and the old policy stays.
        """

    @abstractmethod
    def network_log(self, *, since: str | None = None, follow: bool = False) -> AsyncGenerator[NetworkEvent, None]:
        """Read what the policy allowed and refused, from the cursor of an event on; with `follow`, as it happens."""

    @abstractmethod
    async def snapshot(self, name: str | None = None, labels: Mapping[str, str] | None = None) -> AsyncSnapshot:
        """Keep the files as they are at this moment: /workspace, /home/user and /tmp.

        Everything that a command has written which returned before the call is in it, and nothing of one that begins
        after it. Mounts, /dev/shm and /run are not. Sessions are: directory, variables, functions, options and
        aliases; one in the middle of a command as its state was last known before. It costs the same whatever there
        is; while a process stands in those directories or holds files of them open, what was written since the last
        snapshot is copied.
        """

    @abstractmethod
    async def commit(self, name: str) -> AsyncImage:
        """Make an image of a sandbox on an image: that image, and all that was written since, as it is now.

        It has the sandbox's user and the variables and settings of its image; `set_env`, mounts and volumes are not in
        it. An image with the same name is replaced. ValidationFailed for a sandbox on the host's system.
        """

    @abstractmethod
    async def restore(self, snapshot: "str | HasId") -> None:
        """Go back to a snapshot, of this sandbox or of another: everything that runs is ended first.

        Sessions are those of the snapshot, with the same ids and as they were then; who holds one goes on with it.
        Other sessions, processes, terminals and contexts are gone.
        """

    @abstractmethod
    async def fork(self, count: int = 1) -> "builtins.list[AsyncSandbox]":
        """Make so many copies of this sandbox as it is now, each with an id, processes and limits of its own.

        They stand on the same layers and share nothing else; each has the sessions, by the same ids. When not all of
        them can be made, none is.
        """

    @abstractmethod
    async def changes(self, since: "str | HasId | None" = None) -> "builtins.list[FileChange]":
        """List the files that differ from those at its creation, or in that snapshot, sorted by path."""

    @abstractmethod
    async def diff(self, path: str | None = None, since: "str | HasId | None" = None) -> str:
        """Write the differences as a patch, of all files or of those at or below a path; binary files are named."""

    @abstractmethod
    async def reset(self) -> ResetReport:
        """Make it as it was created, and say by what that is proven.

        Everything in it ends with its jail, and another one begins on the files of its creation: no process, session,
        terminal or context, nothing in /dev/shm. Environment, network policy, mounts and labels are those of its
        creation again, and no port is exposed. What is in mounts, the network's log and the end of its lifetime stay.
        """

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
        user: str | None = None,
    ) -> ExecResult:
        """Run one command, wait for it, and give its result. No state is kept from call to call.

        A string is run as `bash -c` would; a list is run without a shell. When `timeout` is over, everything the
        command started is ended and the result says `timed_out`. With `user`, a name or number of the sandbox's, it
        runs as that one, with its HOME; UserUnavailable where the sandbox has one user.

        It returns when the command has ended. To read output while it comes, start a process:

            process = await sandbox.start_process(command, keep=False)
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
        user: str | None = None,
    ) -> Process:
        """Start a process that lives on its own; returns once it runs.

        After its end it is remembered, with its log, until `cleanup_processes`; with `keep=False` it is forgotten
        when it has ended and its readers are done. With `lossless` it waits, as on any full pipe, when half a megabyte
        of its output is unread, until somebody calls `logs(lossless=True)` or `output`: such a reader has no Gap.
        """

    @abstractmethod
    async def get_process(self, id: str) -> Process:
        """The process with that id; raises ProcessNotFound."""

    @abstractmethod
    async def list_processes(self) -> builtins.list[Process]:
        """All running and remembered processes, oldest first."""

    @abstractmethod
    async def kill_process(self, id: str, signal: int | str = "TERM") -> None:
        """Signal the whole tree of that process."""

    @abstractmethod
    async def kill_all_processes(self, signal: int | str = "TERM") -> int:
        """Signal every running process's tree; returns how many there were."""

    @abstractmethod
    async def cleanup_processes(self) -> int:
        """Forget the ended processes; returns how many there were."""

    @abstractmethod
    async def create_session(
        self,
        *,
        id: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
        user: str | None = None,
    ) -> Session:
        """A new shell; `timeout` is the default for its commands. An id whose shell has ended can be taken again."""

    @abstractmethod
    async def get_session(self, id: str) -> Session:
        """The session with that id; raises SessionNotFound."""

    @abstractmethod
    async def list_sessions(self) -> builtins.list[SessionInfo]:
        """All sessions, oldest first."""

    @abstractmethod
    async def delete_session(self, id: str) -> None:
        """End the session with that id and everything it started."""

    @abstractmethod
    async def terminal(
        self,
        *,
        id: str | None = None,
        shell: str | Sequence[str] | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        cols: int = 80,
        rows: int = 24,
        user: str | None = None,
    ) -> Terminal:
        """The terminal with that id, or a new one running `shell` (default: bash)."""

    @abstractmethod
    async def get_terminal(self, id: str) -> Terminal:
        """The terminal with that id; raises TerminalNotFound."""

    @abstractmethod
    async def list_terminals(self) -> builtins.list[TerminalInfo]:
        """All terminals, oldest first."""

    @abstractmethod
    async def create_code_context(
        self,
        language: str = "python",
        *,
        id: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
        user: str | None = None,
    ) -> CodeContext:
        """A new executor process for python, javascript or typescript; `timeout` is the default for its runs."""

    @abstractmethod
    async def get_code_context(self, id: str) -> CodeContext:
        """The code context with that id; raises ContextNotFound."""

    @abstractmethod
    async def list_code_contexts(self) -> builtins.list[CodeContextInfo]:
        """All code contexts, oldest first."""

    @abstractmethod
    async def delete_code_context(self, id: str) -> None:
        """End the executor with that id and everything it started, also while code runs."""

    @abstractmethod
    async def run_code(
        self,
        code: str,
        *,
        context: CodeContext | str | None = None,
        language: str = "python",
        timeout: float | None = None,
    ) -> Execution:
        """Run code in that context; without one, in a clean executor that is used for nothing else."""

    @abstractmethod
    def stream_code(
        self,
        code: str,
        *,
        context: CodeContext | str | None = None,
        language: str = "python",
        timeout: float | None = None,
    ) -> AsyncGenerator[CodeEvent, None]:
        """The same as events while it runs."""
