"""Waiting for a server that is away: a restarted gateway is no event for its clients."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from cove.errors import ConnectionLost, Unreachable

T = TypeVar("T")

PATIENCE: Final = 30.0
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0


async def patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Repeat what can be repeated while the server is away, but not for ever."""
    patience = Patience()
    while True:
        try:
            return await work()
        except (ConnectionLost, Unreachable):
            await patience.pause()


class Patience:
    """How long to wait for a server that is away; starts when it is first needed."""

    def __init__(self) -> None:
        self._deadline: float | None = None
        self._pause = _FIRST_PAUSE

    def renew(self) -> None:
        """The server has answered."""
        self._deadline, self._pause = None, _FIRST_PAUSE

    async def pause(self) -> None:
        """Called while handling the failure: raises it again when patience is at its end."""
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            self._deadline = now + PATIENCE
        if now >= self._deadline:
            raise  # noqa: PLE0704  # the failure that is being handled
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
