"""A session: a shell with state, and a queue of commands for it."""

import os
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TypeVar

from cove import api
from cove.agent.protocol import ProtocolError
from cove.core.command import build_invocation, check_environment, check_timeout
from cove.core.session_script import check_script, set_script
from cove.errors import Internal, SessionTerminated, ValidationFailed
from cove.model import ExecResult, JournalKind, SessionInfo, SessionStatus
from cove.runtime.files import Files
from cove.runtime.gate import Gate, gated
from cove.runtime.idle_snapshot import IdleSnapshot
from cove.runtime.kept_sessions import Kept, KeptSession, SleepingSession, encode_variables
from cove.runtime.process import Process
from cove.runtime.session_call import OnOutput, SessionCall
from cove.runtime.session_end import SessionEnd
from cove.runtime.session_exec import SessionExec
from cove.runtime.session_owner import SessionOwner
from cove.runtime.session_processes import SessionProcesses
from cove.runtime.session_restore import RestorableShell
from cove.runtime.session_shell import SessionShell
from cove.runtime.shell_command import ShellEnded
from cove.runtime.shell_snapshot import ShellSnapshot
from cove.runtime.tracing import traced
from cove.runtime.turn import Turn

_T = TypeVar("_T")
# How long a change of the files waits for the state of an idle shell to be saved.
_SAVE_SECONDS = 5.0


@traced("session", api.Session)
@gated()
class Session(api.Session):
    """Invariant: whoever holds `_turn` is the only one who speaks to the shell.

    When its sandbox stops it sleeps until it is next used. Each jail gives it another owner and another turn; who has
    waited for a turn of the one before is told so.
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
        self._shell = RestorableShell(shell, sleeping)
        self._created_at = datetime.now(UTC) if sleeping is None else sleeping.kept.created_at
        self._is_restored = sleeping is not None
        self._end = SessionEnd(id)
        self._idle = IdleSnapshot(self._shell, lambda: self.is_running)
        self._move(owner)
        self.files = owner.make_files(self._base, self.user)

    def _move(self, owner: SessionOwner) -> None:
        """Belong to that jail from here on."""
        self._owner = owner
        self._spawner = owner.spawner
        self._processes = SessionProcesses(self.id, owner.processes, self.user)
        self._egress = owner.egress
        self._clock = owner.spawner.clock
        self._turn = Turn()
        self._idle.move(self._spawner, self._turn)

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
        return not self._end.has_come and self._shell.is_alive

    def info(self) -> SessionInfo:
        """Describe the session."""
        status = SessionStatus.RUNNING if self.is_running else SessionStatus.TERMINATED
        code = None if self._end.error is None else self._end.error.exit_code
        return SessionInfo(
            id=self.id,
            status=status,
            created_at=self._created_at,
            cwd=self._shell.cwd,
            exit_code=code,
            restored=self._is_restored,
        )

    @property
    def origin(self) -> tuple[str, Mapping[str, str]]:
        """The directory and the environment it was created with."""
        return self._directory, self._variables

    async def keep(self, seconds: float, *, is_held: bool) -> Kept | None:
        """Return what brings it back: its state as it is now or, where that cannot be had, as it was last.

        Only one that `is_held` by the caller is asked. None for one that has ended. The snapshot is the caller's.
        """
        if not self.is_running:
            return None
        can_refresh = is_held and not self._spawner.closed
        return await self._shell.keep(self._kept(), seconds if can_refresh else None)

    def _kept(self) -> KeptSession:
        return KeptSession(
            id=self.id,
            created_at=self._created_at,
            timeout=self.timeout,
            cwd=os.fsencode(self._shell.cwd),
            directory=os.fsencode(self._directory),
            env=encode_variables(self._variables),
            user=self.user,
        )

    def sleep(self, sleeping: SleepingSession) -> None:
        """Sleep: the shell has ended with its sandbox."""
        self.close()
        self._shell.sleep(sleeping)
        self._is_restored = True
        self._end.error = None

    def expel(self, reason: str) -> None:
        """Let nothing more begin: everything that runs is ended. `leave` or `delete` follows."""
        self._end.expel(reason)

    async def leave(self) -> None:
        """Take the turn when what ran has ended, and end the shell. `come_back` or `stay_away` gives the turn back."""
        await self._turn.acquire()
        await self._shell.end()

    def stay_away(self) -> None:
        """Give the turn back: it has ended."""
        self._turn.release()

    @property
    def is_deleted(self) -> bool:
        """Return whether it is gone for good."""
        return self._end.deletion.is_started

    def come_back(self, owner: SessionOwner, sleeping: SleepingSession) -> None:
        """Give the turn back, to sleep as the session that was kept, in the jail that there is now."""
        kept, turn = sleeping.kept, self._turn
        if owner is not self._owner:
            self.wake_in(owner)
        self._directory, self._variables = os.fsdecode(kept.directory), kept.variables()
        self.timeout, self._created_at = kept.timeout, kept.created_at
        self.sleep(sleeping)
        turn.release()

    async def hold(self) -> bool:
        """Take the turn of a session that waits or sleeps; False of one that is in use. See `let_go`.

        While its state is saved nobody uses it: that is waited for.
        """
        turn = self._turn
        is_idle = turn.is_free or (self._idle.is_taken_now and not turn.is_awaited)
        if not (is_idle and self._can_be_held() and await turn.acquire_within(_SAVE_SECONDS)):
            return False
        if not self._can_be_held():
            turn.release()
            return False
        return True

    def _can_be_held(self) -> bool:
        return self.is_running and not self._shell.is_recovering

    @property
    def pid(self) -> int | None:
        """The pid of its shell inside; None while it sleeps."""
        return self._shell.pid

    def let_go(self, *, moved: bool) -> None:
        """Give the turn back; a shell that was `moved` stands in a mount whose place another one has."""
        if moved:
            self._shell.live.move()
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
        with self._spawner.link.journal.call(JournalKind.COMMAND, command, subject=self.id) as entry:
            result = await self._exec_in_turn(call)
            entry.end(result, call.output_bytes)
        return result

    async def _exec_in_turn(self, call: SessionCall) -> ExecResult:
        turn = self._turn
        if call.timeout is None:
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
            if self._shell.is_sleeping:
                self._check()
                await self._shell.wake(self._owner.open_shell, self.user)
            if self._shell.live.needs_recovery:
                await self._shell.live.recovered()
        except BaseException:
            turn.release()
            raise

    async def _begin_until(self, turn: Turn, deadline: float) -> bool:
        self._idle.has_timeouts = True
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
            return await SessionExec(self.id, call, self._shell.live, self._end, self._spawner).run()
        finally:
            self._idle.schedule()

    def _check(self) -> None:
        self._end.check()
        if not self._shell.is_alive:
            exit_record = self._shell.live.current.process.ended.result()
            raise self._end.by_shell(ShellEnded(exit_record), self._spawner, has_begun=False)

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
            process = await self._processes.start(
                command,
                state,
                cwd=self._shell.cwd if cwd is None else os.path.join(self._shell.cwd, cwd),
                env=checked,
                id=id,
                timeout=seconds,
                stdin=stdin,
                keep=keep,
                lossless=lossless,
            )
        if self._end.deletion.is_started:
            await process.supervised.sweep()
            self._check()
        return process

    async def _snapshot(self, env: Mapping[str, str | None]) -> ShellSnapshot:
        """The state for a process that has these variables of its own."""
        if env:
            report = await self._work(self._shell.live.current.run_internal(check_script(env)))
            if report.status != 0:
                raise ValidationFailed(f"one of {', '.join(env)} is read-only in session {self.id}")
        return await self._work(self._shell.live.snapshot())

    async def _work(self, work: Awaitable[_T]) -> _T:
        """Do something of our own in the shell."""
        return await self._end.explained(work, self._shell.live, self._spawner)

    async def set_env(self, env: Mapping[str, str | None]) -> None:
        checked = check_environment(env)
        async with self._my_turn():
            self._shell.live.is_stale = True
            report = await self._work(self._shell.live.current.run_internal(set_script(checked)))
            self._shell.live.note(report)
            if report.status != 0:
                raise ValidationFailed(f"one of {', '.join(checked)} is read-only in session {self.id}")
            self._idle.schedule()

    async def fork(self) -> "Session":
        return await self._owner.fork(self)

    async def copy_shell(self) -> SessionShell:
        """Start another shell with the state of this one, when that is free."""
        async with self._my_turn():
            state = await self._work(self._shell.live.snapshot())
            return await self._shell.live.copy(state)

    async def cwd(self) -> str:
        self._check()
        return self._shell.cwd

    def _base(self) -> str:
        self._check()
        return self._shell.cwd

    async def env(self) -> dict[str, str]:
        self._check()
        if self._shell.is_sleeping:
            async with self._my_turn():
                pass
        try:
            return await self._shell.live.env()
        except ShellEnded as error:
            raise SessionTerminated(
                f"the shell of session {self.id} has ended", exit_code=error.end.exit_code
            ) from None
        except ProtocolError as error:
            raise Internal(f"the environment of session {self.id} cannot be read: {error}") from None

    async def delete(self) -> None:
        await self.remove()

    async def remove(self) -> None:
        """End it for good. No call of a user: whoever changes the sandbox, while all calls wait, comes through."""
        if self._end.deletion.start(self._delete):
            self._owner.forget(self)
        await self._end.deletion.result()

    async def _delete(self) -> None:
        await self._shell.end()
        await self._processes.sweep()
        self.close()

    def close(self) -> None:
        """Free what the shell held, after it has ended."""
        self._idle.cancel()
        self._shell.close()
