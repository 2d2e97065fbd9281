"""Pipes on the event loop: make one, read it, write a process's standard input or the master of its terminal."""

import asyncio
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress

from cove.errors import CoveError, ProcessExitedBeforeReady, ValidationFailed
from cove.model import ProcessExit

_PIPE_BYTES = 1 << 20
_CHUNK_BYTES = 256 << 10


def make_pipe() -> tuple[int, int]:
    """Return a wide pipe; one end is for the sandbox."""
    read, write = os.pipe2(os.O_CLOEXEC)
    with suppress(OSError):  # over this user's share of pipe memory: the default size works too
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return read, write


async def read_pipe(descriptor: int) -> bytes:
    """Read what is there, or comes next; empty at the end. The descriptor does not block."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            readable = asyncio.Event()  # it may be set again, or when whoever waited was just cancelled
            loop.add_reader(descriptor, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(descriptor)


def _refuse() -> CoveError:
    return ValidationFailed("the process's standard input is closed")


def refuse_ended(subject: str, end: ProcessExit | None) -> CoveError:
    """Make the error of a writer whose process has ended; how is not known while it is being ended."""
    if end is None:
        return ProcessExitedBeforeReady(f"{subject} is being ended", exit_code=None, is_ending=True)
    how = f"{end.outcome}, exit code {end.exit_code}"
    return ProcessExitedBeforeReady(f"{subject} has ended ({how}) and reads no more", exit_code=end.exit_code)


class Stdin:
    """Owns the descriptor; writers take turns and wait while it takes no more."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._waiting: asyncio.Future[None] | None = None
        self._refuse: Callable[[], CoveError] = _refuse

    @property
    def is_closed(self) -> bool:
        """Return whether nothing can be written any more."""
        return self._descriptor < 0

    async def write(self, data: bytes) -> None:
        """Write everything. A cancelled writer may have written a part."""
        async with self._turn:
            view = memoryview(data)
            while view:
                view = view[await self._write_some(view) :]

    def close(self, refuse: Callable[[], CoveError] = _refuse) -> None:
        """Close the pipe; who waits to write, or writes later, gets this error. Idempotent."""
        if self._descriptor >= 0:
            self._refuse = refuse
            descriptor, self._descriptor = self._descriptor, -1
            if self._waiting is not None:
                self._loop.remove_writer(descriptor)
                self._on_writable()
            os.close(descriptor)

    async def _write_some(self, view: memoryview) -> int:
        if self._descriptor < 0:
            raise self._refuse()
        try:
            return os.write(self._descriptor, view)
        except BlockingIOError:
            await self._writable()
            return 0
        except OSError:  # a pipe nobody reads, or a terminal nobody has open
            raise ValidationFailed("the process no longer reads its standard input") from None

    async def _writable(self) -> None:
        self._waiting = self._loop.create_future()
        descriptor = self._descriptor
        self._loop.add_writer(descriptor, self._on_writable)
        try:
            await self._waiting
        finally:
            if self._descriptor == descriptor:
                self._loop.remove_writer(descriptor)
            self._waiting = None

    def _on_writable(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
