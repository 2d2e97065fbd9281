"""`cove cp`: copy files and directories between this machine and sandboxes."""

import os
import posixpath
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Annotated, NamedTuple

import typer

from cove.api import Files
from cove.cli.connection import KeyOption, Server, UrlOption
from cove.cli.descriptors import BROKEN_PIPE, STDOUT, printable
from cove.cli.options import parse_size
from cove.cli.signals import finish
from cove.cli.streams import Streams
from cove.client.files import at_most, download, upload
from cove.core.identifier import SANDBOX_ID
from cove.errors import FileTooLarge, IsDirectory, ValidationFailed
from cove.local.files import limited
from cove.model import FileInfo, FileKind
from cove.model.file import MOST_DOWNLOAD_BYTES

_INSIDE = re.compile(rf"({SANDBOX_ID}):(.*)", re.DOTALL)
_STREAM = "-"


class Counted:
    """The files of a sandbox for a transfer; what passes is counted."""

    def __init__(self, files: Files, count: Callable[[int], None]) -> None:
        self._files = files
        self._count = count

    async def stat(self, path: str, *, user: str | None = None) -> FileInfo:
        """Describe the entry under that name."""
        return await self._files.stat(path, user=user)

    def read_stream(self, path: str, *, user: str | None = None) -> AsyncGenerator[bytes, None]:
        """Read a file in pieces."""
        return self._read(self._files.read_stream(path, user=user))

    def read_archive(self, path: str, *, user: str | None = None) -> AsyncGenerator[bytes, None]:
        """Read a directory as a tar stream."""
        return self._read(self._files.read_archive(path, user=user))

    async def write_stream(
        self, path: str, chunks: AsyncIterable[bytes], *, mode: int | None = None, user: str | None = None
    ) -> int:
        """Replace a file."""
        async with aclosing(self._pass(chunks)) as counted:
            return await self._files.write_stream(path, counted, mode=mode, user=user)

    async def write_archive(self, path: str, chunks: AsyncIterable[bytes], *, user: str | None = None) -> None:
        """Unpack a tar stream."""
        async with aclosing(self._pass(chunks)) as counted:
            await self._files.write_archive(path, counted, user=user)

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


def cp(
    source: Annotated[str, typer.Argument(metavar="SRC", help="ID:/path, a path here, or -", show_default=False)],
    target: Annotated[str, typer.Argument(metavar="DST", help="ID:/path, a path here, or -", show_default=False)],
    max_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Take at most so much out of a sandbox; 16G by default.")
    ] = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Copy a file or a directory into a sandbox, out of one, or from one to another.

    As with `cp -r`: into DST if that is a directory, otherwise to that name, and missing directories are made.
    `DIR/.` is what is in DIR. A relative path inside starts at the sandbox's working directory; `-` is standard input
    or output. A local name with a colon is written as ./a:b.

    cove cp project my-sandbox:/workspace

    cove cp my-sandbox:report.pdf .

    tar c . | cove cp - my-sandbox:/tmp/all.tar
    """
    most = parse_size("--max-bytes", max_bytes)
    limit = MOST_DOWNLOAD_BYTES if most is None else most
    finish(_copy(Server.named(url, api_key), _parse(source), _parse(target), limit))


class _Inside(NamedTuple):
    """A path in a sandbox."""

    id: str
    path: str


def _parse(text: str) -> _Inside | str:
    found = _INSIDE.fullmatch(text)
    return _Inside(found[1], found[2] or ".") if found else text


async def _copy(server: Server, source: _Inside | str, target: _Inside | str, max_bytes: int) -> int:
    try:
        match source, target:
            case _Inside(), _Inside():
                with limited(source.path, max_bytes):
                    await _between(server, source, target, max_bytes)
            case str(), _Inside():
                await _into(server, source, target)
            case _Inside(), str():
                with limited(source.path, max_bytes):
                    await _out(server, source, target, max_bytes)
            case _:
                raise ValidationFailed("neither side is in a sandbox: write one as ID:/path")
    except BrokenPipeError:
        return BROKEN_PIPE
    return 0


async def _into(server: Server, source: str, target: _Inside) -> None:
    async with server.sandbox(target.id) as sandbox:
        if source == _STREAM:
            with progress(_name(target.path), None) as count:
                await Counted(sandbox.files, count).write_stream(target.path, _standard_input())
            return
        path = await _landing(sandbox.files, target.path, _name(source))
        with progress(_name(source), _size(source)) as count:
            await upload(Counted(sandbox.files, count), source, path)


async def _out(server: Server, source: _Inside, target: str, max_bytes: int) -> None:
    async with server.sandbox(source.id) as sandbox:
        if target == _STREAM:
            await _print(sandbox.files, source.path, max_bytes)
            return
        path = _local_landing(target, _name(source.path))
        with progress(_name(source.path), await _size_inside(sandbox.files, source.path, max_bytes)) as count:
            await download(Counted(sandbox.files, count), source.path, path, max_bytes)


async def _between(server: Server, source: _Inside, target: _Inside, max_bytes: int) -> None:
    async with server.sandbox(source.id) as giver, server.sandbox(target.id) as taker:
        path = await _landing(taker.files, target.path, _name(source.path))
        with progress(_name(source.path), await _size_inside(giver.files, source.path, max_bytes)) as count:
            files = Counted(giver.files, count)
            if await _is_directory(giver.files, source.path):
                async with aclosing(at_most(max_bytes, files.read_archive(source.path))) as archive:
                    await taker.files.write_archive(path, archive)
            else:
                mode = (await files.stat(source.path)).mode & 0o777
                async with aclosing(at_most(max_bytes, files.read_stream(source.path))) as chunks:
                    await taker.files.write_stream(path, chunks, mode=mode)


async def _print(files: Files, path: str, max_bytes: int) -> None:
    if await _is_directory(files, path):
        raise IsDirectory(f"{path} is a directory: `cove exec --in ID 'tar c {path}'` prints one", path=path)
    await _size_inside(files, path, max_bytes)
    streams = Streams()
    async with aclosing(at_most(max_bytes, files.read_stream(path))) as chunks:
        async for chunk in chunks:
            await streams.write(STDOUT, chunk)


async def _standard_input() -> AsyncGenerator[bytes, None]:
    streams = Streams()
    while data := await streams.read():
        yield data


async def _landing(files: Files, target: str, name: str) -> str:
    """Return where something with that name comes to lie, as cp(1) decides it."""
    if name and (target.endswith("/") or await _is_directory(files, target)):
        return posixpath.join(target, name)
    return target


def _local_landing(target: str, name: str) -> str:
    if name and (target.endswith("/") or os.path.isdir(target)):
        return os.path.join(target, name)
    return target


def _name(path: str) -> str:
    """The last name of a path; none for `.`, `..`, `/` and `DIR/.`, of which only the content is meant."""
    name = posixpath.basename(path.rstrip("/"))
    return "" if name in (".", "..") else name


async def _is_directory(files: Files, path: str) -> bool:
    return await files.exists(path.rstrip("/") + "/")


def _size(path: str) -> int | None:
    """Of a file; how much a directory holds, nobody knows before."""
    return os.path.getsize(path) if os.path.isfile(path) else None


async def _size_inside(files: Files, path: str, max_bytes: int) -> int | None:
    found = await files.stat(path)
    if found.kind is not FileKind.FILE:
        return None
    if found.size > max_bytes:
        raise FileTooLarge(f"{path} has {found.size} bytes")
    return found.size
