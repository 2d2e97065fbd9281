"""The event loops that a program may embed Cove in."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

import uvloop

T = TypeVar("T")

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def run_in_loop(name: str, work: Coroutine[object, object, T]) -> T:
    """Run the work in a loop of that kind."""
    with asyncio.Runner(loop_factory=LOOPS[name]) as runner:
        return runner.run(work)
