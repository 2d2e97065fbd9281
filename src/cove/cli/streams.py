"""Standard streams of this program as asyncio streams, byte by byte."""

import asyncio
import os
import select
from concurrent.futures import ThreadPoolExecutor

from cove.cli.descriptors import STDERR, STDIN, STDOUT

DESCRIPTORS = {"stdout": STDOUT, "stderr": STDERR}

_READ_BYTES = 65536


class Streams:
    """Reads and writes that may wait for ever, a thread for each direction. Nobody joins them: see `leave`."""

    def __init__(self) -> None:
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="cove-stdin")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="cove-output")

    async def read(self) -> bytes:
        """Read the next bytes of standard input; none at its end."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, _read)

    async def write(self, descriptor: int, data: bytes) -> None:
        """Write everything. Raises BrokenPipeError when nobody reads any more."""
        await asyncio.get_running_loop().run_in_executor(self._writer, _write, descriptor, data)


def _read() -> bytes:
    while True:
        try:
            return os.read(STDIN, _READ_BYTES)
        except BlockingIOError:
            select.select([STDIN], [], [])


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            select.select([], [descriptor], [])
