"""Spawn processes for every surface, from a running jail with its launchers."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from cove.core.command import BASH, Invocation
from cove.errors import CoveError, SpawnFailed
from cove.linux.cgroup import Group
from cove.model import Outcome
from cove.runtime.launcher import START_SECONDS, Launcher, LauncherGone, LauncherPool
from cove.runtime.link import Link
from cove.runtime.memory_kills import MemoryKills
from cove.runtime.notify import Notify
from cove.runtime.process_output import Take
from cove.runtime.supervised import Supervised
from cove.tasks import Tasks, settled, shared, together

# Code inside that kills all it can, again and again, does not keep a caller for ever.
_MOST_TRIES = 10
# The grace that a process has to end in good order when its deadline has passed.
TIMEOUT_GRACE = 0.5


class Spawner:
    """Owns the launchers, the background work and the running processes behind one link."""

    def __init__(
        self,
        link: Link,
        group: Group | None,
        on_lost: Callable[[str], None],
        memory_kills: MemoryKills | None = None,
    ) -> None:
        self._on_lost = on_lost
        self.link = link
        self.clock = link.clock
        self.background = Tasks(self._on_bug)
        self._pool = LauncherPool(link, group, self.background, on_lost)
        self._memory_kills = memory_kills
        self._running: set[Supervised] = set()
        self.activity = Notify()
        self.closed = False
        self.bash: tuple[bytes, ...] = (BASH,)
        self.user = b""

    def is_busy(self) -> bool:
        """Return whether anything runs that was started here, or left behind by it."""
        return bool(self._pool.tenants())

    def count_busy(self) -> int:
        """Count what runs, each with all that it started."""
        return len(self._pool.tenants())

    def begin(self) -> None:
        """Have the first launcher made, of which `open` sees the end."""
        self._pool.begin()

    async def open(self) -> None:
        """Park the first launcher."""
        await self._pool.open()

    async def spawn(
        self,
        invocation: Invocation,
        take: Take,
        *,
        stdin: int | None = None,
        tty: bytes = b"",
        extra: Mapping[int, int] = {},
        deadline: float | None = None,
        on_spawn: Callable[[Supervised], None] = lambda _: None,
    ) -> Supervised:
        """Start one process; returns when it runs, was refused, or has ended. A cancelled caller's is killed.

        `stdin` is duplicated into it; without one it reads the end of file. It gets copies of the `extra` descriptors
        under the numbers they stand for. With `tty`, the name of a terminal inside, that is its controlling terminal
        and all of its streams. At `deadline`, by the jail's clock, it is ended; raises TimeoutError when that passes
        before anything could be handed over. `on_spawn` gets the process before any of its output is taken, and
        gets another one when code inside has killed the launcher before it had read what to start.
        """
        invocation = self._for_image(invocation)
        until = self.clock.time() + START_SECONDS
        for _ in range(_MOST_TRIES):
            try:
                launcher = self._pool.acquire_nowait() or await self._acquire(until, deadline)
            except LauncherGone:
                continue
            if self.closed:
                raise self.link.explain(False)
            process = self.make(take)
            on_spawn(process)
            try:
                process.start(launcher, invocation, stdin=stdin, tty=tty, extra=extra)
            except ConnectionError:
                continue  # that launcher was killed while parked: nothing has run
            except OSError as error:
                raise SpawnFailed(f"the command could not be handed over: {error}. Nothing was started.") from error
            self.add(process)
            if deadline is not None:
                process.set_deadline(deadline, TIMEOUT_GRACE)
            process.expect_start(until)
            await _started(process)
            if not process.never_started or process.ending is Outcome.TIMED_OUT:
                return process
            if process.ending is not None:
                raise _too_slow()
        raise SpawnFailed("whoever was to start the command was killed by code inside, each time. Nothing was started.")

    def _for_image(self, invocation: Invocation) -> Invocation:
        """Run it as the sandbox's user unless it says whose, and by our bash where an image has none."""
        if self.user and not invocation.user:
            invocation = replace(invocation, user=self.user)
        if invocation.argv[0] != BASH or self.bash == (BASH,):
            return invocation
        return replace(invocation, argv=(*self.bash, *invocation.argv[1:]))

    def make(self, take: Take) -> Supervised:
        """Make a process that is to be spawned or forked."""
        return Supervised(
            take,
            pool=self._pool,
            background=self.background,
            on_fault=self._on_lost,
            memory_kills=self._memory_kills,
        )

    def add(self, process: Supervised) -> None:
        """Count a process that runs among those that end with the jail."""
        self._running.add(process)
        self.activity.notify_all()
        process.ended.add_done_callback(partial(self._forget, process))

    async def _acquire(self, until: float, deadline: float | None) -> Launcher:
        try:
            async with self.clock.timeout_at(until if deadline is None else min(until, deadline)):
                return await self._pool.acquire()
        except TimeoutError:
            if deadline is not None and deadline < until:
                raise
            raise _too_slow() from None

    def _forget(self, process: Supervised, _: object) -> None:
        self._running.discard(process)

    async def was_out_of_memory(self) -> bool:
        """Return whether something that has just ended as if by SIGKILL was ended by the OOM killer."""
        return self._memory_kills is not None and await self._memory_kills.was_one()

    async def end_everything(self, reason: str) -> None:
        """End every process of the sandbox but its agent, and say why where somebody reads what it prints."""
        busy = [tenant for tenant in self._pool.tenants() if isinstance(tenant, Supervised)]
        for process in busy:
            process.explain(reason)
        await together(process.sweep() for process in busy)

    def shut(self, outcome: Outcome) -> None:
        """End the bookkeeping of every process; the jail itself ends them. Idempotent.

        Called in the step in which the jail is killed: nobody hears from a launcher that its command was.
        """
        self.closed = True
        self.lose(outcome)
        self._pool.close()

    async def close(self, outcome: Outcome) -> None:
        """Shut, and end all that is under way beside the processes. Idempotent."""
        self.shut(outcome)
        await self.background.aclose()

    def lose(self, outcome: Outcome) -> None:
        """Every running process ended with the sandbox."""
        for process in list(self._running):
            process.lose(outcome)

    def _on_bug(self, error: BaseException) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": "cove: a background task failed", "exception": error}
        )
        self._on_lost(f"internal failure: {error!r}")


def _too_slow() -> SpawnFailed:
    return SpawnFailed(f"the sandbox did not start the command within {START_SECONDS:g} s. Nothing was started.")


async def _started(process: Supervised) -> None:
    """Wait until it runs, or is known not to."""
    try:
        await shared(process.started)
    except asyncio.CancelledError:
        process.end(Outcome.KILLED, 0)
        await settled(process.ended)
        raise
    except CoveError:
        return  # the sandbox was lost meanwhile, and its processes with it
