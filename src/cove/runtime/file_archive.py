"""A directory as a tar stream, in either direction: packed and unpacked inside, passed on as it comes."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterable, Sequence

from cove.core.file_path import decode_path
from cove.errors import FileTooLarge, ValidationFailed
from cove.runtime.errand import Errands
from cove.runtime.file_transfer import MOST_BYTES, MOST_ENTRIES, make_pipe
from cove.runtime.stdin import Stdin

_CHUNK_BYTES = 256 << 10
# An honest packer stops before: contents, and headers for each entry.
_MOST_STREAM_BYTES = MOST_BYTES + MOST_ENTRIES * (8 << 10)


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
            left = _MOST_STREAM_BYTES
            while data := await read_pipe(read):
                left -= len(data)
                if left < 0:
                    raise FileTooLarge(f"{subject}: its archive has more than {_MOST_STREAM_BYTES} bytes")
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


async def read_pipe(descriptor: int) -> bytes:
    """What is there, or comes next; empty at the end. The descriptor does not block."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            readable = loop.create_future()
            loop.add_reader(descriptor, readable.set_result, None)
            try:
                await readable
            finally:
                loop.remove_reader(descriptor)


def _limits() -> tuple[bytes, bytes]:
    return b"%d" % MOST_BYTES, b"%d" % MOST_ENTRIES
