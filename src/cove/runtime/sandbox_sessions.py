"""The sessions of one sandbox beyond its jails: kept while it is stopped, and brought back by the next start."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from cove.local.threads import in_thread
from cove.runtime.kept_sessions import SleepingSession, close_sessions, forget_sessions, open_sessions
from cove.runtime.layers import SandboxLayers
from cove.runtime.session import Session
from cove.runtime.sessions import Sessions

# In the place of a sandbox that is stopped.
_KEPT = "sessions"
# What shells have to say their state when their sandbox stops, all at the same time.
_KEEP_SECONDS = 5.0


class SandboxSessions:
    """Those that sleep between two jails of this process, and those that another process has kept at this place.

    `living` gives the sessions of the jail that runs.
    """

    def __init__(self, place: Path, layers: SandboxLayers, living: Callable[[], Sessions]) -> None:
        self._path = place / _KEPT
        self._layers = layers
        self._living = living
        self._sleeping: list[Session] = []

    async def sleep(self, end: Callable[[], Awaitable[None]]) -> None:
        """Keep all of them, end the jail, and let them sleep."""
        self._living().is_ending = True
        kept = await self._living().keep(self._path, _KEEP_SECONDS)
        await end()
        for session, sleeping in kept:
            session.sleep(sleeping)
            self._sleeping.append(session)

    async def wake(self) -> None:
        """Let those that sleep belong to the jail that runs."""
        self._living().wake(self._sleeping)
        self._sleeping = []
        await in_thread(forget_sessions, self._path)

    async def restore_kept(self, start: Callable[[], Awaitable[None]]) -> None:
        """Have those that a process before this one has kept, when the start has succeeded."""
        await self._restore(await in_thread(open_sessions, self._path), start)
        await in_thread(forget_sessions, self._path)

    async def restore_from(self, snapshot: str | None, start: Callable[[], Awaitable[None]]) -> None:
        """Have those of a snapshot, when the start has succeeded."""
        await self._restore(await self.in_snapshot(snapshot), start)

    async def in_snapshot(self, snapshot: str | None) -> list[SleepingSession]:
        """Open the sessions of a snapshot: all of them, if that is still found afterwards."""
        return [] if snapshot is None else await in_thread(open_sessions, self._layers.store.sessions(snapshot))

    async def _restore(self, sleeping: list[SleepingSession], start: Callable[[], Awaitable[None]]) -> None:
        try:
            await start()
        except BaseException:
            close_sessions(sleeping)
            raise
        self._living().restore(sleeping)

    def close(self) -> None:
        """Forget those that sleep."""
        for session in self._sleeping:
            session.close()
