"""Files and trees between this machine and the sandbox.

A file is copied by the kernel from one descriptor to the other. A tree goes as a tar stream through a pipe, packed by
one side and unpacked by the other: an errand inside, a thread here. Neither trusts what it gets.
"""

import asyncio
import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from cove.agent.archive import Budget, Stream, pack, unpack
from cove.agent.tar import Refused, Truncated
from cove.core.file_path import decode_path
from cove.errors import FileTooLarge, ValidationFailed, from_errno
from cove.linux.remove_tree import remove_tree
from cove.runtime.errand import Errand, Errands
from cove.runtime.file_access import FileAccess
from cove.runtime.file_content import Stop, Stopped, copy_all, finished, settled, start_transfer, translated
from cove.runtime.threads import in_thread

MOST_BYTES = 64 << 30
MOST_ENTRIES = 1_000_000
_PIPE_BYTES = 1 << 20
_OPEN_LOCAL = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


async def upload(access: FileAccess, errands: Errands, local: str, path: bytes) -> None:
    """From here to the sandbox."""
    if await in_thread(os.path.isdir, local):
        await upload_tree(errands, partial(_pack, local.encode("utf-8", "surrogateescape")), path)
        return
    with translated(local):
        source = await in_thread(open_local, local)
    try:
        async with access.replacing(path, os.fstat(source).st_mode & 0o777) as file:
            await copy_between(source, file.descriptor, decode_path(path))
    finally:
        os.close(source)


async def download(access: FileAccess, errands: Errands, path: bytes, local: str, max_bytes: int) -> None:
    """From the sandbox to here."""
    found = await access.stat(path, follow=True)
    with limited(decode_path(path), max_bytes):
        if found.is_directory:
            await _download_tree(errands, path, local, max_bytes)
            return
        source = await access.open(path, os.O_RDONLY)
        try:
            await _download_file(source, local, max_bytes)
        finally:
            os.close(source)


@contextmanager
def limited(subject: str, max_bytes: int) -> Iterator[None]:
    """Name the limit in FileTooLarge."""
    try:
        yield
    except FileTooLarge:
        raise FileTooLarge(f"{subject} has more than {max_bytes} bytes: give a larger max_bytes") from None


def check_most(max_bytes: int) -> int:
    """Return the limit of a transfer, or raise ValidationFailed."""
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 0:
        raise ValidationFailed(f"max_bytes must be a number of bytes, not {max_bytes!r}")
    return max_bytes


async def copy_between(read: int, write: int, subject: str, most_bytes: int = MOST_BYTES) -> None:
    """Copy contents in a thread; a cancelled caller's copy stops soon."""
    with Stop() as stop, translated(subject):
        work = start_transfer(copy_all, read, write, most_bytes, stop)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            stop.set()
            with suppress(Stopped):
                await settled(work)
            raise


async def _download_file(source: int, local: str, max_bytes: int) -> None:
    with translated(local):
        write, temporary = await finished(make_local, local)
        try:
            await copy_between(source, write, local, max_bytes)
            await finished(_finish_local, source, write, temporary, local)
        except BaseException:
            await finished(os.unlink, temporary)
            raise
        finally:
            os.close(write)


def open_local(local: str) -> int:
    """A regular file of this machine."""
    descriptor = os.open(local, _OPEN_LOCAL)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValidationFailed(f"{local} is neither a regular file nor a directory")
    return descriptor


def make_local(local: str) -> tuple[int, str]:
    """A new file beside the one that it will replace."""
    if os.path.isdir(local):
        raise IsADirectoryError(errno.EISDIR, "a directory is there", local)
    directory = os.path.dirname(local) or "."
    os.makedirs(directory, exist_ok=True)
    return tempfile.mkstemp(prefix=".cove-", dir=directory)


def _finish_local(source: int, write: int, temporary: str, local: str) -> None:
    os.fchmod(write, os.fstat(source).st_mode & 0o777)
    os.rename(temporary, local)


Pack = Callable[[Stream], None]


def _pack(local: bytes, stream: Stream) -> None:
    pack(local, stream, Budget(MOST_BYTES, MOST_ENTRIES))


async def upload_tree(
    errands: Errands, write_archive: Pack, path: bytes, most_bytes: int = MOST_BYTES, most_entries: int = MOST_ENTRIES
) -> None:
    """Unpack inside what `write_archive`, in a thread, writes as a tar stream."""
    read, write = make_pipe()
    try:
        errand = await errands.start(
            "unpack", path, b"%d" % most_bytes, b"%d" % most_entries, subject=decode_path(path), stdin=read
        )
    except BaseException:
        os.close(write)
        raise
    finally:
        os.close(read)
    await _exchange(errand, write_archive, write)


async def _download_tree(errands: Errands, path: bytes, local: str, max_bytes: int) -> None:
    def receive(stream: Stream) -> None:
        os.makedirs(os.path.dirname(local) or ".", exist_ok=True)
        unpack(stream, local.encode("utf-8", "surrogateescape"), Budget(max_bytes, MOST_ENTRIES), remove_tree)

    read, write = make_pipe()
    try:
        errand = await errands.start(
            "pack", path, b"%d" % max_bytes, b"%d" % MOST_ENTRIES, subject=decode_path(path), stdin=write
        )
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
    await _exchange(errand, receive, read)


async def _exchange(errand: Errand, work: Callable[[Stream], None], descriptor: int) -> None:
    """Let the errand and our thread work at the two ends of a pipe; whoever fails first says why."""
    os.set_blocking(descriptor, False)
    with Stop() as stop:
        errand.process.ended.add_done_callback(lambda _: stop.finish())
        running = start_transfer(work, Stream(descriptor, stop.wait))
        try:
            await asyncio.shield(running)
        except (Stopped, Truncated, BrokenPipeError):
            await errand.finish()  # it ended first, and knows why
            raise ValidationFailed("the other end of the transfer ended too early") from None
        except asyncio.CancelledError:
            stop.set()
            await errand.kill()
            with suppress(Exception):
                await settled(running)
            raise
        except Refused as error:
            raise ValidationFailed(f"refused: {error}") from None
        except OSError as error:
            raise from_errno(error.errno or 0, _named(error)) from None
        finally:
            os.close(descriptor)
            if not running.cancelled() and running.exception() is not None:
                await errand.kill()
        await _finish(errand)


async def _finish(errand: Errand) -> None:
    try:
        await errand.finish()
    except asyncio.CancelledError:
        await errand.kill()
        raise


def make_pipe() -> tuple[int, int]:
    """A wide pipe; one end is for the sandbox."""
    read, write = os.pipe2(os.O_CLOEXEC)
    with suppress(OSError):  # over this user's share of pipe memory: the default size works too
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return read, write


def _named(error: OSError) -> str:
    name = error.filename
    return os.fsdecode(name) if isinstance(name, str | bytes) else "the transfer"
