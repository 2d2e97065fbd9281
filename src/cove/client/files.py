"""Client of the files of a sandbox or of a session: calls, uploads and downloads.

What comes from a sandbox is not trusted: a tree is unpacked by the same code that unpacks it for an embedded one.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import aclosing, suppress
from functools import partial
from os import PathLike
from typing import Protocol

from cove import api
from cove.archive.stream import Stream
from cove.archive.tar import Refused, Truncated
from cove.client.handle import Handle, encode_content
from cove.client.retry import Backoff
from cove.errors import ConnectionLost, FileTooLarge, IsDirectory, ValidationFailed
from cove.local.feed import feed
from cove.local.files import (
    check_most,
    limited,
    make_local,
    open_local,
    pack_tree,
    translated,
    unpack_tree,
    write_sparse,
)
from cove.local.pipe import make_pipe, read_pipe
from cove.local.threads import Stop, finished, start_transfer
from cove.model import FileInfo, FileKind
from cove.model.file import MOST_DOWNLOAD_BYTES
from cove.tasks import settled
from cove.wire import operations, requests
from cove.wire.target import Target

MOST_READ_BYTES = 1 << 30
_CHUNK_BYTES = 1 << 20
_MODE_BEHIND_A_LINK = 0o644  # `stat` describes the link itself


class Files(Handle, api.Files, target=Target.FILES):
    """Relative paths are resolved there."""

    async def read(self, path: str, *, user: str | None = None) -> bytes:
        backoff = Backoff()
        while True:
            try:
                return await self._read(path, user=user)
            except ConnectionLost as error:
                await backoff.pause(error)

    async def _read(self, path: str, *, user: str | None = None) -> bytes:
        parts: list[bytes] = []
        size = 0
        async with aclosing(self.read_stream(path, user=user)) as chunks:
            async for chunk in chunks:
                parts.append(chunk)
                size += len(chunk)
                if size > MOST_READ_BYTES:
                    raise FileTooLarge(f"{path} is too large: read it in pieces with read_stream, or download it")
        return b"".join(parts)

    async def read_text(self, path: str, encoding: str = "utf-8", *, user: str | None = None) -> str:
        data = await self.read(path, user=user)
        try:
            return data.decode(encoding)
        except (UnicodeDecodeError, LookupError) as error:
            raise ValidationFailed(f"{path} is not {encoding} text: {error}") from None

    async def write(self, path: str, data: bytes | str, *, mode: int | None = None, user: str | None = None) -> None:
        request = requests.WriteFile.of(path=path, mode=mode, user=user)
        await self._calls.call(operations.WRITE_FILE, request=request, content=encode_content(data))

    async def upload(self, local: str | PathLike[str], path: str, *, user: str | None = None) -> None:
        await upload(self, os.fspath(local), path, user)

    async def download(
        self, path: str, local: str | PathLike[str], *, max_bytes: int = MOST_DOWNLOAD_BYTES, user: str | None = None
    ) -> None:
        await download(self, path, os.fspath(local), max_bytes, user)


class Contents(Protocol):
    """The part of `api.Files` that a transfer needs."""

    async def stat(self, path: str, *, user: str | None = None) -> FileInfo:
        """Describe the entry under that name."""

    def read_stream(self, path: str, *, user: str | None = None) -> AsyncGenerator[bytes, None]:
        """A file in pieces."""

    def read_archive(self, path: str, *, user: str | None = None) -> AsyncGenerator[bytes, None]:
        """A directory as a tar stream."""

    async def write_stream(
        self, path: str, chunks: AsyncIterable[bytes], *, mode: int | None = None, user: str | None = None
    ) -> int:
        """Replace a file."""

    async def write_archive(self, path: str, chunks: AsyncIterable[bytes], *, user: str | None = None) -> None:
        """Unpack a tar stream."""


async def upload(files: Contents, local: str, path: str, user: str | None = None) -> None:
    """A file or a directory from here to there."""
    if await finished(os.path.isdir, local):
        async with aclosing(read_tree(local)) as chunks:
            await files.write_archive(path, chunks, user=user)
        return
    with translated(local):
        source = await finished(open_local, local)
        try:
            mode = os.fstat(source).st_mode & 0o777
            async with aclosing(read_descriptor(source)) as chunks:
                await files.write_stream(path, chunks, mode=mode, user=user)
        finally:
            os.close(source)


async def download(files: Contents, path: str, local: str, max_bytes: int, user: str | None = None) -> None:
    """A file or a directory from there to here."""
    check_most(max_bytes)
    with limited(path, max_bytes):
        try:
            await _download_file(files, path, local, max_bytes, user)
        except IsDirectory:
            if await finished(os.path.isfile, local):
                raise
            await _download_tree(files, path, local, max_bytes, user)


async def at_most(max_bytes: int, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The chunks, or FileTooLarge as soon as there are more bytes."""
    count = 0
    async with aclosing(chunks):
        async for chunk in chunks:
            count += len(chunk)
            if count > max_bytes:
                raise FileTooLarge(f"more than {max_bytes} bytes")
            yield chunk


async def read_descriptor(descriptor: int) -> AsyncGenerator[bytes, None]:
    """A file here in pieces."""
    while data := await finished(os.read, descriptor, _CHUNK_BYTES):
        yield data


def read_tree(local: str) -> AsyncGenerator[bytes, None]:
    """A directory here as a tar stream; leaving ends the packer."""
    return read_packed(local, partial(pack_tree, local))


async def read_packed(local: str, pack: Callable[[Stream], None]) -> AsyncGenerator[bytes, None]:
    """A path here as what `pack` writes of it; leaving ends the packer."""
    read, write = make_pipe()
    for descriptor in (read, write):
        os.set_blocking(descriptor, False)
    with Stop() as stop:
        packing = start_transfer(_pack_into, pack, write, stop)
        try:
            while data := await read_pipe(read):
                yield data
            with translated(local):
                await settled(packing)
        finally:
            stop.set()
            with suppress(Exception):  # it was raised above, or nobody is there to be told
                await settled(packing)
            os.close(read)


def _pack_into(pack: Callable[[Stream], None], write: int, stop: Stop) -> None:
    try:
        pack(Stream(write, stop.wait))
    finally:
        os.close(write)


async def _download_file(files: Contents, path: str, local: str, max_bytes: int, user: str | None) -> None:
    found = await files.stat(path, user=user)
    is_file = found.kind is FileKind.FILE
    if is_file and found.size > max_bytes:
        raise FileTooLarge(f"more than {max_bytes} bytes")
    with translated(local):
        async with aclosing(at_most(max_bytes, files.read_stream(path, user=user))) as chunks:
            first = await anext(chunks, b"")
            write, temporary = await finished(make_local, local)
            try:
                await finished(write_sparse, write, first, 0)
                size = len(first)
                async for chunk in chunks:
                    await finished(write_sparse, write, chunk, size)
                    size += len(chunk)
                await finished(os.ftruncate, write, size)
                await finished(os.fchmod, write, found.mode & 0o777 if is_file else _MODE_BEHIND_A_LINK)
                await finished(os.rename, temporary, local)
            except BaseException:
                await finished(os.unlink, temporary)
                raise
            finally:
                os.close(write)


async def _download_tree(files: Contents, path: str, local: str, max_bytes: int, user: str | None) -> None:
    def unpack(stream: Stream, _: Stop) -> None:
        try:
            unpack_tree(stream, local, max_bytes)
        except (Refused, Truncated) as error:
            raise ValidationFailed(f"{local}: refused: {error}") from None

    async def unpacked(unpacking: "asyncio.Future[None]", _: Callable[[], object]) -> None:
        with translated(local):
            await settled(unpacking)

    async with aclosing(files.read_archive(path, user=user)) as chunks:
        await feed(chunks, unpack, unpacked)
