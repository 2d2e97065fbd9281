"""A session: a shell with state, its queue, and its recovery."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from cove import api
from cove.agent.protocol import ProtocolError
from cove.core.capture import Capture
from cove.core.command import build_invocation, check_environment, check_timeout, encode_text
from cove.core.session_script import (
    CWD_STATUS,
    READONLY_STATUS,
    RESTORE_SCRIPT,
    apply_script,
    process_invocation,
    set_script,
)
from cove.core.shell_protocol import Exports, Report
from cove.core.shell_state import ShellState, quote
from cove.errors import (
    CoveError,
    Internal,
    SandboxDestroyed,
    SessionNotFound,
    SessionTerminated,
    SpawnFailed,
    ValidationFailed,
)
from cove.model import ExecResult, Outcome, SessionInfo, SessionStatus
from cove.runtime.exec import check_max_output, check_stdin
from cove.runtime.files import Files
from cove.runtime.process import Process
from cove.runtime.processes import Processes
from cove.runtime.shell import Shell, ShellEnded
from cove.runtime.spawner import Spawner
from cove.runtime.supervised import CWD_EXIT_CODE, TIMEOUT_EXIT_CODE
from cove.runtime.threads import in_thread

# The snapshot for recovery is taken when the session has been idle for this long.
_IDLE_SECONDS = 0.02
_OLD_SECONDS = 0.25
_TICKS_PER_SECOND = 100

_T = TypeVar("_T")
StartShell = Callable[[ShellState | None], Awaitable[Shell]]


class Session(api.Session):
    """Invariant: whoever holds `_turn` is the only one who speaks to the shell."""

    def __init__(
        self,
        id: str,
        shell: Shell,
        *,
        cwd: str,
        env: Mapping[str, str],
        timeout: float | None,
        start_shell: StartShell,
        spawner: Spawner,
        processes: Processes,
        make_files: Callable[[Callable[[], str]], Files],
        on_deleted: Callable[[], None],
    ) -> None:
        self.id = id
        self._shell = shell
        self._old_shells: list[Shell] = []
        self._cwd = cwd
        self._env: Mapping[str, str] | asyncio.Future[Exports] = dict(env)
        self._timeout = timeout
        self._start_shell = start_shell
        self._spawner = spawner
        self._processes = processes
        self.files = make_files(self._base)
        self._started: list[Process] = []
        self._on_deleted = on_deleted
        self._loop = asyncio.get_running_loop()
        self._created_at = datetime.now(UTC)
        self._turn = asyncio.Lock()
        self._state: ShellState | None = None
        self._state_command: str | None = None
        self._last_command: str | None = None
        self._state_time = 0.0
        self._is_stale = True
        self._idle: asyncio.TimerHandle | None = None
        self._recovery: asyncio.Task[None] | None = None
        self._end: SessionTerminated | None = None
        self._deleting: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """The shell lives, or is being replaced."""
        is_recovering = self._recovery is not None and not self._recovery.done()
        return self._end is None and self._deleting is None and (self._shell.is_alive or is_recovering)

    def info(self) -> SessionInfo:
        """The facts."""
        status = SessionStatus.RUNNING if self.is_running else SessionStatus.TERMINATED
        code = None if self._end is None else self._end.exit_code
        return SessionInfo(id=self.id, status=status, created_at=self._created_at, cwd=self._cwd, exit_code=code)

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
        """See api.Session."""
        call = _Call(
            command=command,
            text=_encode(command),
            cwd=None if cwd is None else encode_text(cwd, "cwd").decode("utf-8", "surrogateescape"),
            env=check_environment(env),
            timeout=self._timeout if timeout is None else check_timeout(timeout),
            stdin=check_stdin(stdin),
            limit=check_max_output(max_output),
        )
        async with self._turn:
            await self._recover()
            try:
                return await self._exec(call)
            except asyncio.CancelledError:
                self._recovery = self._loop.create_task(self._settle(self._recovery, call.ticks))
                raise
            except ShellEnded as error:
                return self._on_shell_end(call, error)
            finally:
                self._schedule_snapshot()

    async def _exec(self, call: "_Call") -> ExecResult:
        if call.timeout is not None:
            await self._prepare_timeout(call)
        if not call.changes_shell:
            return await self._run(call)
        shell = self._shell
        refusal = await self._apply(call)
        if refusal is not None:
            return refusal
        result = await self._run(call)
        if shell is self._shell and shell.is_alive:
            self._note(await shell.run_internal(RESTORE_SCRIPT))
        return result

    async def _prepare_timeout(self, call: "_Call") -> None:
        await self._snapshot_if_old()
        if (launcher := self._shell.process.launcher) is not None:
            await launcher.mark()
            call.ticks = 0

    async def _apply(self, call: "_Call") -> ExecResult | None:
        """Set directory and variables for one call; a result means that it does not run."""
        cwd = call.cwd if call.cwd is None or call.cwd.startswith("/") else f"{self._cwd}/{call.cwd}"
        report = await self._shell.run_internal(apply_script(cwd, call.env))
        if report.status == READONLY_STATUS:
            raise ValidationFailed(f"one of {', '.join(call.env)} is read-only in session {self.id}")
        if report.status != CWD_STATUS:
            return None
        call.captures[1].append(f"cove: cannot enter directory {cwd}\n".encode())
        return call.result(self.id, Outcome.EXITED, CWD_EXIT_CODE)

    async def _run(self, call: "_Call") -> ExecResult:
        shell = self._shell
        self._is_stale = True
        running = shell.start(call.text, call.captures, call.stdin)
        if not await running.wait(call.timeout):
            return await self._time_out(call, shell)
        report = running.report()
        if not call.changes_shell:
            self._note(report)
        self._last_command = call.label
        return call.result(self.id, Outcome.EXITED, report.status)

    async def _time_out(self, call: "_Call", shell: Shell) -> ExecResult:
        self._recovery = self._loop.create_task(self._interrupt(shell, call.ticks))
        await asyncio.shield(self._recovery)
        return call.result(
            self.id,
            Outcome.TIMED_OUT,
            TIMEOUT_EXIT_CODE,
            session_restarted=shell is not self._shell,
            restored_command=self._state_command if shell is not self._shell else None,
        )

    async def _interrupt(self, shell: Shell, ticks: int) -> None:
        """End the running command. A shell that does not come back is replaced by one made from the snapshot."""
        try:
            if (report := await shell.interrupt(ticks)) is not None:
                self._note(report)
                return
        except ShellEnded:
            pass  # it died of the interruption
        await shell.kill()
        await shell.end_leftovers(ticks)
        self._old_shells = [old for old in (*self._old_shells, shell) if old.process.launcher is not None]
        if self._deleting is None and not self._spawner.closed:
            self._shell = await self._start_shell(self._state)
            shell.close()
            await in_thread(shell.channel.remove)
            self._note(await self._shell.run_internal(":"))

    async def _settle(self, recovery: "asyncio.Task[None] | None", ticks: int) -> None:
        """After a cancelled caller: end what runs, take back what it changed."""
        if recovery is not None:
            await asyncio.gather(recovery, return_exceptions=True)
        shell = self._shell
        try:
            if shell.is_busy:
                await self._interrupt(shell, ticks)
            if shell.process.launcher is not None:
                # A mark that the caller did not wait for must not be set on the next command's processes.
                await shell.process.launcher.signal(0, b"main")
            if shell is self._shell:
                self._note(await shell.run_internal(RESTORE_SCRIPT))
        except (ShellEnded, CoveError):
            return  # the next call finds a shell that has ended

    def _on_shell_end(self, call: "_Call", error: ShellEnded) -> ExecResult:
        if error.end.outcome is Outcome.LOST:
            return call.result(self.id, Outcome.LOST, None)
        raise self._termination(error, call.captures[0].getvalue().decode("utf-8", "replace"))

    def _termination(self, error: ShellEnded, output: str = "") -> CoveError:
        if self._spawner.closed:
            return SandboxDestroyed("the sandbox was destroyed while the command ran")
        code = error.end.exit_code
        if self._deleting is not None:
            return SessionTerminated(f"session {self.id} was deleted", exit_code=code, output=output)
        self._end = SessionTerminated(
            f"the shell of session {self.id} has ended with exit code {code}: create the session again to go on",
            exit_code=code,
            output=output,
        )
        return self._end

    async def _recover(self) -> None:
        """Before anything else speaks to the shell: wait for an interruption under way, see that it lives."""
        if self._recovery is not None:
            await asyncio.wait([self._recovery])
            self._recovery = None
        self._check()

    def _check(self) -> None:
        if self._deleting is not None:
            raise SessionNotFound(f"session {self.id} was deleted", id=self.id)
        if not self._shell.is_alive and self._end is None and not self._spawner.closed:
            code = self._shell.process.ended.result().exit_code
            self._end = SessionTerminated(f"the shell of session {self.id} has ended", exit_code=code)
        if self._end is not None:
            raise SessionTerminated(self._end.message, exit_code=self._end.exit_code, output=self._end.output)
        if self._spawner.closed:
            raise SandboxDestroyed("the sandbox is gone")

    def _note(self, report: Report) -> None:
        self._cwd = report.cwd
        self._env = self._shell.exports

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
    ) -> Process:
        """See api.Session."""
        build_invocation(command, cwd=cwd or "/", env={})
        checked, seconds = check_environment(env), check_timeout(timeout)
        async with self._turn:
            await self._recover()
            state = await self._work(self._snapshot())
            if not state.readonly_names.isdisjoint(checked):
                raise ValidationFailed(f"one of {', '.join(checked)} is read-only in session {self.id}")
            directory = cwd if cwd is None or cwd.startswith("/") else f"{state.cwd}/{cwd}"
            process = await self._processes.start(
                command,
                process_invocation(command, state, directory, checked),
                id=id,
                timeout=seconds,
                stdin=stdin,
                keep=keep,
                session_id=self.id,
            )
        self._started = [other for other in self._started if other.supervised.launcher is not None] + [process]
        if self._deleting is not None:
            await process.supervised.sweep()
            self._check()
        return process

    async def _work(self, work: Awaitable[_T]) -> _T:
        """Do something of our own in the shell."""
        try:
            return await work
        except asyncio.CancelledError:
            self._recovery = self._loop.create_task(self._settle(self._recovery, 0))
            raise
        except ShellEnded as error:
            raise self._termination(error) from None
        except ProtocolError as error:
            raise SpawnFailed(f"the state of session {self.id} cannot be read: {error}") from None

    async def set_env(self, env: Mapping[str, str | None]) -> None:
        """See api.Session."""
        checked = check_environment(env)
        async with self._turn:
            await self._recover()
            self._is_stale = True
            report = await self._work(self._shell.run_internal(set_script(checked)))
            self._note(report)
            if report.status != 0:
                raise ValidationFailed(f"one of {', '.join(checked)} is read-only in session {self.id}")
            self._schedule_snapshot()

    async def cwd(self) -> str:
        """See api.Session."""
        self._check()
        return self._cwd

    def _base(self) -> str:
        self._check()
        return self._cwd

    async def env(self) -> dict[str, str]:
        """See api.Session."""
        self._check()
        env = self._env
        if isinstance(env, asyncio.Future):
            # They follow the report within microseconds.
            try:
                return (await asyncio.shield(env)).environment()
            except ShellEnded as error:
                raise SessionTerminated(
                    f"the shell of session {self.id} has ended", exit_code=error.end.exit_code
                ) from None
            except ProtocolError as error:
                raise Internal(f"the environment of session {self.id} cannot be read: {error}") from None
        return dict(env)

    async def delete(self) -> None:
        """See api.Session."""
        if self._deleting is None:
            self._on_deleted()
            self._deleting = self._loop.create_task(self._delete())
        await asyncio.shield(self._deleting)

    async def _delete(self) -> None:
        for shell in (self._shell, *self._old_shells):
            await shell.process.sweep()
        if self._recovery is not None:
            await asyncio.wait([self._recovery])
            await self._shell.process.sweep()
        for process in self._started:
            await process.supervised.sweep()
        self.close()
        await in_thread(self._shell.channel.remove)

    def close(self) -> None:
        """Free what the shells held, after they have ended."""
        if self._idle is not None:
            self._idle.cancel()
        self._shell.close()

    async def _snapshot(self) -> ShellState:
        if self._state is None or self._is_stale:
            self._state = await self._shell.snapshot()
            self._state_command = self._last_command
            self._is_stale = False
            self._state_time = self._loop.time()
        return self._state

    async def _snapshot_if_old(self) -> None:
        """A command that may be interrupted gets a recent snapshot to fall back on, but not each of a quick series."""
        if self._is_stale and self._loop.time() > self._state_time + _OLD_SECONDS:
            with contextlib.suppress(ProtocolError):  # the last good one stays
                await self._snapshot()

    def _schedule_snapshot(self) -> None:
        if self._idle is None:
            self._idle = self._loop.call_later(_IDLE_SECONDS, self._on_idle)

    def _on_idle(self) -> None:
        self._idle = None
        if self.is_running and self._is_stale and not self._spawner.closed:
            self._spawner.background.start(self._snapshot_when_free())

    async def _snapshot_when_free(self) -> None:
        if self._turn.locked():
            return  # the command that runs now schedules the next one
        async with self._turn:
            if self.is_running and self._shell.is_alive and self._recovery is None:
                try:
                    await self._snapshot()
                except (ShellEnded, ProtocolError):
                    return  # the next command finds out; the last good snapshot stays


@dataclass(slots=True)
class _Call:
    """One exec on its way."""

    command: str | Sequence[str]
    text: bytes
    cwd: str | None
    env: Mapping[str, str | None]
    timeout: float | None
    stdin: bytes | None
    limit: int
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    began: float = field(default_factory=time.perf_counter)
    captures: tuple[Capture, Capture] = field(init=False)
    ticks: int = field(init=False)

    def __post_init__(self) -> None:
        self.captures = (Capture(self.limit), Capture(self.limit))
        self.ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS_PER_SECOND)

    @property
    def changes_shell(self) -> bool:
        return self.cwd is not None or bool(self.env)

    @property
    def label(self) -> str:
        return self.command if isinstance(self.command, str) else " ".join(self.command)

    def result(
        self,
        session_id: str,
        outcome: Outcome,
        exit_code: int | None,
        *,
        session_restarted: bool = False,
        restored_command: str | None = None,
    ) -> ExecResult:
        return ExecResult(
            command=self.command,
            outcome=outcome,
            exit_code=exit_code,
            stdout_bytes=self.captures[0].getvalue(),
            stderr_bytes=self.captures[1].getvalue(),
            truncated=self.captures[0].truncated or self.captures[1].truncated,
            started_at=self.started_at,
            duration=time.perf_counter() - self.began,
            session_id=session_id,
            session_restarted=session_restarted,
            restored_command=restored_command,
        )


def _encode(command: str | Sequence[str]) -> bytes:
    """The text that the shell evaluates; a list becomes words that arrive literally."""
    if isinstance(command, str):
        return encode_text(command, "command")
    build_invocation(command, cwd="/", env={})
    return encode_text(" ".join(quote(word) for word in command), "command")
