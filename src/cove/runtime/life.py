"""The life of a sandbox: its status, and the changes from one to the next, one at a time.

Theory of operation. A sandbox is running, paused, stopped or lost. `stop`, `start`, `pause`, `resume` and `restart` are
changes: each is a task of its own that waits for its turn, looks at the status it finds then, and does what is left to
do. So any number of them can be asked for at once, in any order, and a cancelled caller changes nothing: what was begun
is finished. While a change is under way or waits, the gate is closed, and a call waits for it. Then the status decides:
a call resumes or starts what `wakes`, and is refused where that was not wanted.

Each part of a change is bounded in time (a start, an end, a freeze), so every wait for a change is.

What can go wrong, and why it does not:

- The sandbox is destroyed meanwhile: `close` takes its turn like a change; those that wait behind it find it closed.
- The jail is lost while it is paused, or in the middle of a change: `lose` sets the status; the change ends or fails.
- A start fails: the status stays stopped, and the next call tries again. A restart that fails is lost, as it was.
- A call comes in the moment of an idle stop: it waits at the gate, is seen there, and nothing is stopped.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from cove.errors import CoveError, SandboxDestroyed, SandboxPaused, SandboxStopped, SandboxUnavailable
from cove.model import JournalKind, SandboxStatus
from cove.runtime.activity import Activity
from cove.runtime.journal import Journal
from cove.runtime.notify import Notify
from cove.tasks import Tasks, Work, shared

WAS_STOPPED, WAS_RESTARTED = "was stopped", "was restarted"


class Living(Protocol):
    """A place that has a jail, or has none."""

    id: str

    async def begin(self) -> None:
        """Start a jail; it has none."""

    async def finish(self, why: str) -> None:
        """Keep what outlives the jail, and end the jail if there is one; `why` is what its callers are told."""

    async def freeze(self) -> None:
        """Freeze the jail."""

    async def thaw(self) -> None:
        """Thaw the jail."""


class Keeper(Protocol):
    """Writes down what outlives the process: a server's record. Where `is_final`, the process ends with a stop."""

    is_final: bool

    async def stopping(self, *, wakes: bool) -> None:
        """Write that it is stopped, before it is; nobody else starts it meanwhile. Raises SandboxUnavailable."""

    async def keep(self) -> None:
        """Write the status and all that was set. Raises SandboxUnavailable."""


class NoKeeper:
    """Keep nothing: a sandbox in a program of your own ends with it."""

    is_final = False

    async def stopping(self, *, wakes: bool) -> None:
        """Do nothing."""

    async def keep(self) -> None:
        """Do nothing."""


async def _no_change() -> None:
    """Change nothing."""


class Life:
    """The status of one sandbox and its gate. `wakes` says whether a call starts or resumes it."""

    def __init__(self, living: Living, activity: Activity, on_lost: Callable[[], None]) -> None:
        self._living = living
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self.activity = activity
        self.keeper: Keeper = NoKeeper()
        self.journal = Journal.silent()
        self.status = SandboxStatus.RUNNING
        self.wakes = True
        self.stays_stopped = False  # somebody has stopped it, and no call starts it
        self.lost_because = ""
        self.is_closed = False
        self.is_destroyed = False
        self.turn = asyncio.Lock()
        self.running_turn = _RunningTurn(self)
        self._changes = 0
        self._waiting = 0
        self._entrance = asyncio.Lock()
        self._changed = Notify()
        self._tasks = Tasks()
        self._restarting: asyncio.Task[None] | None = None
        self._is_over = False

    @property
    def is_open(self) -> bool:
        """Return whether a call may begin: it runs, nothing changes that, and nobody came before."""
        return not self._waiting and self._is_steady

    @property
    def _is_steady(self) -> bool:
        return self.status is SandboxStatus.RUNNING and not self._changes

    def begin(self) -> None:
        """Count a call."""
        self.activity.begin()

    def end(self) -> None:
        """Count one call less."""
        self.activity.end()

    async def ready(self, *, starts: bool = True) -> None:
        """Wait for a change under way, then wake what sleeps; raises SandboxStopped or SandboxPaused where it may not.

        Calls go on in the order in which they came. One that is lost or destroyed says so itself.
        """
        if asyncio.get_running_loop() is not self._loop:
            return
        self._waiting += 1
        try:
            async with self._entrance:
                await self._ready(starts)
        finally:
            self._waiting -= 1

    async def _ready(self, starts: bool) -> None:
        while not self._is_steady and not self.is_closed and self.status is not SandboxStatus.LOST:
            if self._changes:
                await self._changed.wait()
            elif self.status is SandboxStatus.STOPPED and not starts:
                return
            else:
                self._check_wakes()
                await self._change(self._wake)

    async def wake_in_turn(self) -> None:
        """Wake one that was paused since a call came through the gate. The caller has the turn."""
        if self.status is SandboxStatus.PAUSED:
            self._check_wakes()
            await self._resume()

    def _check_wakes(self) -> None:
        if not self.wakes:
            raise refusal(self._living.id, self.status)

    async def stop(self, *, wakes: bool = False) -> None:
        """End what runs and keep the rest. Idempotent."""
        await self._change(lambda: self._stop(wakes))

    async def start(self) -> None:
        """Start what is stopped or lost, resume what is paused. Idempotent."""
        await self._change(self._start)

    async def restart(self) -> None:
        """End what runs and start again. Those who ask for it while it is being done share one."""
        if self._restarting is None or self._restarting.done():
            self._restarting = self._begin_change(self._restart)
        await shared(self._restarting)

    async def pause(self, *, wake: bool = True) -> None:
        """Freeze it. Idempotent."""
        self._check_not_ended("pause")
        await self._change(lambda: self._pause(wake))

    async def resume(self) -> None:
        """Thaw it. Idempotent."""
        self._check_not_ended("resume")
        await self._change(self._resume)

    async def rest(self, action: Callable[[], Work[None]]) -> None:
        """Stop or pause one that is idle, unless somebody has come meanwhile."""
        await self._change(lambda: self._rest(action))

    async def stop_idle(self) -> None:
        """Stop so that the next call starts it."""
        await self.rest(lambda: self._stop(True))

    async def pause_idle(self) -> None:
        """Pause so that the next call resumes it."""
        await self.rest(lambda: self._pause(True))

    async def _rest(self, action: Callable[[], Work[None]]) -> None:
        if self.status is SandboxStatus.RUNNING and self.is_unused:
            await action()

    @property
    def is_unused(self) -> bool:
        """Return whether nothing runs and nobody waits to be let in."""
        return not self._waiting and self.activity.is_quiet

    def lose(self, reason: str) -> bool:
        """Note that the jail is gone; False when that is no news."""
        if self.status not in (SandboxStatus.RUNNING, SandboxStatus.PAUSED):
            return False
        self.status, self.lost_because = SandboxStatus.LOST, reason
        self.journal.record(JournalKind.LOST, reason=reason[:200])
        self._changed.notify_all()
        self._on_lost()
        return True

    async def give_up(self) -> bool:
        """Let nobody start it any more, because its process ends; False where somebody has started it meanwhile."""
        async with self.turn:
            self._is_over = self.status is SandboxStatus.LOST
            return self._is_over

    def close(self) -> None:
        """Let no change begin any more; calls that wait go on and find that out."""
        self.is_closed = True
        self._changed.notify_all()

    async def _change(self, work: Callable[[], Work[None]]) -> None:
        await shared(self._begin_change(work))

    def _begin_change(self, work: Callable[[], Work[None]]) -> "asyncio.Task[None]":
        self.check_alive()
        self._changes += 1
        return self._tasks.start(self._in_turn(work), on_end=self._on_change)

    def _on_change(self) -> None:
        self._changes -= 1
        self._changed.notify_all()

    async def _in_turn(self, work: Callable[[], Work[None]]) -> None:
        async with self.turn:
            self.check_alive()
            await work()

    def check_alive(self) -> None:
        """Raise for one that ends, or has: by `destroy`, or with a process whose place another one takes."""
        if self.is_closed and not self.is_destroyed:
            raise SandboxUnavailable(f"sandbox {self._living.id} has stopped; its files are kept: try again")
        if self.is_closed:
            raise SandboxDestroyed(f"sandbox {self._living.id} was destroyed")

    async def _stop(self, wakes: bool) -> None:
        await self.keeper.stopping(wakes=wakes)
        await self._thaw()
        self.wakes = wakes
        if self.status is not SandboxStatus.STOPPED:
            await self._finish(WAS_STOPPED)
            self.journal.record(JournalKind.STOPPED)
            await self.journal.flush()  # whoever is told that it is stopped may read the files at once
        self.stays_stopped = not wakes
        self._is_over = self.keeper.is_final
        await self.keeper.keep()

    async def _start(self) -> None:
        if self.status is SandboxStatus.PAUSED:
            await self._resume()
        elif self.status is not SandboxStatus.RUNNING:
            await self._begin()

    async def begin_again(self, change: Callable[[], Work[None]]) -> None:
        """End the jail, make a change, and start another one. The caller has the turn; calls wait meanwhile."""
        self._changes += 1
        try:
            await self._restart(change)
        finally:
            self._on_change()

    async def _restart(self, change: Callable[[], Work[None]] = _no_change) -> None:
        if self.status is SandboxStatus.PAUSED:
            await self._thaw()
        await self._finish(WAS_RESTARTED)
        self.journal.record(JournalKind.STOPPED)
        try:
            await change()
            await self._begin()
        except (CoveError, OSError) as error:
            self.status, self.lost_because = SandboxStatus.LOST, str(error)
            self.journal.record(JournalKind.LOST, reason=self.lost_because[:200])
            self._on_lost()
            raise

    async def _wake(self) -> None:
        """Start or resume it for a call, unless somebody else has changed it meanwhile."""
        if self.wakes and self.status is not SandboxStatus.LOST:
            await self._start()

    async def _begin(self) -> None:
        if self._is_over:
            raise SandboxUnavailable(f"sandbox {self._living.id} is just being stopped: try again")
        await self._finish(WAS_RESTARTED)  # what a lost one has left
        await self._living.begin()
        self.status, self.wakes, self.stays_stopped = SandboxStatus.RUNNING, True, False
        self.journal.record(JournalKind.STARTED)
        self.activity.touch()
        self.activity.look_again()
        await self.keeper.keep()

    async def _finish(self, why: str) -> None:
        """End the jail. Until then it has its status: who comes now waits at the gate."""
        await self._living.finish(why)
        self.status = SandboxStatus.STOPPED

    async def _pause(self, wake: bool) -> None:
        self._check_present("pause")
        if self.status is SandboxStatus.RUNNING:
            await self._living.freeze()
            self.status = SandboxStatus.PAUSED
            self.journal.record(JournalKind.PAUSED)
        self.wakes = wake
        try:
            await self.keeper.keep()
        except SandboxUnavailable:
            await self._thaw()
            raise

    async def _resume(self) -> None:
        self._check_present("resume")
        if self.status is SandboxStatus.PAUSED:
            await self._thaw()
            self.activity.touch()
            await self.keeper.keep()

    async def _thaw(self) -> None:
        if self.status is SandboxStatus.PAUSED:
            await self._living.thaw()
            if self.status is SandboxStatus.PAUSED:
                self.status, self.wakes = SandboxStatus.RUNNING, True
                self.journal.record(JournalKind.RESUMED)
            self.activity.look_again()

    def _check_not_ended(self, what: str) -> None:
        """Raise for one that was stopped and whose process ends: its status changes no more."""
        if self.is_closed and not self.is_destroyed and self.stays_stopped:
            self._check_present(what)

    def _check_present(self, what: str) -> None:
        if self.status in (SandboxStatus.STOPPED, SandboxStatus.LOST):
            raise nothing_to(what, self._living.id, self.status, self.lost_because)


class _RunningTurn:
    """The turn, for what needs a sandbox that is not frozen: nobody else can wake it as long as the turn is taken."""

    def __init__(self, life: Life) -> None:
        self._life = life

    async def __aenter__(self) -> None:
        await self._life.turn.acquire()
        try:
            await self._life.wake_in_turn()
        except BaseException:
            self._life.turn.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._life.turn.release()


def nothing_to(what: str, id: str, status: SandboxStatus, lost_because: str) -> CoveError:
    """Make the error of a call to pause or resume a sandbox that does not run."""
    if status is SandboxStatus.STOPPED:
        return SandboxStopped(
            f"sandbox {id} is stopped, and there is nothing to {what}: start it first: `start()`, `cove start {id}`",
            id=id,
        )
    return SandboxUnavailable(
        f"sandbox {id} was lost: {lost_because}. `restart()`, `cove restart {id}`, starts it again on its files.", id=id
    )


def refusal(id: str, status: SandboxStatus) -> CoveError:
    """Make the error of a call on a sandbox that was put to sleep, and is to sleep until somebody says otherwise."""
    if status is SandboxStatus.PAUSED:
        return SandboxPaused(
            f"sandbox {id} is paused, and no call resumes it: use `resume()`, `cove resume {id}`. Nothing was started.",
            id=id,
        )
    return SandboxStopped(
        f"sandbox {id} was stopped: start it with `start()`, `cove start {id}`. Nothing was started.", id=id
    )
