"""A progress bar for transfers: bytes and rate on a terminal, nothing elsewhere."""

import sys
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator
from contextlib import aclosing, contextmanager

from cove.api import Files
from cove.cli.descriptors import printable
from cove.model import FileInfo


class Counted:
    """The files of a sandbox for a transfer; what passes is counted."""

    def __init__(self, files: Files, count: Callable[[int], None]) -> None:
        self._files = files
        self._count = count

    async def stat(self, path: str) -> FileInfo:
        """Describe the entry under that name."""
        return await self._files.stat(path)

    def read_stream(self, path: str) -> AsyncGenerator[bytes, None]:
        """A file in pieces."""
        return self._read(self._files.read_stream(path))

    def read_archive(self, path: str) -> AsyncGenerator[bytes, None]:
        """A directory as a tar stream."""
        return self._read(self._files.read_archive(path))

    async def write_stream(self, path: str, chunks: AsyncIterable[bytes], *, mode: int | None = None) -> int:
        """Replace a file."""
        async with aclosing(self._pass(chunks)) as counted:
            return await self._files.write_stream(path, counted, mode=mode)

    async def write_archive(self, path: str, chunks: AsyncIterable[bytes]) -> None:
        """Unpack a tar stream."""
        async with aclosing(self._pass(chunks)) as counted:
            await self._files.write_archive(path, counted)

    async def _read(self, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        async with aclosing(chunks), aclosing(self._pass(chunks)) as counted:
            async for chunk in counted:
                yield chunk

    async def _pass(self, chunks: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
        async for chunk in chunks:
            self._count(len(chunk))
            yield chunk


@contextmanager
def progress(name: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Gives what is told each number of bytes; without a total there is no bar."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = [TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn()]
    with Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task(printable(name), total=total)
        yield lambda count: shown.advance(task, count)
