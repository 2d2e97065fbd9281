"""Bare pipe readers: how fast output can be read at all."""

import asyncio
import os
import subprocess
from collections.abc import Sequence

READ_BYTES = 65536


def read_blocking(command: Sequence[str]) -> int:
    """Read all output with blocking reads; returns how many bytes there were."""
    total = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        while data := os.read(descriptor, READ_BYTES):
            total += len(data)
    return total


async def read_in_loop(command: Sequence[str]) -> int:
    """Read all output when the event loop says so; returns how many bytes there were."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()
    total = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        os.set_blocking(descriptor, False)

        def on_readable() -> None:
            nonlocal total
            if data := os.read(descriptor, READ_BYTES):
                total += len(data)
            else:
                loop.remove_reader(descriptor)
                ended.set_result(total)

        loop.add_reader(descriptor, on_readable)
        return await ended
