"""The shell of a session through interruption and replacement, and the snapshot of its state.

A command whose time is up is interrupted. A shell that does not come back from that is replaced by one made from the
last snapshot. Both go on when their caller is cancelled: `recovered` waits for them.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

from cove.core.session_script import NOTHING_SCRIPT, RESTORE_SCRIPT
from cove.core.shell_protocol import Report
from cove.errors import CoveError
from cove.local.threads import in_thread
from cove.runtime.shell import Shell, ShellEnded
from cove.runtime.shell_snapshot import ShellSnapshot, StateTooLarge
from cove.runtime.spawner import Spawner

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
        self._loop = asyncio.get_running_loop()
        self._state: ShellSnapshot | None = None
        self._snapshot_time = -_OLD_SECONDS
        self._snapshot_seconds = 0.0
        self._recovery: asyncio.Task[None] | None = None
        self._is_abandoned = False

    @property
    def is_recovering(self) -> bool:
        """Return whether it is being interrupted or replaced."""
        return self._recovery is not None and not self._recovery.done()

    @property
    def needs_recovery(self) -> bool:
        """`recovered` has to be called before anything else."""
        return self._recovery is not None

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

    async def interrupt(self, ticks: int) -> None:
        """End the running command."""
        self._recovery = self._loop.create_task(self._interrupt(self.current, ticks))
        await asyncio.shield(self._recovery)

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
            self.note(await self.current.run_internal(NOTHING_SCRIPT))

    def start_settling(self, ticks: int) -> None:
        """Interrupt after a cancelled caller: end what runs, take back what it changed."""
        self._recovery = self._loop.create_task(self._settle(self._recovery, ticks))

    async def _settle(self, recovery: "asyncio.Task[None] | None", ticks: int) -> None:
        if recovery is not None:
            await asyncio.gather(recovery, return_exceptions=True)
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
            began = self._loop.time()
            try:
                state, report = await self.current.snapshot()
            finally:
                self._snapshot_time = self._loop.time()
                self._snapshot_seconds = self._snapshot_time - began
            self.close_snapshot()
            self._state = state
            self.note(report)
            self.state_command = self.last_command
            self.is_stale = False
        return self._state

    @property
    def snapshot_delay(self) -> float:
        """Return how long the next snapshot has to wait, so that a quick series of commands does not pay for each."""
        return self._snapshot_time + self._pause(_YOUNG_SECONDS) - self._loop.time()

    async def snapshot_if_old(self) -> None:
        """Give a command that may be interrupted something recent to fall back on, where no pause was long enough."""
        if self.is_stale and self._loop.time() > self._snapshot_time + self._pause(_OLD_SECONDS):
            with contextlib.suppress(StateTooLarge):  # the last good one stays
                await self.snapshot()

    def _pause(self, seconds: float) -> float:
        return max(seconds, self._snapshot_seconds / _SNAPSHOT_SHARE)

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
