"""Cancel a call at any of its suspension points."""

import asyncio
from collections.abc import Coroutine


async def cancel_after(turns: int, work: Coroutine[object, object, object], times: int = 1) -> bool:
    """Cancel the work after that many turns of the loop; True if it was still running."""
    task = asyncio.ensure_future(work)
    for _ in range(turns):
        await asyncio.sleep(0)
        if task.done():
            break
    was_running = not task.done()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([task])
    if was_running:
        assert task.cancelled() or task.exception() is None
    return was_running
