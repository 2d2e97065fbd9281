"""Let code that wants an event loop have one, the same for all inputs."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import TypeVar

T = TypeVar("T")

_loop: asyncio.AbstractEventLoop | None = None


def complete(work: Coroutine[object, object, T]) -> T:
    """Run a coroutine to its end."""
    global _loop
    if _loop is None:
        _loop = asyncio.new_event_loop()
    return _loop.run_until_complete(work)


def close() -> None:
    """Close the loop; the next coroutine gets another one."""
    global _loop
    if _loop is not None:
        _loop.close()
        _loop = None


def in_loop(check: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Make a check that is called while a loop runs."""

    async def call(data: bytes) -> None:
        check(data)

    @wraps(check)
    def run(data: bytes) -> None:
        complete(call(data))

    return run
