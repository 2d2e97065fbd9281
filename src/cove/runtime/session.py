"""A session: a shell with state, and a queue of commands for it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from cove import api
from cove.agent.protocol import ProtocolError
from cove.core.command import build_invocation, check_environment, check_timeout, encode_text
from cove.core.session_script import (
    CWD_STATUS,
    READONLY_STATUS,
    RESTORE_SCRIPT,
    apply_script,
    check_script,
    process_invocation,
    set_script,
)
from cove.errors import (
    CoveError,
    Internal,
    LimitExceeded,
    SandboxDestroyed,
    SessionNotFound,
    SessionTerminated,
    ValidationFailed,
)
from cove.model import ExecResult, Outcome, SessionInfo, SessionStatus
from cove.runtime.clock import ClockTimer
from cove.runtime.egress import Egress
from cove.runtime.files import Files
from cove.runtime.process import Process
from cove.runtime.processes import Processes
from cove.runtime.session_call import OnOutput, SessionCall
from cove.runtime.session_shell import SessionShell
from cove.runtime.shell_command import ShellEnded
from cove.runtime.shell_snapshot import MOST_STATE_BYTES, ShellSnapshot, StateTooLarge
from cove.runtime.spawner import Spawner
from cove.runtime.supervised import CWD_EXIT_CODE, KILLED_EXIT_CODE, TIMEOUT_EXIT_CODE
from cove.tasks import Once

# The snapshot for recovery is taken when the session has been idle for this long: more than a busy client takes from
# one command to the next, for it costs as much as several commands. Where commands have timeouts, it is taken as soon
# as one has ended and the last is not too young.
_IDLE_SECONDS = 0.5

_T = TypeVar("_T")


class Session(api.Session):
    """Invariant: whoever holds `_turn` is the only one who speaks to the shell."""

    def __init__(
        self,
        id: str,
        shell: SessionShell,
        *,
        timeout: float | None,
        spawner: Spawner,
        processes: Processes,
        egress: Egress,
        make_files: Callable[[Callable[[], str]], Files],
        on_fork: Callable[["Session"], Awaitable["Session"]],
        on_deleted: Callable[[], None],
    ) -> None:
        self.id = id
        self._shell = shell
        self.timeout = timeout
        self._spawner = spawner
        self._processes = processes
        self._egress = egress
        self.files = make_files(self._base)
        self._started: list[Process] = []
        self._on_fork = on_fork
        self._on_deleted = on_deleted
        self._clock = spawner.clock
        self._created_at = datetime.now(UTC)
        self._turn = asyncio.Lock()
        self._idle: ClockTimer | None = None
        self._last_used = 0.0
        self._has_timeouts = False
        self._end: SessionTerminated | None = None
        self._deleting: Once[None] = Once()

    @property
    def is_running(self) -> bool:
        """The shell lives, or is being replaced."""
        lives = self._shell.current.is_alive or self._shell.is_recovering
        return self._end is None and not self._deleting.is_started and lives

    def info(self) -> SessionInfo:
        """Describe the session."""
        status = SessionStatus.RUNNING if self.is_running else SessionStatus.TERMINATED
        code = None if self._end is None else self._end.exit_code
        return SessionInfo(id=self.id, status=status, created_at=self._created_at, cwd=self._shell.cwd, exit_code=code)

    async def hold(self) -> int | None:
        """Take the turn of a shell that waits, and return its pid inside; None while it is in use. See `let_go`."""
        if self._turn.locked() or not self.is_running or self._shell.is_recovering:
            return None
        await self._turn.acquire()  # nobody has it: this does not wait
        return self._shell.current.process.pid

    def let_go(self, *, moved: bool) -> None:
        """Give the turn back; a shell that was `moved` stands in a mount whose place another one has."""
        if moved:
            self._shell.move()
        self._turn.release()

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
        stdin: bytes | str | None = None,
        max_output: int | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """Run a command; `on_output` is told what it prints as it comes."""
        seconds = self.timeout if timeout is None else check_timeout(timeout)
        call = SessionCall(
            self._clock,
            command,
            cwd=cwd,
            env=env,
            timeout=seconds,
            stdin=stdin,
            max_output=max_output,
            on_output=on_output,
        )
        if seconds is None:
            await self._begin()
        elif not await self._begin_until(call.deadline):
            return call.give_up(self.id)
        try:
            self._check()
            mark = self._egress.mark()
            result = await self._exec(call)
            return result if mark is None else await self._egress.add_denials(result, mark)
        finally:
            self._turn.release()

    async def _begin(self) -> None:
        """Take the turn, which the caller releases."""
        await self._turn.acquire()
        if self._shell.needs_recovery:
            try:
                await self._shell.recovered()
            except asyncio.CancelledError:
                self._turn.release()
                raise

    async def _begin_until(self, deadline: float) -> bool:
        self._has_timeouts = True
        try:
            async with self._clock.timeout_at(deadline):
                await self._begin()
        except TimeoutError:
            return False
        return True

    async def _exec(self, call: SessionCall) -> ExecResult:
        try:
            if call.timeout is not None:
                await self._shell.snapshot_if_old()
            result = await (self._run_changed(call) if call.changes_shell else self._run(call))
            return self._tell_of_replacement(result) if self._shell.is_replaced else result
        except asyncio.CancelledError:
            self._shell.start_settling(call.ticks)
            raise
        except ShellEnded as error:
            return self._on_shell_end(call, error)
        finally:
            self._schedule_snapshot()

    async def _run_changed(self, call: SessionCall) -> ExecResult:
        """Run with a directory and variables of its own, which are taken back afterwards."""
        shell, before = self._shell.current, self._shell.cwd
        refusal = await self._apply(call)
        if refusal is not None:
            return refusal
        result = await self._run(call)
        if shell is self._shell.current and shell.is_alive:
            report = await shell.run_internal(RESTORE_SCRIPT)
            self._shell.note(report)
            if report.status == CWD_STATUS:
                complaint = f"cove: cannot go back to directory {before}: the session is now in {report.cwd}\n"
                call.captures[1].append(encode_text(complaint, "cwd"))
                result = msgspec.structs.replace(
                    result, stderr_bytes=result.stderr_bytes + encode_text(complaint, "cwd")
                )
        return result

    async def _apply(self, call: SessionCall) -> ExecResult | None:
        """Set directory and variables for one call; a result means that it does not run."""
        cwd = call.cwd if call.cwd is None or call.cwd.startswith("/") else f"{self._shell.cwd}/{call.cwd}"
        report = await self._shell.current.run_internal(apply_script(cwd, call.env))
        if report.status == READONLY_STATUS:
            raise ValidationFailed(f"one of {', '.join(call.env)} is read-only in session {self.id}")
        if report.status != CWD_STATUS:
            return None
        call.captures[1].append(f"cove: cannot enter directory {cwd}\n".encode())
        return call.result(self.id, Outcome.EXITED, CWD_EXIT_CODE)

    async def _run(self, call: SessionCall) -> ExecResult:
        shell = self._shell
        shell.is_stale = True
        running = shell.current.start(call.text, call.captures, call.stdin)
        if not await running.wait(None if call.timeout is None else max(0.0, call.deadline - self._clock.time())):
            return await self._time_out(call)
        report = running.report()
        if not call.changes_shell:
            shell.note(report)
        shell.last_command = call.label
        return call.result(self.id, await self._outcome(report.status), report.status)

    async def _outcome(self, status: int) -> Outcome:
        """A shell says 137 of a program that was killed; why, only the kernel knows."""
        if status == KILLED_EXIT_CODE and await self._spawner.was_out_of_memory():
            return Outcome.OUT_OF_MEMORY
        return Outcome.EXITED

    async def _time_out(self, call: SessionCall) -> ExecResult:
        await self._shell.interrupt(call.ticks)
        return call.result(self.id, Outcome.TIMED_OUT, TIMEOUT_EXIT_CODE)

    def _tell_of_replacement(self, result: ExecResult) -> ExecResult:
        """With the first result after it: whoever the shell was replaced for may have been cancelled."""
        self._shell.is_replaced = False
        return msgspec.structs.replace(result, session_restarted=True, restored_command=self._shell.restored_command)

    def _on_shell_end(self, call: SessionCall, error: ShellEnded) -> ExecResult:
        if error.end.outcome is Outcome.LOST:
            return call.result(self.id, Outcome.LOST, None)
        raise self._termination(error, call.output)

    def _termination(self, error: ShellEnded, output: str = "", *, has_begun: bool = True) -> CoveError:
        code = error.end.exit_code
        why = f"with exit code {code}"
        if self._spawner.closed:
            gone = self._spawner.link.explain(has_begun)
            if isinstance(gone, SandboxDestroyed):
                return gone
            why = f"because {gone.message}"
        if self._deleting.is_started:
            return SessionTerminated(f"session {self.id} was deleted", exit_code=code, output=output)
        self._end = SessionTerminated(
            f"the shell of session {self.id} has ended {why}: create the session again to go on",
            exit_code=code,
            output=output,
        )
        return self._end

    def _check(self) -> None:
        if self._deleting.is_started:
            raise SessionNotFound(f"session {self.id} was deleted", id=self.id)
        if self._end is not None:
            raise SessionTerminated(self._end.message, exit_code=self._end.exit_code, output=self._end.output)
        if not self._shell.current.is_alive and not self._shell.is_recovering:
            raise self._termination(ShellEnded(self._shell.current.process.ended.result()), has_begun=False)

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
        build_invocation(command, cwd=cwd or "/", env={})
        checked, seconds = check_environment(env), check_timeout(timeout)
        async with self._turn:
            await self._shell.recovered()
            self._check()
            state = await self._snapshot(checked)
            directory = self._shell.cwd if cwd is None else cwd
            process = await self._processes.start(
                command,
                process_invocation(
                    command,
                    state.descriptor,
                    directory if directory.startswith("/") else f"{self._shell.cwd}/{directory}",
                    checked,
                ),
                id=id,
                timeout=seconds,
                stdin=stdin,
                keep=keep,
                lossless=lossless,
                session_id=self.id,
            )
        self._started = [other for other in self._started if other.supervised.launcher is not None] + [process]
        if self._deleting.is_started:
            await process.supervised.sweep()
            self._check()
        return process

    async def _snapshot(self, env: Mapping[str, str | None]) -> ShellSnapshot:
        """The state for a process that has these variables of its own."""
        if env:
            report = await self._work(self._shell.current.run_internal(check_script(env)))
            if report.status != 0:
                raise ValidationFailed(f"one of {', '.join(env)} is read-only in session {self.id}")
        return await self._work(self._shell.snapshot())

    async def _work(self, work: Awaitable[_T]) -> _T:
        """Do something of our own in the shell."""
        try:
            return await work
        except asyncio.CancelledError:
            self._shell.start_settling(0)
            raise
        except ShellEnded as error:
            raise self._termination(error) from None
        except StateTooLarge:
            raise LimitExceeded(
                f"the state of session {self.id} is over {MOST_STATE_BYTES >> 20} MiB, too much for a process to start "
                "from: unset what is large, or use sandbox.start_process"
            ) from None

    async def set_env(self, env: Mapping[str, str | None]) -> None:
        checked = check_environment(env)
        async with self._turn:
            await self._shell.recovered()
            self._check()
            self._shell.is_stale = True
            report = await self._work(self._shell.current.run_internal(set_script(checked)))
            self._shell.note(report)
            if report.status != 0:
                raise ValidationFailed(f"one of {', '.join(checked)} is read-only in session {self.id}")
            self._schedule_snapshot()

    async def fork(self) -> "Session":
        return await self._on_fork(self)

    async def copy_shell(self) -> SessionShell:
        """Start another shell with the state of this one, when that is free."""
        async with self._turn:
            await self._shell.recovered()
            self._check()
            state = await self._work(self._shell.snapshot())
            return await self._shell.copy(state)

    async def cwd(self) -> str:
        self._check()
        return self._shell.cwd

    def _base(self) -> str:
        self._check()
        return self._shell.cwd

    async def env(self) -> dict[str, str]:
        self._check()
        try:
            return await self._shell.env()
        except ShellEnded as error:
            raise SessionTerminated(
                f"the shell of session {self.id} has ended", exit_code=error.end.exit_code
            ) from None
        except ProtocolError as error:
            raise Internal(f"the environment of session {self.id} cannot be read: {error}") from None

    async def delete(self) -> None:
        if self._deleting.start(self._delete):
            self._on_deleted()
        await self._deleting.result()

    async def _delete(self) -> None:
        await self._shell.end()
        for process in self._started:
            await process.supervised.sweep()
        self.close()

    def close(self) -> None:
        """Free what the shell held, after it has ended."""
        if self._idle is not None:
            self._idle.cancel()
        self._shell.current.close()
        self._shell.close_snapshot()

    def _schedule_snapshot(self) -> None:
        self._last_used = self._clock.time()
        if self._idle is None:
            self._idle = self._clock.call_later(max(0.0, self._snapshot_delay), self._on_idle)

    @property
    def _snapshot_delay(self) -> float:
        if self._has_timeouts:
            return self._shell.snapshot_delay
        return self._last_used + _IDLE_SECONDS - self._clock.time()

    def _on_idle(self) -> None:
        """One timer for a whole series of commands: it looks when the last of them ended."""
        self._idle = None
        left = self._snapshot_delay
        if left > 0:
            self._idle = self._clock.call_later(left, self._on_idle)
        elif self.is_running and self._shell.is_stale and not self._spawner.closed:
            self._spawner.background.start(self._snapshot_when_free())

    async def _snapshot_when_free(self) -> None:
        if self._turn.locked():
            return  # the command that runs now schedules the next one
        async with self._turn:
            if self.is_running and self._shell.current.is_alive and not self._shell.needs_recovery:
                try:
                    await self._shell.snapshot()
                except (ShellEnded, StateTooLarge):
                    return  # the next command finds out; the last good snapshot stays
