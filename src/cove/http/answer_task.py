"""The task of a connection that finds an answer, or writes one; and what is left of it when its client has gone."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TypeVar

from cove.http.errors import HttpError
from cove.http.request import Request
from cove.http.response import Answer, Upgrade
from cove.http.stream import Stream
from cove.tasks import owned

T = TypeVar("T")

log = logging.getLogger("cove.http")


class AnswerTask:
    """One at a time, each with its end: it has ended before the server does."""

    __slots__ = ("_cancel",)

    def __init__(self) -> None:
        self._cancel: Callable[[], object] | None = None

    @property
    def is_running(self) -> bool:
        """Return whether there is one."""
        return self._cancel is not None

    def start(self, work: Coroutine[object, object, T], on_end: Callable[["asyncio.Task[T]"], None]) -> None:
        """Start one; `on_end` gets it when it has ended."""
        task = owned(work)
        self._cancel = task.cancel
        task.add_done_callback(partial(self._ended, on_end))

    def _ended(self, on_end: Callable[["asyncio.Task[T]"], None], task: "asyncio.Task[T]") -> None:
        self._cancel = None
        on_end(task)

    def cancel(self) -> None:
        """Cancel it, if there is one."""
        if self._cancel is not None:
            self._cancel()


def settle_lost(task: "asyncio.Task[Answer] | asyncio.Task[None]", request: Request) -> None:
    """Release the answer that nobody takes any more, and log what went wrong after the client had gone."""
    if task.cancelled():
        return
    error = task.exception()
    if error is None and isinstance(answer := task.result(), Upgrade):
        answer.release()
    if error is not None and not isinstance(error, HttpError):
        log.error("%s %s failed after its client had gone", request.method, request.path, exc_info=error)


async def run_upgrade(upgrade: Upgrade, stream: Stream) -> None:
    """Run another protocol on the raw connection, to the end of that."""
    try:
        await upgrade.run(stream)
    finally:
        stream.close()
