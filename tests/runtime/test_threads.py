"""Blocking calls beside the event loop."""

import asyncio
import os
import select
import threading
import time

import pytest

from cove.local import threads
from cove.local.threads import Stop, Stopped, close_in_thread

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


def test_the_end_of_a_pipe_is_met_though_somebody_has_a_copy_of_it_for_a_moment() -> None:
    read, write = os.pipe()
    with Stop() as stop:
        stop.finish()  # whoever wrote has ended
        closing = threading.Timer(0.1, os.close, [write])
        closing.start()
        stop.wait(read, select.POLLIN)
        assert os.read(read, 1) == b""
        closing.join()
    os.close(read)


def test_a_pipe_that_somebody_keeps_open_is_waited_for_no_longer_than_a_moment() -> None:
    read, write = os.pipe()
    with Stop() as stop:
        stop.finish()
        began = time.monotonic()
        with pytest.raises(Stopped):
            stop.wait(read, select.POLLIN)
        assert 0.9 < time.monotonic() - began < 5
        os.write(write, b"x")
        stop.wait(read, select.POLLIN)  # what is ready is taken
        stop.set()
        with pytest.raises(Stopped):
            stop.wait(read, select.POLLIN)
    os.close(read)
    os.close(write)
