"""A program that floods a terminal in every way, and measures its own memory and another terminal's echo."""

import asyncio
import json
import os
import statistics
import time
from contextlib import AsyncExitStack
from pathlib import Path

from cove import AsyncSandbox, Exit, Gap, Output
from cove.api import Terminal, TerminalConnection

ECHO = ["python3", "-I", "-c", "import os, tty; tty.setraw(0)\nwhile True: os.write(1, os.read(0, 1))"]
FLOOD_BYTES = 20_000_000
KEYS = 60


def memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


async def echo_seconds(connection: TerminalConnection) -> float:
    """The middle of the round trips of some keys."""
    events, times = connection.events(), []
    for _ in range(KEYS):
        began = time.perf_counter()
        await connection.write(b"k")
        while not isinstance(await anext(events), Output):
            pass
        times.append(time.perf_counter() - began)
    await events.aclose()
    return statistics.median(times)


async def view(terminal: Terminal, *, pause: float) -> None:
    async with terminal.connect() as connection:
        async for event in connection:
            if isinstance(event, Exit):
                return
            await asyncio.sleep(pause)


async def shown_bytes(terminal: Terminal) -> int:
    """How much the terminal has shown: where a new viewer's scroll-back ends."""
    async with terminal.connect() as connection:
        async for event in connection:
            if not isinstance(event, Output | Gap):
                return int(event.cursor)
    raise AssertionError("no end of the scroll-back")


async def flood(sandbox: AsyncSandbox, keyboard: TerminalConnection, viewers: int, pause: float) -> dict[str, float]:
    """Echo and memory while `yes` prints, and how it is ended: by Ctrl-C, typed by somebody who watches."""
    before = memory_bytes()
    terminal = await sandbox.terminal(shell=["yes"])
    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(asyncio.TaskGroup())
        for _ in range(viewers):
            group.create_task(view(terminal, pause=pause))
        seconds, peak = await echo_seconds(keyboard), memory_bytes()
        while (shown := await shown_bytes(terminal)) < FLOOD_BYTES:
            seconds, peak = max(seconds, await echo_seconds(keyboard)), max(peak, memory_bytes())
        async with terminal.connect() as connection:
            await connection.write(b"\x03")
            async for event in connection:
                if isinstance(event, Exit):
                    code = event.exit_code
    return {"echo": seconds, "growth": peak - before, "shown": shown, "code": code or 0}


async def main() -> None:
    async with AsyncSandbox.create() as sandbox:
        quiet_terminal = await sandbox.terminal(shell=ECHO)
        async with quiet_terminal.connect() as keyboard:
            await echo_seconds(keyboard)
            quiet = await echo_seconds(keyboard)
            kinds = {"no viewer": (0, 0.0), "a slow viewer": (1, 0.05), "ten viewers": (10, 0.0)}
            floods = {name: await flood(sandbox, keyboard, *kind) for name, kind in kinds.items()}
            again = await echo_seconds(keyboard)
    print(json.dumps({"quiet": max(quiet, again), "floods": floods}))


asyncio.run(main())
