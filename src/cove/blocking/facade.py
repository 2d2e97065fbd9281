"""The blocking classes. Made from cove.api by scripts/make_blocking.py; change that, then run it."""

import builtins
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Literal, Self, TypeVar, Unpack

from cove import api
from cove.blocking.portal import Portal, get_portal
from cove.model import (
    CodeContextInfo,
    CodeEvent,
    ExecResult,
    Execution,
    LogEvent,
    LogMatch,
    Outcome,
    ProcessExit,
    ProcessStatus,
    SandboxInfo,
    SandboxSpec,
    SessionInfo,
    SpecFields,
    TerminalEvent,
    TerminalInfo,
)

T = TypeVar("T", bound=api.Destroyable)


async def _opened(opening: "api.Opening[T]") -> T:
    return await opening


def _inner(context: "CodeContext | str | None") -> api.CodeContext | str | None:
    return context._inner if isinstance(context, CodeContext) else context


class Process:
    """A process with an id, a log and an end. Its attributes are as of the last `refresh`."""

    def __init__(self, inner: api.Process, portal: Portal, *, owned: bool = True) -> None:
        self._inner = inner
        self._portal = portal
        self._owned = owned

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def pid(self) -> int:
        return self._inner.pid

    @property
    def command(self) -> str | Sequence[str]:
        return self._inner.command

    @property
    def session_id(self) -> str | None:
        return self._inner.session_id

    @property
    def started_at(self) -> datetime:
        return self._inner.started_at

    @property
    def ended_at(self) -> datetime | None:
        return self._inner.ended_at

    @property
    def status(self) -> ProcessStatus:
        return self._inner.status

    @property
    def outcome(self) -> Outcome | None:
        return self._inner.outcome

    @property
    def exit_code(self) -> int | None:
        return self._inner.exit_code

    @property
    def signal(self) -> int | None:
        return self._inner.signal

    def refresh(self) -> "Process":
        """Bring the attributes up to date; returns self."""
        return Process(self._portal.call(lambda: self._inner.refresh()), self._portal)

    def kill(self, signal: int | str = "TERM") -> None:
        """Signal the whole tree. KILL returns when nothing of it is left. An ended process does not mind."""
        self._portal.call(lambda: self._inner.kill(signal))

    def terminate(self, grace: float = 5.0) -> None:
        """TERM, then KILL after `grace` seconds; returns when the whole tree is gone."""
        self._portal.call(lambda: self._inner.terminate(grace))

    def wait(self, timeout: float | None = None) -> ProcessExit:
        """How it ended. After `timeout` seconds raises ProcessWaitTimeout; the process runs on."""
        return self._portal.call(lambda: self._inner.wait(timeout))

    def output(self, timeout: float | None = None) -> ExecResult:
        """Wait for the end and give what was printed, as `exec` would."""
        return self._portal.call(lambda: self._inner.output(timeout))

    def logs(self, *, since: str | None = None, follow: bool = True) -> Generator[LogEvent, None, None]:
        """Everything printed after the cursor `since` (default: from the beginning), then Exit.

        Without `follow` it stops at what is there now. Leaving early frees everything at once.
        """
        return self._portal.iterate(self._inner.logs(since=since, follow=follow))

    def wait_for_log(self, pattern: str | re.Pattern[str], *, timeout: float | None = None) -> LogMatch:
        """The first line, already printed or to come, that contains the text or matches the expression.

        A text is also found in a line that has not ended yet; an expression sees whole lines only.
        """
        return self._portal.call(lambda: self._inner.wait_for_log(pattern, timeout=timeout))

    def wait_for_port(
        self,
        port: int,
        *,
        mode: Literal["http", "tcp"] = "http",
        path: str = "/",
        status: tuple[int, int] = (200, 399),
        timeout: float | None = None,
    ) -> None:
        """Wait until something listens on that port inside the sandbox and, for http, answers in that status range."""
        self._portal.call(lambda: self._inner.wait_for_port(port, mode=mode, path=path, status=status, timeout=timeout))

    def write_stdin(self, data: bytes | str) -> None:
        """Write to its standard input; needs `stdin=True` at the start."""
        self._portal.call(lambda: self._inner.write_stdin(data))

    def close_stdin(self) -> None:
        """End its standard input. Idempotent."""
        self._portal.call(lambda: self._inner.close_stdin())


class Session:
    """A persistent bash: what one command leaves behind, the next one finds."""

    def __init__(self, inner: api.Session, portal: Portal, *, owned: bool = True) -> None:
        self._inner = inner
        self._portal = portal
        self._owned = owned

    @property
    def id(self) -> str:
        return self._inner.id

    def exec(
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
        goes on with its state; if bash cannot be brought back, it is restarted and the result says so. A command
        that ends the shell (`exit`, `exec`) raises SessionTerminated.
        """
        return self._portal.call(
            lambda: self._inner.exec(command, cwd=cwd, env=env, timeout=timeout, stdin=stdin, max_output=max_output)
        )

    def start_process(
        self,
        command: str | Sequence[str],
        *,
        id: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
        stdin: bool = False,
        keep: bool = True,
    ) -> "Process":
        """Start a process from a copy of the session's state; it changes nothing in the session."""
        return Process(
            self._portal.call(
                lambda: self._inner.start_process(
                    command, id=id, cwd=cwd, env=env, timeout=timeout, stdin=stdin, keep=keep
                )
            ),
            self._portal,
        )

    def set_env(self, env: Mapping[str, str | None]) -> None:
        """Export variables in the shell; None unsets."""
        self._portal.call(lambda: self._inner.set_env(env))

    def cwd(self) -> str:
        """The working directory after the last completed command."""
        return self._portal.call(lambda: self._inner.cwd())

    def env(self) -> dict[str, str]:
        """The exported variables after the last completed command."""
        return self._portal.call(lambda: self._inner.env())

    def delete(self) -> None:
        """End the shell, its running command and every process it started. Idempotent."""
        self._portal.call(lambda: self._inner.delete())


class TerminalConnection:
    """One viewer of a terminal, opened and closed by `with` and iterated for its events.

    First comes what the terminal has kept (Output), then Ready, then live Output, at last Exit.
    """

    def __init__(self, inner: api.TerminalConnection, portal: Portal, *, owned: bool = True) -> None:
        self._inner = inner
        self._portal = portal
        self._owned = owned

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[TerminalEvent]:
        return self.events()

    def open(self) -> None:
        """Start to watch: everything from here on will be seen."""
        self._portal.call(lambda: self._inner.open())

    def close(self) -> None:
        """Stop to watch; the terminal lives on. Idempotent."""
        self._portal.call(lambda: self._inner.close())

    def events(self) -> Generator[TerminalEvent, None, None]:
        """What the terminal shows."""
        return self._portal.iterate(self._inner.events())

    def write(self, data: bytes | str) -> None:
        """Type."""
        self._portal.call(lambda: self._inner.write(data))

    def resize(self, cols: int, rows: int) -> None:
        """Change the size of the terminal, for all viewers."""
        self._portal.call(lambda: self._inner.resize(cols, rows))


class Terminal:
    """A shell on a terminal of its own, with any number of viewers."""

    def __init__(self, inner: api.Terminal, portal: Portal, *, owned: bool = True) -> None:
        self._inner = inner
        self._portal = portal
        self._owned = owned

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def cols(self) -> int:
        return self._inner.cols

    @property
    def rows(self) -> int:
        return self._inner.rows

    def connect(self, *, since: str | None = None, lossless: bool = False) -> TerminalConnection:
        """A viewer; with `since`, one that has seen everything up to that cursor.

        A viewer that falls far behind gets a Gap. With `lossless` the program waits for it, as on a terminal that is
        full: such a viewer must read on, or close.
        """
        return TerminalConnection(self._inner.connect(since=since, lossless=lossless), self._portal)

    def resize(self, cols: int, rows: int) -> None:
        """Change the size, 1 to 1000 each way; programs are told."""
        self._portal.call(lambda: self._inner.resize(cols, rows))

    def destroy(self) -> None:
        """End the shell and everything it started. Viewers see the end. Idempotent."""
        self._portal.call(lambda: self._inner.destroy())


class CodeContext:
    """One executor process with state, from creation to deletion: what one run defines, the next one finds."""

    def __init__(self, inner: api.CodeContext, portal: Portal, *, owned: bool = True) -> None:
        self._inner = inner
        self._portal = portal
        self._owned = owned

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def language(self) -> str:
        return self._inner.language

    def run(self, code: str, *, timeout: float | None = None) -> Execution:
        """Run code to its end. Runs of one context take turns, in the order they came.

        An error in the code is part of the result. After `timeout` seconds the code is interrupted; the context
        lives on if it comes back. Raises ContextCrashed when the executor has ended.
        """
        return self._portal.call(lambda: self._inner.run(code, timeout=timeout))

    def stream(self, code: str, *, timeout: float | None = None) -> Generator[CodeEvent, None, None]:
        """The same as events while it runs; leaving early interrupts the code."""
        return self._portal.iterate(self._inner.stream(code, timeout=timeout))

    def interrupt(self) -> None:
        """Interrupt what runs now; nothing happens if nothing does."""
        self._portal.call(lambda: self._inner.interrupt())

    def delete(self) -> None:
        """End the executor and everything it started. Idempotent."""
        self._portal.call(lambda: self._inner.delete())


class Sandbox:
    """A Linux computer for an agent or any other program. Made by `create`, ended by `destroy`."""

    def __init__(self, inner: api.AsyncSandbox, portal: Portal, *, owned: bool = True) -> None:
        self._inner = inner
        self._portal = portal
        self._owned = owned

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._owned:
            self.destroy()

    @property
    def id(self) -> str:
        return self._inner.id

    @classmethod
    def create(
        cls,
        *,
        id: str | None = None,
        spec: SandboxSpec | None = None,
        url: str | None = None,
        api_key: str | None = None,
        **spec_fields: Unpack[SpecFields],
    ) -> "Sandbox":
        """Make a sandbox; as a context manager it is destroyed at the end.

        It lives in this program unless `url` or COVE_URL names a server. Fields of SandboxSpec can be given
        directly: `create(network="host", env={"A": "1"})`.
        """
        return Sandbox(
            get_portal().call(
                lambda: _opened(api.AsyncSandbox.create(id=id, spec=spec, url=url, api_key=api_key, **spec_fields))
            ),
            get_portal(),
        )

    @classmethod
    def connect(cls, id: str, *, url: str | None = None, api_key: str | None = None) -> "Sandbox":
        """The sandbox with that id; raises SandboxNotFound. Leaving `with` detaches and destroys nothing."""
        return Sandbox(
            get_portal().call(lambda: _opened(api.AsyncSandbox.connect(id, url=url, api_key=api_key))),
            get_portal(),
            owned=False,
        )

    @classmethod
    def list(cls, *, url: str | None = None, api_key: str | None = None) -> builtins.list[SandboxInfo]:
        """The sandboxes of this program, or of the server."""
        return get_portal().call(lambda: api.AsyncSandbox.list(url=url, api_key=api_key))

    def info(self) -> SandboxInfo:
        """What the sandbox is, and what the machine made possible."""
        return self._portal.call(lambda: self._inner.info())

    def destroy(self) -> None:
        """End everything in it and remove all it has on disk. Idempotent."""
        self._portal.call(lambda: self._inner.destroy())

    def set_env(self, env: Mapping[str, str | None]) -> None:
        """Change the environment of what starts later; None unsets."""
        self._portal.call(lambda: self._inner.set_env(env))

    def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
        stdin: bytes | str | None = None,
        max_output: int | None = None,
    ) -> ExecResult:
        """Run one command, wait for it, and give its result. No state is kept from call to call.

        A string is run as `bash -c` would; a list is run without a shell. When `timeout` is over, everything the
        command started is ended and the result says `timed_out`.
        """
        return self._portal.call(
            lambda: self._inner.exec(command, cwd=cwd, env=env, timeout=timeout, stdin=stdin, max_output=max_output)
        )

    def start_process(
        self,
        command: str | Sequence[str],
        *,
        id: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
        stdin: bool = False,
        keep: bool = True,
    ) -> "Process":
        """Start a process that lives on its own; returns once it runs.

        After its end it is remembered, with its log, until `cleanup_processes`; with `keep=False` it is forgotten
        when it has ended and its readers are done.
        """
        return Process(
            self._portal.call(
                lambda: self._inner.start_process(
                    command, id=id, cwd=cwd, env=env, timeout=timeout, stdin=stdin, keep=keep
                )
            ),
            self._portal,
        )

    def get_process(self, id: str) -> "Process":
        """The process with that id; raises ProcessNotFound."""
        return Process(self._portal.call(lambda: self._inner.get_process(id)), self._portal)

    def list_processes(self) -> builtins.list["Process"]:
        """All running and remembered processes, oldest first."""
        return [Process(each, self._portal) for each in self._portal.call(lambda: self._inner.list_processes())]

    def kill_process(self, id: str, signal: int | str = "TERM") -> None:
        """Signal the whole tree of that process."""
        self._portal.call(lambda: self._inner.kill_process(id, signal))

    def kill_all_processes(self, signal: int | str = "TERM") -> int:
        """Signal every running process's tree; returns how many there were."""
        return self._portal.call(lambda: self._inner.kill_all_processes(signal))

    def cleanup_processes(self) -> int:
        """Forget the ended processes; returns how many there were."""
        return self._portal.call(lambda: self._inner.cleanup_processes())

    def create_session(
        self,
        *,
        id: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
    ) -> "Session":
        """A new shell; `timeout` is the default for its commands. An id whose shell has ended can be taken again."""
        return Session(
            self._portal.call(lambda: self._inner.create_session(id=id, cwd=cwd, env=env, timeout=timeout)),
            self._portal,
        )

    def get_session(self, id: str) -> "Session":
        """The session with that id; raises SessionNotFound."""
        return Session(self._portal.call(lambda: self._inner.get_session(id)), self._portal)

    def list_sessions(self) -> builtins.list[SessionInfo]:
        """All sessions, oldest first."""
        return self._portal.call(lambda: self._inner.list_sessions())

    def delete_session(self, id: str) -> None:
        """End the session with that id and everything it started."""
        self._portal.call(lambda: self._inner.delete_session(id))

    def terminal(
        self,
        *,
        id: str | None = None,
        shell: str | Sequence[str] | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        cols: int = 80,
        rows: int = 24,
    ) -> "Terminal":
        """The terminal with that id, or a new one running `shell` (default: bash)."""
        return Terminal(
            self._portal.call(lambda: self._inner.terminal(id=id, shell=shell, cwd=cwd, env=env, cols=cols, rows=rows)),
            self._portal,
        )

    def get_terminal(self, id: str) -> "Terminal":
        """The terminal with that id; raises TerminalNotFound."""
        return Terminal(self._portal.call(lambda: self._inner.get_terminal(id)), self._portal)

    def list_terminals(self) -> builtins.list[TerminalInfo]:
        """All terminals, oldest first."""
        return self._portal.call(lambda: self._inner.list_terminals())

    def create_code_context(
        self,
        language: str = "python",
        *,
        id: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
    ) -> "CodeContext":
        """A new executor process for python, javascript or typescript; `timeout` is the default for its runs."""
        return CodeContext(
            self._portal.call(
                lambda: self._inner.create_code_context(language, id=id, cwd=cwd, env=env, timeout=timeout)
            ),
            self._portal,
        )

    def get_code_context(self, id: str) -> "CodeContext":
        """The code context with that id; raises ContextNotFound."""
        return CodeContext(self._portal.call(lambda: self._inner.get_code_context(id)), self._portal)

    def list_code_contexts(self) -> builtins.list[CodeContextInfo]:
        """All code contexts, oldest first."""
        return self._portal.call(lambda: self._inner.list_code_contexts())

    def delete_code_context(self, id: str) -> None:
        """End the executor with that id and everything it started, also while code runs."""
        self._portal.call(lambda: self._inner.delete_code_context(id))

    def run_code(
        self,
        code: str,
        *,
        context: CodeContext | str | None = None,
        language: str = "python",
        timeout: float | None = None,
    ) -> Execution:
        """Run code in that context; without one, in a clean executor that is used for nothing else."""
        return self._portal.call(
            lambda: self._inner.run_code(code, context=_inner(context), language=language, timeout=timeout)
        )

    def stream_code(
        self,
        code: str,
        *,
        context: CodeContext | str | None = None,
        language: str = "python",
        timeout: float | None = None,
    ) -> Generator[CodeEvent, None, None]:
        """The same as events while it runs."""
        return self._portal.iterate(
            self._inner.stream_code(code, context=_inner(context), language=language, timeout=timeout)
        )
