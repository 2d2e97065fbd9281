"""This program's own standard streams, byte by byte, beside an event loop."""

import asyncio
import os
import select
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NoReturn

STDIN, STDOUT, STDERR = 0, 1, 2
# What a shell reports for a program that wrote to a pipe nobody reads.
BROKEN_PIPE = 128 + signal.SIGPIPE

_READ_BYTES = 65536


class Streams:
    """Reads and writes that may wait for ever, a thread for each direction. Nobody joins them: see `leave`."""

    def __init__(self) -> None:
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="cove-stdin")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="cove-output")

    async def read(self) -> bytes:
        """The next bytes of standard input; none at its end."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, _read)

    async def write(self, descriptor: int, data: bytes) -> None:
        """Write everything. Raises BrokenPipeError when nobody reads any more."""
        await asyncio.get_running_loop().run_in_executor(self._writer, _write, descriptor, data)


def fill_closed_descriptors() -> None:
    """Open what the caller closed (`>&-`): otherwise a socket of ours could become our standard output."""
    for descriptor in (STDIN, STDOUT, STDERR):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one


def leave(code: int) -> NoReturn:
    """End this process without waiting for a thread that waits for a terminal or a pipe."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # None when it was closed before Python started
            with suppress(OSError):  # nobody reads any more, or the terminal is gone
                stream.flush()
    os._exit(code)


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
