"""Client of the files of a sandbox, or of a session."""

import builtins
import os
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import aclosing
from os import PathLike
from typing import cast

from cove import api
from cove.client import file_transfer
from cove.client.calls import Calls
from cove.client.retry import Backoff
from cove.errors import ConnectionLost, FileTooLarge, Unreachable, ValidationFailed
from cove.model import Changes, FileEvent, FileInfo, SearchMatch
from cove.model.file import MOST_DOWNLOAD_BYTES
from cove.wire import operations, requests
from cove.wire.coding import decode_json
from cove.wire.operations import AnyOperation
from cove.wire.replies import Count, Exists

MOST_READ_BYTES = 1 << 30


class Files(api.Files):
    """Relative paths are resolved there."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def read(self, path: str) -> bytes:
        backoff = Backoff()
        while True:
            try:
                return await self._read(path)
            except ConnectionLost:
                await backoff.pause()

    async def _read(self, path: str) -> bytes:
        parts: list[bytes] = []
        size = 0
        async with aclosing(self.read_stream(path)) as chunks:
            async for chunk in chunks:
                parts.append(chunk)
                size += len(chunk)
                if size > MOST_READ_BYTES:
                    raise FileTooLarge(f"{path} is too large: read it in pieces with read_stream, or download it")
        return b"".join(parts)

    async def read_text(self, path: str, encoding: str = "utf-8") -> str:
        data = await self.read(path)
        try:
            return data.decode(encoding)
        except (UnicodeDecodeError, LookupError) as error:
            raise ValidationFailed(f"{path} is not {encoding} text: {error}") from None

    def read_stream(self, path: str, *, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        return self._content(operations.READ_FILE, requests.ReadFile(path=path, start=start, end=end))

    async def _content(self, operation: AnyOperation, request: requests.Request) -> AsyncGenerator[bytes, None]:
        """Ask again while the server is away, until the first byte: what comes later may be of another content."""
        backoff, has_begun = Backoff(), False
        while True:
            try:
                async with aclosing(self._calls.content(operation, request)) as chunks:
                    async for chunk in chunks:
                        has_begun = True
                        yield chunk
                return
            except (ConnectionLost, Unreachable):
                if has_begun:
                    raise
                await backoff.pause()

    async def write(self, path: str, data: bytes | str, *, mode: int | None = None) -> None:
        request = requests.WriteFile(path=path, mode=mode)
        await self._calls.upload(operations.WRITE_FILE, request=request, content=_content(data))

    async def write_stream(self, path: str, chunks: AsyncIterable[bytes], *, mode: int | None = None) -> int:
        request = requests.WriteFile(path=path, mode=mode)
        reply = await self._calls.upload(operations.WRITE_FILE, request=request, content=_checked(chunks))
        return decode_json(reply, Count).count

    async def append(self, path: str, data: bytes | str) -> None:
        request = requests.FilePath(path=path)
        await self._calls.upload(operations.APPEND_FILE, request=request, content=_content(data))

    async def mkdir(self, path: str, *, parents: bool = True) -> None:
        await self._calls.do(operations.MAKE_DIRECTORY, request=requests.MakeDirectory(path=path, parents=parents))

    async def remove(self, path: str) -> None:
        await self._calls.do(operations.REMOVE_FILE, request=requests.FilePath(path=path))

    async def remove_tree(self, path: str) -> None:
        await self._calls.do(operations.REMOVE_TREE, request=requests.FilePath(path=path))

    async def rename(self, old: str, new: str) -> None:
        await self._calls.do(operations.RENAME_FILE, request=requests.Rename(old=old, new=new))

    async def move(self, source: str, destination: str) -> None:
        await self._calls.do(operations.MOVE_FILE, request=requests.Transfer(source=source, destination=destination))

    async def copy(self, source: str, destination: str) -> None:
        await self._calls.do(operations.COPY_FILE, request=requests.Transfer(source=source, destination=destination))

    async def list(self, path: str = ".", *, recursive: bool = False, hidden: bool = True) -> builtins.list[FileInfo]:
        request = requests.ListFiles(path=path, recursive=recursive, hidden=hidden)
        return await self._calls.get(operations.LIST_FILES, list[FileInfo], request=request)

    async def stat(self, path: str) -> FileInfo:
        return await self._calls.get(operations.STAT_FILE, FileInfo, request=requests.FilePath(path=path))

    async def exists(self, path: str) -> bool:
        return (await self._calls.get(operations.FILE_EXISTS, Exists, request=requests.FilePath(path=path))).exists

    async def chmod(self, path: str, mode: int) -> None:
        await self._calls.do(operations.CHANGE_MODE, request=requests.ChangeMode(path=path, mode=mode))

    async def glob(self, pattern: str, *, root: str = ".") -> builtins.list[str]:
        request = requests.Glob(pattern=pattern, root=root)
        return await self._calls.get(operations.GLOB_FILES, list[str], request=request)

    async def search(
        self, pattern: str, path: str = ".", *, glob: str | None = None, limit: int = 1000
    ) -> builtins.list[SearchMatch]:
        request = requests.Search(pattern=pattern, path=path, glob=glob, limit=limit)
        return await self._calls.get(operations.SEARCH_FILES, list[SearchMatch], request=request)

    async def replace(self, path: str, old: str, new: str, *, count: int | None = 1) -> int:
        request = requests.Replace(path=path, old=old, new=new, count=count)
        return (await self._calls.get(operations.REPLACE_TEXT, Count, request=request)).count

    async def upload(self, local: str | PathLike[str], path: str) -> None:
        await file_transfer.upload(self, os.fspath(local), path)

    async def download(self, path: str, local: str | PathLike[str], *, max_bytes: int = MOST_DOWNLOAD_BYTES) -> None:
        await file_transfer.download(self, path, os.fspath(local), max_bytes)

    def read_archive(self, path: str = ".") -> AsyncGenerator[bytes, None]:
        return self._content(operations.DOWNLOAD_TREE, requests.FilePath(path=path))

    async def write_archive(self, path: str, chunks: AsyncIterable[bytes]) -> None:
        request = requests.FilePath(path=path)
        await self._calls.upload(operations.UPLOAD_TREE, request=request, content=_checked(chunks))

    async def watch(
        self,
        path: str = ".",
        *,
        recursive: bool = True,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (".git", "node_modules"),
    ) -> AsyncGenerator[FileEvent, None]:
        request = requests.Watch(path=path, recursive=recursive, include=_patterns(include), exclude=_patterns(exclude))
        async with aclosing(self._calls.events(operations.WATCH_FILES, request=request)) as events:
            async for event in events:
                yield cast(FileEvent, event)

    async def check_changes(
        self,
        path: str = ".",
        *,
        since: str | None = None,
        recursive: bool = True,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (".git", "node_modules"),
    ) -> Changes:
        request = requests.CheckChanges(
            path=path, since=since, recursive=recursive, include=_patterns(include), exclude=_patterns(exclude)
        )
        return await self._calls.get(operations.CHECK_CHANGES, Changes, request=request)


def _patterns(patterns: Sequence[str]) -> tuple[str, ...]:
    if isinstance(patterns, str):
        raise ValidationFailed(f"patterns must be a list of strings: write [{patterns!r}]")
    return tuple(patterns)


def _content(data: bytes | str) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    if not isinstance(data, str):
        raise ValidationFailed(f"data must be bytes or a string, not {type(data).__name__}")
    try:
        return data.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ValidationFailed(f"data has a character that UTF-8 cannot carry: {error.reason}") from None


async def _checked(chunks: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    async for chunk in chunks:
        yield _content(chunk)
