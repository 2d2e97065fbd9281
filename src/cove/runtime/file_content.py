"""The contents of files whose descriptors the agent has opened: read and written beside the event loop."""

import asyncio
import errno
import os
import select
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from cove.agent.sparse_copy import copy_data, copy_range
from cove.errors import from_errno
from cove.runtime.threads import start_in_thread

P = ParamSpec("P")
T = TypeVar("T")

CHUNK_BYTES = 1 << 20
_COPY_BYTES = 32 << 20
_WINDOW_BYTES = 64 << 10
_HOLE_BYTES = 64 << 10


class Stopped(Exception):
    """The work in a thread was told to stop."""


class Stop:
    """Tells a thread to stop, also while it waits for a pipe. Opened by `with`, closed when the thread has ended."""

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_set = False

    def __enter__(self) -> "Stop":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._event)
        self._event = -1

    def set(self) -> None:
        """Stop at once."""
        self._is_set = True
        self.finish()

    def finish(self) -> None:
        """Wait no more: what is ready is still taken."""
        if self._event >= 0:
            os.eventfd_write(self._event, 1)

    def check(self) -> None:
        """Raise Stopped if it is time."""
        if self._is_set:
            raise Stopped

    def wait(self, descriptor: int, events: int) -> None:
        """Until the descriptor is ready; raises Stopped."""
        poll = select.poll()
        poll.register(descriptor, events)
        poll.register(self._event, select.POLLIN)
        ready = [number for number, _ in poll.poll()]
        self.check()
        if descriptor not in ready:
            raise Stopped


async def finished(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run in a thread. A cancelled caller waits for its end all the same: it uses descriptors that are ours."""
    return await settled(start_in_thread(function, *args, **kwargs))


def start_transfer(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
    """Begin in a thread of its own: what waits for a sandbox must not keep others from their files."""
    with _one_thread() as executor:
        return asyncio.wrap_future(executor.submit(function, *args, **kwargs))


@contextmanager
def _one_thread() -> Iterator[ThreadPoolExecutor]:
    executor = ThreadPoolExecutor(1, thread_name_prefix="cove-transfer")
    try:
        yield executor
    finally:
        executor.shutdown(wait=False)


async def settled(work: "asyncio.Future[T]") -> T:
    """The result of what must not be left alone; a cancel is raised when it is over."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError:
                continue
        if not work.cancelled():
            work.exception()
        raise


def read_range(descriptor: int, start: int, end: int) -> bytes:
    """The bytes from start to end, or to the end of the file."""
    data = os.pread(descriptor, end - start, start)
    if len(data) in (0, end - start):
        return data
    chunks = [data]
    at = start + len(data)
    while at < end and (data := os.pread(descriptor, end - at, at)):
        chunks.append(data)
        at += len(data)
    return b"".join(chunks)


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything where the descriptor stands."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def count_text(descriptor: int, text: bytes) -> int:
    """How often a text stands in a file."""
    return sum(len(parts) - 1 for parts in _split(descriptor, text))


def replace_text(read: int, write: int, old: bytes, new: bytes) -> int:
    """Write a file with another text in the place of one; returns how often."""
    count = 0
    for parts in _split(read, old):
        write_all(write, new.join(parts))
        count += len(parts) - 1
    return count


def _split(descriptor: int, text: bytes) -> Iterator[list[bytes]]:
    """What stands between a text, a window at a time; what could be its beginning waits for the next window."""
    at, waiting = 0, b""
    window, size = max(_WINDOW_BYTES, len(text)), os.fstat(descriptor).st_size
    while at < size and (data := read_range(descriptor, at, min(at + window, size))):
        at += len(data)
        *parts, last = (waiting + data).split(text)
        cut = max(0, len(last) - len(text) + 1)
        waiting = last[cut:]
        yield [*parts, last[:cut]]
    yield [waiting]


def copy_all(read: int, write: int, most_bytes: int | None, stop: Stop) -> None:
    """Copy what the file holds at the beginning into an empty one; what is appended meanwhile is left out."""
    size = os.fstat(read).st_size
    if most_bytes is not None and size > most_bytes:
        raise OSError(errno.EFBIG, "too large")
    copy_data(read, write, size, _COPY_BYTES, stop.check)


def write_sparse(descriptor: int, data: bytes, at: int) -> None:
    """Write at that place of a new file; whole blocks of zeros stay holes. The size is for the caller to set."""
    begin = 0
    while begin < len(data):
        end = begin + _HOLE_BYTES - (at + begin) % _HOLE_BYTES
        block = data[begin:end]
        if block.count(0) != len(block):
            write_at(descriptor, block, at + begin)
        begin = end


def write_at(descriptor: int, data: bytes, at: int) -> None:
    """Write everything at that place."""
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, at)
        view, at = view[count:], at + count


def write_over(read: int, write: int) -> None:
    """Replace the content of an open file by another's, after its space is reserved: a full disk leaves the old one."""
    size, old_size = os.fstat(read).st_size, os.fstat(write).st_size
    if size:
        try:
            os.posix_fallocate(write, 0, size)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                os.ftruncate(write, old_size)
                raise  # otherwise this file system cannot promise anything
    at = 0
    while at < size and (copied := copy_range(read, write, at, min(_COPY_BYTES, size - at))):
        at += copied
    os.ftruncate(write, size)


@contextmanager
def translated(subject: str) -> Iterator[None]:
    """A kernel error becomes one of ours."""
    try:
        yield
    except OSError as error:
        raise from_errno(error.errno or 0, subject) from None
