"""Stop, start, pause and resume a sandbox; set how long it lives, and when it rests."""

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal

from cove.api import AsyncSandbox
from cove.errors import CoveError, ValidationFailed
from cove.model import IdleAction, JournalKind, SandboxSpec, SandboxStatus, SpecFields, make_spec
from cove.runtime.activity import Activity
from cove.runtime.gate import Gate
from cove.runtime.life import Life
from cove.tasks import owned

_MOST_SECONDS = 100 * 365 * 86400.0


class SandboxLife(AsyncSandbox):
    """`life` has the status and all changes of it. `ends_at` is when its lifetime is over.

    `origin` is the spec of its creation.
    """

    _spec: SandboxSpec
    origin: SandboxSpec
    life: Life
    activity: Activity
    created_at: datetime
    ends_at: datetime | None
    loop: asyncio.AbstractEventLoop

    _death: asyncio.TimerHandle | None = None
    _idling: "asyncio.Task[None] | None" = None

    @abstractmethod
    def _start_destroying(self) -> None:
        """Destroy it, in a task."""

    @property
    def spec(self) -> SandboxSpec:
        """The spec that holds now."""
        return self._spec

    @property
    def gate(self) -> Gate:
        """The gate that every call goes through."""
        return self.life

    async def stop(self) -> None:
        await self.life.stop()

    async def start(self) -> None:
        await self.life.start()

    async def restart(self) -> None:
        await self.life.restart()

    async def move(self, node: str | None = None) -> None:
        raise ValidationFailed("this sandbox is in your program: one of a server in a cluster can be moved")

    async def pause(self, *, wake: bool = True) -> None:
        await self.life.pause(wake=wake)

    async def resume(self) -> None:
        await self.life.resume()

    async def set_lifetime(self, seconds: float | None) -> None:
        self._set({"lifetime": seconds})
        self.ends_at = ends_at(datetime.now(UTC), seconds)
        self.schedule_end()
        await self._kept("lifetime")

    async def set_idle_timeout(
        self, seconds: float | None, *, action: IdleAction | Literal["stop", "pause"] = IdleAction.STOP
    ) -> None:
        self._set({"idle_timeout": seconds, "idle_action": action, "keep_alive": False})
        self.activity.touch()
        self.activity.look_again()
        await self._kept("idle_timeout")

    async def set_labels(self, labels: Mapping[str, str]) -> None:
        self._set({"labels": labels})
        await self._kept("labels")

    async def _kept(self, setting: str) -> None:
        await self.life.keeper.keep()
        self.life.journal.record(JournalKind.SETTINGS, operation=setting)

    def _set(self, fields: SpecFields) -> None:
        self.life.check_alive()
        self._spec = make_spec(self._spec, fields)

    def schedule_end(self) -> None:
        """Destroy it when its lifetime is over, and not before."""
        if self._death is not None:
            self._death.cancel()
            self._death = None
        if self.ends_at is not None:
            left = (self.ends_at - datetime.now(UTC)).total_seconds()
            self._death = self.loop.call_later(max(left, 0), self._start_destroying)

    @property
    def idle_seconds(self) -> float | None:
        """The time that it may be idle from now on; None is for ever."""
        is_kept = self._spec.keep_alive or self.life.status is not SandboxStatus.RUNNING
        return None if is_kept else self._spec.idle_timeout

    @property
    def idle_action(self) -> IdleAction:
        """The action on one that has been idle for so long."""
        return self._spec.idle_action

    def rest_when_idle(self) -> None:
        """Stop or pause it whenever it has been idle for as long as its spec says, until it is closed."""
        self._idling = owned(self._rest_when_idle())

    async def _rest_when_idle(self) -> None:
        while True:
            await self.activity.until_idle(lambda: self.idle_seconds)
            try:
                await (self.life.pause_idle() if self.idle_action is IdleAction.PAUSE else self.life.stop_idle())
            except CoveError:
                self.activity.touch()  # it could not be, and is tried again when it has been idle for as long


def ends_at(since: datetime, lifetime: float | None) -> datetime | None:
    """Return when a lifetime is over; one that no calendar reaches never is."""
    return None if lifetime is None or lifetime > _MOST_SECONDS else since + timedelta(seconds=lifetime)
