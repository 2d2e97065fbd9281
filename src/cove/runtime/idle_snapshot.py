"""Snapshot the state of a session's shell while nobody uses it, to recover from."""

from collections.abc import Callable

from cove.runtime.clock import ClockTimer
from cove.runtime.session_restore import RestorableShell
from cove.runtime.shell_command import ShellEnded
from cove.runtime.shell_snapshot import StateTooLarge
from cove.runtime.spawner import Spawner
from cove.runtime.turn import Turn

# The snapshot for recovery is taken when the session has been idle for this long: more than a busy client takes from
# one command to the next, for it costs as much as several commands. Where commands have timeouts, it is taken as soon
# as one has ended and the last is not too young.
_IDLE_SECONDS = 0.5


class IdleSnapshot:
    """One timer for a whole series of commands: it looks when the last of them ended.

    `has_timeouts` says that commands of the session may be interrupted, `is_taken_now` that one has the turn for it.
    """

    has_timeouts = False
    _spawner: Spawner
    _turn: Turn

    def __init__(self, shell: RestorableShell, is_running: Callable[[], bool]) -> None:
        self._shell = shell
        self._is_running = is_running
        self._timer: ClockTimer | None = None
        self._last_used = 0.0
        self.is_taken_now = False

    def move(self, spawner: Spawner, turn: Turn) -> None:
        """Belong to that jail from here on; the timer of the one before has ended with it."""
        self._spawner = spawner
        self._turn = turn
        self._clock = spawner.clock
        self._timer = None
        self._last_used = 0.0

    def schedule(self) -> None:
        """Take one when the shell has been idle for long enough; it has just been used."""
        self._last_used = self._clock.time()
        if self._timer is None:
            self._timer = self._clock.call_later(max(0.0, self._delay), self._on_idle)

    def cancel(self) -> None:
        """Take none. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _delay(self) -> float:
        if self.has_timeouts:
            return self._shell.live.snapshot_delay
        return self._last_used + _IDLE_SECONDS - self._clock.time()

    def _on_idle(self) -> None:
        self._timer = None
        left = self._delay
        if left > 0:
            self._timer = self._clock.call_later(left, self._on_idle)
        elif self._is_running() and self._shell.live.is_stale and not self._spawner.closed:
            self._spawner.background.start(self.snapshot_when_free())

    async def snapshot_when_free(self) -> None:
        """Take one now, unless somebody uses the shell."""
        if not self._turn.is_free:
            return  # the command that runs now schedules the next one
        async with self._turn:
            if self._is_running() and self._shell.live.current.is_alive and not self._shell.live.needs_recovery:
                self.is_taken_now = True
                try:
                    await self._shell.live.snapshot()
                except (ShellEnded, StateTooLarge):
                    return  # the next command finds out; the last good snapshot stays
                finally:
                    self.is_taken_now = False
