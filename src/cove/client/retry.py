"""Retry with backoff while the server is unreachable: a restart of the gateway fails no call."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from cove.errors import ConnectionLost, CoveError, NodeLost, Unreachable
from cove.wire.requests import Request, Waiting

T = TypeVar("T")

RETRY_SECONDS: Final = 30.0
SILENT_SECONDS: Final = 10.0
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0


async def retry(work: Callable[[Request | None], Awaitable[T]], request: Request | None, *, is_repeatable: bool) -> T:
    """Repeat what was not started, and what can be repeated, while the server is away, but not for ever.

    The limit of a wait counts from here, however often it is repeated.
    """
    started = asyncio.get_running_loop().time()
    backoff: Backoff | None = None
    while True:
        try:
            return await work(request if backoff is None else _with_rest(request, started))
        except (ConnectionLost, Unreachable) as error:
            if not is_repeatable and not isinstance(error, Unreachable):
                raise
            backoff = backoff or Backoff(_deadline(request, started), started)
            await backoff.pause(error)


def _deadline(request: Request | None, started: float) -> float | None:
    if not isinstance(request, Waiting) or request.timeout is None:
        return None
    return started + request.timeout


def _with_rest(request: Request | None, started: float) -> Request | None:
    """The request with what is left of its limit."""
    if not isinstance(request, Waiting) or request.timeout is None:
        return request
    left = started + request.timeout - asyncio.get_running_loop().time()
    return msgspec.structs.replace(request, timeout=max(left, 0.0))


class Backoff:
    """Exponential backoff while a server is away; starts when it is first needed, and ends with a deadline.

    A server that is restarted refuses connections. A machine of which nothing is heard is not waited for as long: the
    time that it was silent counts.
    """

    def __init__(self, deadline: float | None = None, began: float | None = None) -> None:
        self._limit = deadline
        self._heard = asyncio.get_running_loop().time() if began is None else began
        self._deadline: float | None = None
        self._pause = _FIRST_PAUSE

    def renew(self) -> None:
        """Reset the backoff: the server has answered."""
        self._deadline, self._pause = None, _FIRST_PAUSE
        self._heard = asyncio.get_running_loop().time()

    async def pause(self, error: CoveError) -> None:
        """Sleep before the next attempt; when the time is over, raise the failure that is being handled again."""
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            self._deadline = now + RETRY_SECONDS if self._limit is None else min(now + RETRY_SECONDS, self._limit)
        if not is_silent(error):
            self._heard = now
        if now >= self._deadline or now >= self._heard + SILENT_SECONDS:
            raise error
        await asyncio.sleep(min(self._pause, self._deadline - now))  # backoff: nothing tells that a server is back
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)


def is_silent(error: CoveError) -> bool:
    """Return whether the machine that was asked, or the node behind it, says nothing at all."""
    return isinstance(error, NodeLost) or "is_silent" in error.details
