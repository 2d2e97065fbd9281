"""Upload and download: files and trees between this machine and the sandbox.

A file is copied by the kernel from one descriptor to the other. A tree goes as a tar stream through a pipe, packed by
one side and unpacked by the other: an errand inside, a thread here. Neither trusts what it gets.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from contextlib import suppress
from functools import partial

from cove.archive.stream import Stream
from cove.archive.tar import Refused, Truncated
from cove.core.file_path import decode_path
from cove.errors import FileTooLarge, ValidationFailed, from_errno
from cove.local.files import (
    MOST_BYTES,
    MOST_ENTRIES,
    limited,
    make_local,
    open_local,
    pack_tree,
    translated,
    unpack_tree,
)
from cove.local.pipe import Stdin, make_pipe, read_pipe
from cove.local.threads import Stop, Stopped, close_in_thread, finished, in_thread, start_transfer
from cove.runtime.errand import Errand, Errands
from cove.runtime.file_access import FileAccess
from cove.runtime.file_content import copy_all
from cove.tasks import settled, shared

# An honest packer stops before: contents, and headers for each entry.
MOST_STREAM_BYTES = MOST_BYTES + MOST_ENTRIES * (8 << 10)


async def upload(access: FileAccess, errands: Errands, local: str, path: bytes) -> None:
    """Copy from here to the sandbox."""
    if await in_thread(os.path.isdir, local):
        await upload_tree(errands, partial(pack_tree, local), path)
        return
    with translated(local):
        source = await in_thread(open_local, local)
    try:
        async with access.replacing(path, os.fstat(source).st_mode & 0o777) as file:
            await copy_between(source, file.descriptor, decode_path(path))
    finally:
        os.close(source)


async def download(access: FileAccess, errands: Errands, path: bytes, local: str, max_bytes: int) -> None:
    """Copy from the sandbox to here."""
    found = await access.stat(path, follow=True)
    with limited(decode_path(path), max_bytes):
        if found.is_directory:
            await _download_tree(errands, path, local, max_bytes)
            return
        source = await access.open(path, os.O_RDONLY)
        try:
            await _download_file(source, local, max_bytes)
        finally:
            close_in_thread([source])


async def copy_between(read: int, write: int, subject: str, most_bytes: int = MOST_BYTES) -> None:
    """Copy contents in a thread; a cancelled caller's copy stops soon."""
    with Stop() as stop, translated(subject):
        await settled(start_transfer(copy_all, read, write, most_bytes, stop), on_cancel=stop.set)


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


def _finish_local(source: int, write: int, temporary: str, local: str) -> None:
    os.fchmod(write, os.fstat(source).st_mode & 0o777)
    os.rename(temporary, local)


Pack = Callable[[Stream], None]


async def upload_tree(
    errands: Errands, write_archive: Pack, path: bytes, most_bytes: int = MOST_BYTES, most_entries: int = MOST_ENTRIES
) -> None:
    """Unpack inside what `write_archive`, in a thread, writes as a tar stream."""
    await unpack_inside(errands, path, work=write_archive, most=(most_bytes, most_entries))


async def _download_tree(errands: Errands, path: bytes, local: str, max_bytes: int) -> None:
    def unpack(stream: Stream) -> None:
        unpack_tree(stream, local, max_bytes)

    await pack_inside(errands, "pack", path, work=unpack, most=(max_bytes, MOST_ENTRIES))


async def unpack_inside(
    errands: Errands, path: bytes, *options: bytes, work: Pack, most: tuple[int, int] = (MOST_BYTES, MOST_ENTRIES)
) -> None:
    """Run the errand that unpacks what `work`, in a thread, writes; its options follow the limits."""
    read, write = make_pipe()
    errand = await _start_at(errands, "unpack", path, most, options, theirs=read, ours=write)
    await _exchange(errand, work, write)


async def pack_inside(
    errands: Errands,
    verb: str,
    path: bytes,
    *options: bytes,
    work: Pack,
    most: tuple[int, int] = (MOST_BYTES, MOST_ENTRIES),
) -> None:
    """Run an errand that packs, and read in a thread, by `work`, what it writes; its options follow the limits."""
    read, write = make_pipe()
    errand = await _start_at(errands, verb, path, most, options, theirs=write, ours=read)
    await _exchange(errand, work, read)


async def _start_at(
    errands: Errands, verb: str, path: bytes, most: tuple[int, int], options: Sequence[bytes], *, theirs: int, ours: int
) -> Errand:
    """Start an errand at one end of a pipe, which is its own from then on; without one, ours is closed too."""
    try:
        limits = [b"%d" % limit for limit in most]
        return await errands.start(verb, path, *limits, *options, subject=decode_path(path), stdin=theirs)
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)


async def _exchange(errand: Errand, work: Callable[[Stream], None], descriptor: int) -> None:
    """Let the errand and our thread work at the two ends of a pipe; whoever fails first says why."""
    os.set_blocking(descriptor, False)
    with Stop() as stop:
        errand.process.ended.add_done_callback(lambda _: stop.finish())
        running = start_transfer(work, Stream(descriptor, stop.wait))
        try:
            await shared(running)
        except (Stopped, Truncated, BrokenPipeError):
            await errand.finish()  # it ended first, and knows why
            raise ValidationFailed("the other end of the transfer ended too early") from None
        except asyncio.CancelledError:
            stop.set()
            await errand.kill()
            with suppress(Exception):  # nobody is there to be told
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


def _named(error: OSError) -> str:
    name = error.filename
    return os.fsdecode(name) if isinstance(name, str | bytes) else "the transfer"


async def read_archive(errands: Errands, path: bytes, exclude: Sequence[bytes] = ()) -> AsyncGenerator[bytes, None]:
    """Pack inside; a slow reader makes the packer wait, leaving ends it."""
    read, write = make_pipe()
    subject = decode_path(path)
    try:
        try:
            errand = await errands.start("pack", path, *_limits(), *exclude, subject=subject, stdin=write)
        finally:
            os.close(write)
        try:
            os.set_blocking(read, False)
            left = MOST_STREAM_BYTES
            while data := await read_pipe(read):
                left -= len(data)
                if left < 0:
                    raise FileTooLarge(f"{subject}: its archive has more than {MOST_STREAM_BYTES} bytes")
                yield data
            await errand.finish()
        finally:
            await errand.kill()
    finally:
        os.close(read)


async def write_archive(errands: Errands, path: bytes, chunks: AsyncIterable[bytes], *, lenient: bool = False) -> None:
    """Unpack inside what comes; if a piece fails or is refused, the old tree stays."""
    read, write = make_pipe()
    stdin = Stdin(write)
    try:
        try:
            mode = b"1" if lenient else b"0"
            errand = await errands.start("unpack", path, *_limits(), mode, subject=decode_path(path), stdin=read)
        finally:
            os.close(read)
        try:
            await _feed(stdin, chunks)
            stdin.close()
            await errand.finish()
        finally:
            await errand.kill()
    finally:
        stdin.close()


async def _feed(stdin: Stdin, chunks: AsyncIterable[bytes]) -> None:
    """An unpacker that reads no more has ended, and says itself why."""
    async for chunk in chunks:
        try:
            await stdin.write(chunk)
        except ValidationFailed:
            return


def _limits() -> tuple[bytes, bytes]:
    return b"%d" % MOST_BYTES, b"%d" % MOST_ENTRIES
