"""The shell of a session through interruption and replacement, and the snapshot of its state.

Theory of operation. A command whose time is up is interrupted (runtime/shell says how). Mostly bash comes back, and
nothing of its state is lost. Where it does not, it is killed and replaced by a fresh one that is made from the last
snapshot (agent/shell_state says how); the next result says so by `session_restarted` and `restored_command`.

There is one recovery at a time, a task that belongs to this object. It goes on when its caller is cancelled, and
whoever has the session's turn next waits for it (`recovered`). So a turn never begins in a half-interrupted shell.

When to take a snapshot is a matter of cost: bash needs milliseconds for an ordinary state and seconds for a very large
one. It is taken after a command, in a pause, when the last is older than a quarter of a second; in a session that uses
no timeouts, after half a second of idleness. A long series without a pause takes one before a command that may be
interrupted, once a second. All of that together never takes more than a twentieth of the time. So a timeout costs a
command nothing, and what a replacement can lose is bounded: the commands since the last pause.

Invariants. `current` is the only shell that runs commands; older ones are kept only while something of their tree is
left, so that `end` can end it. `is_stale` is set before a command starts and cleared when a snapshot has been sealed:
a snapshot is never older than it says. `state_command` is the last command that the snapshot has seen.

What can go wrong, and why it does not:

- The shell dies of the interruption (it was about to fork, and the ban kept it from that): ShellEnded, replaced.
- The state is larger than 16 MiB: StateTooLarge. The last snapshot that was smaller stays, and is what is restored.
- The session is deleted during a recovery: `_is_abandoned` keeps a new shell from being started; `end` waits for the
  task and then kills whatever that has left.
- The sandbox ends during a recovery: the spawner is closed, and nothing is started.
- The caller is cancelled between `apply_script` and its undoing: `start_settling` interrupts what runs, then has the
  shell take back directory and variables before anybody else has its turn.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

from cove.core.jail import WORKSPACE
from cove.core.session_script import CALM_SCRIPT, RESTORE_SCRIPT, enter_script
from cove.core.shell_protocol import Report
from cove.errors import CoveError, SpawnFailed
from cove.local.threads import in_thread
from cove.runtime.shell import Shell
from cove.runtime.shell_command import ShellEnded
from cove.runtime.shell_snapshot import ShellSnapshot, StateTooLarge
from cove.runtime.spawner import Spawner
from cove.tasks import owned, settled, shared

# From one snapshot to the next, in a session whose commands may be interrupted: while it waits, and while it does not.
_YOUNG_SECONDS, _OLD_SECONDS = 0.25, 1.0
# Of the time that passes, this part at most goes into snapshots: those of a large state are rare.
_SNAPSHOT_SHARE = 0.05

StartShell = Callable[[ShellSnapshot | None], Awaitable[Shell]]


class SessionShell:
    """Owns the current shell and those before it. Only whoever has the session's turn may use it."""

    def __init__(
        self, shell: Shell, start_shell: StartShell, spawner: Spawner, *, cwd: str, env: Mapping[str, str]
    ) -> None:
        self.current = shell
        self.cwd = cwd
        self.is_stale = True
        self.last_command: str | None = None
        self.state_command: str | None = None
        self.is_replaced = False
        self.restored_command: str | None = None
        self._env: Mapping[str, str] = dict(env)
        self._exports: tuple[Shell, asyncio.Future[bytes | None]] | None = None
        self._old: list[Shell] = []
        self._start_shell = start_shell
        self._spawner = spawner
        self._clock = spawner.clock
        self._state: ShellSnapshot | None = None
        self._snapshot_time = -_OLD_SECONDS
        self._snapshot_seconds = 0.0
        self._recovery: asyncio.Task[None] | None = None
        self._is_abandoned = False
        self._is_moved = False

    @property
    def is_recovering(self) -> bool:
        """Return whether it is being interrupted or replaced."""
        return self._recovery is not None and not self._recovery.done()

    @property
    def needs_recovery(self) -> bool:
        """`recovered` has to be called before anything else."""
        return self._recovery is not None or self._is_moved

    def move(self) -> None:
        """Another mount has taken the place of the one that the shell stands in: it enters that before all else."""
        self._is_moved = True

    def note(self, report: Report) -> None:
        """Directory and variables are as the shell said last."""
        self.cwd = report.cwd
        if self.current.exports is not None:
            self._exports = (self.current, self.current.exports)

    async def env(self) -> dict[str, str]:
        """The exported variables. Raises ShellEnded, LimitExceeded, or ProtocolError when the shell tells nonsense."""
        if self._exports is None:
            return dict(self._env)
        shell, exports = self._exports
        return await shell.environment(exports)

    async def recovered(self) -> None:
        """Wait for an interruption under way."""
        if self._recovery is not None:
            await asyncio.wait([self._recovery])
            self._recovery = None
        if self._is_moved:
            self._is_moved = False
            self._recovery = owned(self._enter_again())
            await self.recovered()

    async def _enter_again(self) -> None:
        with contextlib.suppress(ShellEnded):  # the next call finds a shell that has ended
            self.note(await self.current.run_internal(enter_script(WORKSPACE)))

    async def interrupt(self, ticks: int) -> None:
        """End the running command."""
        self._recovery = owned(self._interrupt(self.current, ticks))
        await shared(self._recovery)

    async def _interrupt(self, shell: Shell, ticks: int) -> None:
        try:
            if (report := await shell.interrupt(ticks)) is not None:
                self.note(report)
                return
        except ShellEnded:
            pass  # it died of the interruption
        await shell.kill()
        await shell.end_leftovers(ticks)
        self._old = [old for old in (*self._old, shell) if old.process.launcher is not None]
        if not self._is_abandoned and not self._spawner.closed:
            self.current = await self._start_shell(self._state)
            self.last_command = self.restored_command = self.state_command
            self.is_replaced = True
            shell.close()
            await in_thread(shell.channel.remove)
            self.note(await self.current.run_internal(CALM_SCRIPT))

    async def calm(self, state: ShellSnapshot) -> None:
        """Wait until a shell that was made from this snapshot is at its loop; from then on it has the snapshot."""
        self.note(await self.current.run_internal(CALM_SCRIPT))
        self._state, self.is_stale = state, False

    def start_settling(self, ticks: int) -> None:
        """Interrupt after a cancelled caller: end what runs, take back what it changed."""
        self._recovery = owned(self._settle(self._recovery, ticks))

    async def _settle(self, recovery: "asyncio.Task[None] | None", ticks: int) -> None:
        if recovery is not None:
            await asyncio.wait([recovery])
        shell = self.current
        try:
            if shell.is_busy:
                await self._interrupt(shell, ticks)
            if shell is self.current:
                self.note(await shell.run_internal(RESTORE_SCRIPT))
        except (ShellEnded, CoveError):
            return  # the next call finds a shell that has ended

    async def snapshot(self) -> ShellSnapshot:
        """The state as it is now. Raises StateTooLarge; then the last one that was not stays."""
        if self._state is None or self.is_stale:
            began = self._clock.time()
            try:
                state, report = await self.current.snapshot()
            finally:
                self._snapshot_time = self._clock.time()
                self._snapshot_seconds = self._snapshot_time - began
            self.close_snapshot()
            self._state = state
            self.note(report)
            self.state_command = self.last_command
            self.is_stale = False
        return self._state

    async def copy(self, state: ShellSnapshot) -> "SessionShell":
        """Start a shell from this snapshot, for another session. What it starts from, it can be restored from."""
        copied = state.for_copy()
        try:
            shell = await self._start_shell(copied)
        except BaseException:
            copied.close()
            raise
        copy = SessionShell(shell, self._start_shell, self._spawner, cwd=self.cwd, env={})
        copy._state, copy.is_stale = copied, False
        copy.last_command = copy.state_command = self.state_command
        try:
            copy.note(await shell.run_internal(CALM_SCRIPT))
        except ShellEnded as error:
            await settled(copy.end())
            raise SpawnFailed(f"the shell of the copy has ended ({error.end.outcome}). Nothing was started.") from None
        except BaseException:
            await settled(copy.end())
            raise
        return copy

    @property
    def snapshot_delay(self) -> float:
        """Return how long the next snapshot has to wait, so that a quick series of commands does not pay for each."""
        return self._snapshot_time + self._pause(_YOUNG_SECONDS) - self._clock.time()

    async def snapshot_if_old(self) -> None:
        """Give a command that may be interrupted something recent to fall back on, where no pause was long enough."""
        if self.is_stale and self._clock.time() > self._snapshot_time + self._pause(_OLD_SECONDS):
            with contextlib.suppress(StateTooLarge):  # the last good one stays
                await self.snapshot()

    def _pause(self, seconds: float) -> float:
        return max(seconds, self._snapshot_seconds / _SNAPSHOT_SHARE)

    @property
    def is_quiet(self) -> bool:
        """Return whether its shell lives and does nothing, so that it can say its state."""
        return self.current.is_alive and not self.current.is_busy and not self.is_recovering

    def share_state(self) -> ShellSnapshot | None:
        """The last snapshot, which the caller closes."""
        return None if self._state is None else self._state.share()

    def close_snapshot(self) -> None:
        """Free the last snapshot. Idempotent."""
        if self._state is not None:
            self._state.close()
            self._state = None

    async def end(self) -> None:
        """End it with all that its commands have started, and remove its files."""
        self._is_abandoned = True
        for shell in (self.current, *self._old):
            await shell.process.sweep()
        if self._recovery is not None:
            await asyncio.wait([self._recovery])
            await self.current.process.sweep()
        self.current.close()
        self.close_snapshot()
        await in_thread(self.current.channel.remove)
