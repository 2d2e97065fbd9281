"""Graceful shutdown on SIGINT, SIGTERM and SIGHUP."""

import asyncio
import signal
from collections.abc import Coroutine, Iterable
from types import FrameType
from typing import NoReturn

from cove.cli.descriptors import leave

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def finish(work: Coroutine[object, object, int], numbers: Iterable[int] = STOP_SIGNALS) -> NoReturn:
    """Do the work of a subcommand and end this process with the exit code that it gives."""
    leave(asyncio.run(until_signal(work, numbers)))


async def until_signal(work: Coroutine[object, object, int], numbers: Iterable[int] = STOP_SIGNALS) -> int:
    """Cancel the work when we are told to stop. A second signal does not wait for the cleanup either."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        task.cancel()

    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup(1) and background jobs keep ignoring it
            loop.add_signal_handler(number, stop, number)
    try:
        return await work
    except asyncio.CancelledError:
        if not received:
            raise
        return 128 + received[0]


def raise_on_signal() -> None:
    """Let every signal to stop end work that blocks as Ctrl-C does: with what it does at its end."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
