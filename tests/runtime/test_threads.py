"""Blocking calls beside the event loop."""

import asyncio
import os
import threading

import pytest

from cove.local import threads
from cove.local.threads import close_in_thread

pytestmark = [pytest.mark.anyio, pytest.mark.pure]


async def test_a_descriptor_is_closed_also_when_nobody_waits_for_it_any_more() -> None:
    is_free = threading.Event()
    busy = threads._current().closing.submit(is_free.wait, 60)
    read, write = os.pipe()
    closing = close_in_thread([read])
    closing.cancel()
    is_free.set()
    assert await asyncio.wrap_future(busy)
    await close_in_thread([write])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read)
