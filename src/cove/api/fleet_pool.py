"""The sandboxes of a fleet: made when they are needed, given back by a reset, and thrown away."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cove.errors import CoveError, LimitExceeded, NoCapacity, ValidationFailed
from cove.model import ResetReport
from cove.tasks import Tasks, settled, together

if TYPE_CHECKING:
    from cove.api.sandbox import AsyncSandbox

# After a server was full, it is asked for more again.
_FULL_SECONDS: Final = 30.0
_MOST_LEFT: Final = 1024
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0


class SandboxPool:
    """At most `size` sandboxes, each with one task at a time. `made` counts those that are being made or reset too."""

    def __init__(self, size: int, make: Callable[[], Awaitable["AsyncSandbox"]], *, reuse: bool) -> None:
        self.size = size
        self.made = 0
        self._make = make
        self._reuse = reuse
        self._limit = size
        self._full_until = 0.0
        self._idle: list[AsyncSandbox] = []
        self._used: set[AsyncSandbox] = set()
        self._left: deque[AsyncSandbox] = deque(maxlen=_MOST_LEFT)
        self._changed = asyncio.Event()
        self._returning = Tasks()
        self._is_closed = False

    async def open(self) -> None:
        """Make the first one: what is wrong with all of them is known at once."""
        self._idle.append(await self._create())

    async def acquire(self) -> "AsyncSandbox":
        """Take a sandbox that is as it was created. The caller gives it back, or throws it away."""
        while True:
            if self._is_closed:
                raise ValidationFailed("this fleet is closed: use it in its `with` block")
            if self._idle:
                sandbox = self._idle.pop()
                self._used.add(sandbox)
                return sandbox
            if self.made < self._most():
                if (made := await self._create_if_room()) is not None:
                    self._used.add(made)
                    return made
            else:
                self._changed.clear()
                await self._changed.wait()

    def _most(self) -> int:
        if asyncio.get_running_loop().time() >= self._full_until:
            self._limit = self.size
        return self._limit

    async def _create_if_room(self) -> "AsyncSandbox | None":
        """Make one more. None: there is no room, and those there are go on; where there are none, wait for others'."""
        until, pause = asyncio.get_running_loop().time() + _FULL_SECONDS, _FIRST_PAUSE
        while True:
            try:
                return await self._create()
            except (LimitExceeded, NoCapacity):
                now = asyncio.get_running_loop().time()
                if self.made:
                    self._limit, self._full_until = self.made, now + _FULL_SECONDS
                    return None
                if now >= until:
                    raise
            await asyncio.sleep(pause)  # backoff: nobody tells when there is room
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _create(self) -> "AsyncSandbox":
        self.made += 1
        try:
            return await self._make()
        except BaseException:
            self._gone()
            raise

    def give_back(self, sandbox: "AsyncSandbox") -> None:
        """Reset it for the next task, beside the others; what cannot be proven to be reset is thrown away."""
        if self._reuse and not self._is_closed:
            self._returning.start(self._reset(sandbox))
        else:
            self.throw_away(sandbox)

    def throw_away(self, sandbox: "AsyncSandbox") -> None:
        """Destroy it beside the others: its place is free when it is gone."""
        self._returning.start(self._destroy(sandbox))

    async def _reset(self, sandbox: "AsyncSandbox") -> None:
        try:
            is_proven = _is_as_created(await sandbox.reset())
        except CoveError:
            is_proven = False
        except asyncio.CancelledError:
            return  # the fleet closes, and destroys it
        if is_proven:
            self._used.discard(sandbox)
            self._idle.append(sandbox)
            self._changed.set()
        else:
            await self._destroy(sandbox)

    async def _destroy(self, sandbox: "AsyncSandbox") -> None:
        try:
            await settled(sandbox.destroy())
        except CoveError:  # its machine is away: tried again at the end, and its lifetime ends it
            self._left.append(sandbox)
        finally:
            self._used.discard(sandbox)
            self._gone()

    def _gone(self) -> None:
        self.made -= 1
        self._changed.set()

    async def close(self) -> None:
        """Destroy all sandboxes, whoever uses them. Idempotent."""
        self._is_closed = True
        self._changed.set()
        await settled(self._close())

    async def _close(self) -> None:
        await self._returning.aclose()
        again = [*self._left]
        left, self._idle = [*self._idle, *self._used], []
        await together([*(self._destroy(sandbox) for sandbox in left), *(_destroy_again(sandbox) for sandbox in again)])


async def _destroy_again(sandbox: "AsyncSandbox") -> None:
    with suppress(CoveError):
        await settled(sandbox.destroy())


def _is_as_created(report: ResetReport) -> bool:
    return (report.files, report.processes, report.shared_memory) == (0, 0, 0)
