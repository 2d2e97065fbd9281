"""Feed a thread with bytes that come in pieces: it reads them from a pipe, and has ended when its caller goes on."""

import asyncio
import os
from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from cove.archive.stream import Stream
from cove.errors import ValidationFailed
from cove.local.pipe import Stdin, make_pipe
from cove.local.threads import Stop, start_transfer
from cove.tasks import settled

T = TypeVar("T")


async def feed(
    chunks: AsyncIterable[bytes],
    work: Callable[[Stream, Stop], T],
    take: Callable[["asyncio.Future[T]", Callable[[], object]], Awaitable[T]],
) -> T:
    """Return what `work` makes of the chunks. `take` waits for it; the second argument hastens its end."""
    read, write = make_pipe()
    os.set_blocking(read, False)
    stdin = Stdin(write)
    try:
        with Stop() as stop:
            working = start_transfer(lambda: work(Stream(read, stop.wait), stop))
            working.add_done_callback(lambda _: stdin.close())
            try:
                await _pour(stdin, chunks)
                return await take(working, stop.set)
            finally:
                stop.set()
                with suppress(Exception):  # it was raised above, or nobody is there to be told
                    await settled(working)
    finally:
        stdin.close()
        os.close(read)


async def _pour(stdin: Stdin, chunks: AsyncIterable[bytes]) -> None:
    """Write them all. A thread that takes no more has ended, and says itself why."""
    async for chunk in chunks:
        try:
            await stdin.write(chunk)
        except ValidationFailed:
            return
    stdin.close()
