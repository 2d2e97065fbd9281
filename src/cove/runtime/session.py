"""A session: a shell with state, and a queue of commands for it."""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Protocol, TypeVar

import msgspec

from cove import api
from cove.agent.protocol import ProtocolError
from cove.core.command import build_invocation, check_environment, check_timeout, encode_text
from cove.core.jail import WORKSPACE
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
    FileNotFound,
    Internal,
    LimitExceeded,
    SandboxDestroyed,
    SessionNotFound,
    SessionTerminated,
    ValidationFailed,
)
from cove.local.threads import finished, in_thread
from cove.model import ExecResult, Outcome, SessionInfo, SessionStatus
from cove.runtime.clock import ClockTimer
from cove.runtime.egress import Egress
from cove.runtime.files import Files
from cove.runtime.gate import Gate, gated
from cove.runtime.kept_sessions import Kept, KeptSession, SleepingSession, encode_command, encode_variables
from cove.runtime.process import Process
from cove.runtime.processes import Processes
from cove.runtime.session_call import OnOutput, SessionCall
from cove.runtime.session_shell import SessionShell
from cove.runtime.shell_command import ShellEnded
from cove.runtime.shell_snapshot import MOST_STATE_BYTES, ShellSnapshot, StateTooLarge
from cove.runtime.spawner import Spawner
from cove.runtime.supervised import CWD_EXIT_CODE, KILLED_EXIT_CODE, TIMEOUT_EXIT_CODE
from cove.runtime.turn import Turn
from cove.tasks import Once

# The snapshot for recovery is taken when the session has been idle for this long: more than a busy client takes from
# one command to the next, for it costs as much as several commands. Where commands have timeouts, it is taken as soon
# as one has ended and the last is not too young.
_IDLE_SECONDS = 0.5

_T = TypeVar("_T")


class SessionOwner(Protocol):
    """The sessions of one jail: what a session is given there."""

    spawner: Spawner
    processes: Processes
    egress: Egress

    def make_files(self, base: Callable[[], str], user: bytes) -> Files:
        """The files of a session, as that user has them."""

    async def open_shell(
        self, cwd: str, env: Mapping[str, str], state: ShellSnapshot | None, user: bytes
    ) -> SessionShell:
        """A shell at its loop: fresh, or made from a snapshot."""

    async def fork(self, parent: "Session") -> "Session":
        """A session with the state of another."""

    def forget(self, session: "Session") -> None:
        """Drop a session that was deleted."""


@gated()
class Session(api.Session):
    """Invariant: whoever holds `_turn` is the only one who speaks to the shell.

    When its sandbox stops it sleeps: `_sleeping` has what its shell is made from when it is next used. Each jail gives
    it another owner and another turn; who has waited for a turn of the one before is told so.
    """

    files: Files

    def __init__(
        self,
        id: str,
        owner: SessionOwner,
        shell: SessionShell | None,
        *,
        cwd: str,
        env: Mapping[str, str],
        timeout: float | None,
        sleeping: SleepingSession | None = None,
        user: bytes = b"",
    ) -> None:
        self.id = id
        self.user = user
        self._directory = cwd
        self._variables = env
        self.timeout = timeout
        self._sleeping = sleeping
        self._created_at = datetime.now(UTC) if sleeping is None else sleeping.kept.created_at
        self._is_restored = sleeping is not None
        self._waking: Once[None] = Once()
        if shell is not None:
            self._shell = shell
        self._move(owner)
        self.files = owner.make_files(self._base, self.user)
        self._has_timeouts = False
        self._end: SessionTerminated | None = None
        self._deleting: Once[None] = Once()

    def _move(self, owner: SessionOwner) -> None:
        """Belong to that jail from here on."""
        self._owner = owner
        self._spawner = owner.spawner
        self._processes = owner.processes
        self._egress = owner.egress
        self._clock = owner.spawner.clock
        self._started: list[Process] = []
        self._turn = Turn()
        self._idle: ClockTimer | None = None
        self._last_used = 0.0

    def wake_in(self, owner: SessionOwner) -> None:
        """Go on in the jail that has taken the place of the one before; it sleeps."""
        self._move(owner)
        self.files.work_in(owner.make_files(self._base, self.user))

    @property
    def gate(self) -> Gate:
        """The gate of its sandbox."""
        return self._spawner.link.gate

    @property
    def is_running(self) -> bool:
        """The shell lives, is being replaced, or sleeps."""
        if self._end is not None or self._deleting.is_started:
            return False
        return self._sleeping is not None or self._shell.current.is_alive or self._shell.is_recovering

    def info(self) -> SessionInfo:
        """Describe the session."""
        status = SessionStatus.RUNNING if self.is_running else SessionStatus.TERMINATED
        code = None if self._end is None else self._end.exit_code
        return SessionInfo(
            id=self.id,
            status=status,
            created_at=self._created_at,
            cwd=self._known_cwd,
            exit_code=code,
            restored=self._is_restored,
        )

    @property
    def origin(self) -> tuple[str, Mapping[str, str]]:
        """The directory and the environment it was created with."""
        return self._directory, self._variables

    @property
    def _known_cwd(self) -> str:
        return self._shell.cwd if self._sleeping is None else os.fsdecode(self._sleeping.kept.cwd)

    async def keep(self, seconds: float, *, is_free: bool) -> Kept | None:
        """Return what brings it back: its state as it is now or, where that cannot be had, as it was last.

        Only one that `is_free` is asked: nobody but the caller can have its turn. None for one that has ended. The
        snapshot is the caller's.
        """
        if not self.is_running:
            return None
        if self._sleeping is not None:
            return await _keep_sleeping(self._sleeping.share())
        shell = self._shell
        if is_free and shell.is_stale and shell.is_quiet and not self._spawner.closed:
            await self._refresh(shell, seconds)
        is_behind = shell.is_stale or shell.current.is_busy
        kept = KeptSession(
            id=self.id,
            created_at=self._created_at,
            timeout=self.timeout,
            cwd=os.fsencode(shell.cwd),
            directory=os.fsencode(self._directory),
            env=encode_variables(self._variables),
            user=self.user,
            command=encode_command(shell.state_command),
            is_behind=is_behind,
        )
        return kept, shell.share_state()

    @staticmethod
    async def _refresh(shell: SessionShell, seconds: float) -> None:
        """Have the state as it is now, if the shell says it in time. What it still says later is waited for."""
        try:
            async with asyncio.timeout(seconds):
                await shell.snapshot()
        except (ShellEnded, StateTooLarge):
            return  # the last good one stays
        except TimeoutError:
            shell.start_settling(0)
        except asyncio.CancelledError:
            shell.start_settling(0)
            raise

    def sleep(self, sleeping: SleepingSession) -> None:
        """Sleep: the shell has ended with its sandbox."""
        self.close()
        self._sleeping = sleeping
        self._is_restored = True
        self._end = None

    def expel(self, reason: str) -> None:
        """Let nothing more begin: everything that runs is ended. `leave` or `delete` follows."""
        self._end = SessionTerminated(f"session {self.id} has ended: {reason}", exit_code=KILLED_EXIT_CODE)

    async def leave(self) -> None:
        """Take the turn when what ran has ended, and end the shell. `come_back` or `stay_away` gives the turn back."""
        await self._turn.acquire()
        await self._waking.ended()
        if self._sleeping is None:
            await self._shell.end()

    def stay_away(self) -> None:
        """Give the turn back: it has ended."""
        self._turn.release()

    @property
    def is_deleted(self) -> bool:
        """Return whether it is gone for good."""
        return self._deleting.is_started

    def come_back(self, owner: SessionOwner, sleeping: SleepingSession) -> None:
        """Give the turn back, to sleep as the session that was kept, in the jail that there is now."""
        kept, turn = sleeping.kept, self._turn
        if owner is not self._owner:
            self.wake_in(owner)
        self._directory, self._variables = os.fsdecode(kept.directory), kept.variables()
        self.timeout, self._created_at = kept.timeout, kept.created_at
        self.sleep(sleeping)
        turn.release()

    async def _wake(self) -> None:
        """Have a shell. Whoever has the turn calls it; a cancelled caller does not end it."""
        if self._sleeping is not None:
            try:
                await self._waking.run(self._start_shell)
            finally:
                if self._waking.is_done:
                    self._waking = Once()

    async def _start_shell(self) -> None:
        assert self._sleeping is not None
        kept = self._sleeping.kept
        shell = await self._restore(self._sleeping)
        is_fresh = shell is None
        if shell is None:
            shell = await self._open_fresh(os.fsdecode(kept.directory), kept.variables())
        command = None if is_fresh or kept.command is None else kept.command.decode("utf-8", "surrogatepass")
        shell.last_command = shell.restored_command = shell.state_command = command
        shell.is_replaced = is_fresh or kept.is_behind
        self._shell = shell
        self._sleeping.close()
        self._sleeping = None

    async def _restore(self, sleeping: SleepingSession) -> SessionShell | None:
        """The shell as it was; None where nothing was kept, or what was kept makes no shell."""
        kept, state = sleeping.kept, None
        with suppress(OSError, StateTooLarge):
            state = await in_thread(sleeping.load)
        if state is None:
            return None
        shell = None
        try:
            shell = await self._owner.open_shell(os.fsdecode(kept.cwd), kept.variables(), state, self.user)
            await shell.calm(state)
            return shell
        except (ShellEnded, FileNotFound):
            state.close()
            if shell is not None:
                await shell.end()
            return None
        except BaseException:
            state.close()
            raise

    async def _open_fresh(self, directory: str, env: Mapping[str, str]) -> SessionShell:
        try:
            return await self._owner.open_shell(directory, env, None, self.user)
        except FileNotFound:
            return await self._owner.open_shell(WORKSPACE, env, None, self.user)

    async def hold(self) -> bool:
        """Take the turn of a session that waits or sleeps; False of one that is in use. See `let_go`."""
        if not self._turn.is_free or not self.is_running or (self._sleeping is None and self._shell.is_recovering):
            return False
        await self._turn.acquire()  # it is free: this does not wait
        return True

    @property
    def is_free(self) -> bool:
        """Return whether nobody has its turn, or waits for it."""
        return self._turn.is_free

    @property
    def pid(self) -> int | None:
        """The pid of its shell inside; None while it sleeps."""
        return None if self._sleeping is not None else self._shell.current.process.pid

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
        turn = self._turn
        if seconds is None:
            await self._begin(turn)
        elif not await self._begin_until(turn, call.deadline):
            return call.give_up(self.id)
        try:
            self._check()
            mark = self._egress.mark()
            result = await self._exec(call)
            return result if mark is None else await self._egress.add_denials(result, mark)
        finally:
            turn.release()

    async def _begin(self, turn: Turn) -> None:
        """Take the turn, which the caller releases, and have a shell."""
        spawner = self._spawner
        await turn.acquire()
        try:
            if turn is not self._turn:
                raise spawner.link.explain(False)
            if self._sleeping is not None:
                self._check()
                await self._wake()
            if self._shell.needs_recovery:
                await self._shell.recovered()
        except BaseException:
            turn.release()
            raise

    async def _begin_until(self, turn: Turn, deadline: float) -> bool:
        self._has_timeouts = True
        try:
            async with self._clock.timeout_at(deadline):
                await self._begin(turn)
        except TimeoutError:
            return False
        return True

    @asynccontextmanager
    async def _my_turn(self) -> AsyncGenerator[None, None]:
        """Hold the turn, with a shell that can be spoken to."""
        turn = self._turn
        await self._begin(turn)
        try:
            self._check()
            yield
        finally:
            turn.release()

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
        if error.end.outcome in (Outcome.LOST, Outcome.STOPPED):
            return call.result(self.id, error.end.outcome, error.end.exit_code)
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
        end = SessionTerminated(
            f"the shell of session {self.id} has ended {why}: create the session again to go on",
            exit_code=code,
            output=output,
        )
        if not self._spawner.closed:  # otherwise it comes back with its sandbox
            self._end = end
        return end

    def _check(self) -> None:
        if self._deleting.is_started:
            raise SessionNotFound(f"session {self.id} was deleted", id=self.id)
        if self._end is not None:
            raise SessionTerminated(self._end.message, exit_code=self._end.exit_code, output=self._end.output)
        if self._sleeping is None and not self._shell.current.is_alive and not self._shell.is_recovering:
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
        async with self._my_turn():
            state = await self._snapshot(checked)
            directory = self._shell.cwd if cwd is None else cwd
            process = await self._processes.start(
                command,
                process_invocation(
                    command,
                    state.descriptor,
                    directory if directory.startswith("/") else f"{self._shell.cwd}/{directory}",
                    checked,
                    self.user,
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
        async with self._my_turn():
            self._shell.is_stale = True
            report = await self._work(self._shell.current.run_internal(set_script(checked)))
            self._shell.note(report)
            if report.status != 0:
                raise ValidationFailed(f"one of {', '.join(checked)} is read-only in session {self.id}")
            self._schedule_snapshot()

    async def fork(self) -> "Session":
        return await self._owner.fork(self)

    async def copy_shell(self) -> SessionShell:
        """Start another shell with the state of this one, when that is free."""
        async with self._my_turn():
            state = await self._work(self._shell.snapshot())
            return await self._shell.copy(state)

    async def cwd(self) -> str:
        self._check()
        return self._known_cwd

    def _base(self) -> str:
        self._check()
        return self._known_cwd

    async def env(self) -> dict[str, str]:
        self._check()
        if self._sleeping is not None:
            async with self._my_turn():
                pass
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
            self._owner.forget(self)
        await self._deleting.result()

    async def _delete(self) -> None:
        await self._waking.ended()
        if self._sleeping is None:
            await self._shell.end()
        for process in self._started:
            await process.supervised.sweep()
        self.close()

    def close(self) -> None:
        """Free what the shell held, after it has ended."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._sleeping is not None:
            self._sleeping.close()
            self._sleeping = None
        elif hasattr(self, "_shell"):
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
        if not self._turn.is_free:
            return  # the command that runs now schedules the next one
        async with self._turn:
            if self.is_running and self._shell.current.is_alive and not self._shell.needs_recovery:
                try:
                    await self._shell.snapshot()
                except (ShellEnded, StateTooLarge):
                    return  # the next command finds out; the last good snapshot stays


async def _keep_sleeping(sleeping: SleepingSession) -> Kept:
    try:
        return sleeping.kept, await finished(sleeping.load)
    except (OSError, StateTooLarge):
        return sleeping.kept, None
    finally:
        sleeping.close()
