"""Files of a sandbox, or of a session: resolve paths, then do each operation in the cheapest safe place."""

import builtins
import os
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Sequence
from contextlib import aclosing
from os import PathLike
from typing import TypeVar

from cove import api
from cove.core.command import encode_text
from cove.core.file_path import below, name_of, resolve_path
from cove.core.users import User
from cove.errors import FileNotFound, ValidationFailed
from cove.local.files import check_most, translated
from cove.local.threads import close_in_thread, finished, start_transfer
from cove.model import Changes, FileEvent, FileInfo, SearchMatch
from cove.model.file import MOST_DOWNLOAD_BYTES
from cove.runtime import file_watch
from cove.runtime.directory_listing import list_directory
from cove.runtime.errand import Errands
from cove.runtime.file_access import SMALL_BYTES, FileAccess, Stat, check_mode
from cove.runtime.file_answers import Listing, Matches, Paths
from cove.runtime.file_arguments import check_content, check_glob, check_limit, check_pattern, check_size, check_times
from cove.runtime.file_content import CHUNK_BYTES, count_text, read_range, replace_text, write_all
from cove.runtime.file_journal import journaled
from cove.runtime.file_transfer import copy_between, download, read_archive, upload, write_archive
from cove.runtime.gate import Gate, gated, gated_call
from cove.runtime.journal import Journal
from cove.runtime.tracing import traced
from cove.tasks import settled

T = TypeVar("T")

FindUser = Callable[[str], Awaitable[User | None]]


async def _find_nobody(_: str) -> User | None:
    """Find the one user that there is."""
    return None


@traced("files", api.Files)
@gated()
@journaled(
    write="path",
    write_stream="path",
    append="path",
    mkdir="path",
    remove="path",
    remove_tree="path",
    rename="old new",
    move="source destination",
    copy="source destination",
    chmod="path",
    replace="path",
    upload="path",
    write_archive="path",
)
class Files(api.Files):
    """`base` gives the directory that relative paths start from; it raises when the owner is gone."""

    def __init__(
        self, access: FileAccess, errands: Errands, base: Callable[[], str], find_user: FindUser = _find_nobody
    ) -> None:
        self._access = access
        self._errands = errands
        self._base = base
        self._find_user = find_user

    @property
    def gate(self) -> Gate:
        """The gate of its sandbox."""
        return self._access.gate

    @property
    def journal(self) -> Journal:
        """The journal of its sandbox."""
        return self._access.journal

    def work_in(self, other: "Files") -> None:
        """Work in the jail that another one works in: this one's has ended."""
        self._access, self._errands, self._find_user = other._access, other._errands, other._find_user

    async def _by(self, user: str | None) -> "Files":
        """The same with the rights of a user of the sandbox."""
        self._base()  # of a sandbox that is gone nobody is asked
        found = None if user is None else await self._find_user(user)
        return self if found is None else self.of_user(found.encode(), self._base)

    def of_user(self, user: bytes, base: Callable[[], str]) -> "Files":
        """Return the files as a user of core/users has them, from another directory; without one, as this has them."""
        if not user:
            return Files(self._access, self._errands, base, self._find_user)
        return Files(self._access.of_user(user), self._errands.of_user(user), base, self._find_user)

    def _path(self, path: str) -> bytes:
        return resolve_path(self._base(), path)

    async def read(self, path: str, *, user: str | None = None) -> bytes:
        by = await self._by(user)
        found = await by._access.read(self._path(path))
        return found if isinstance(found, bytes) else await by._read_large(found, path)

    async def _read_large(self, descriptor: int, path: str) -> bytes:
        try:
            size = check_size(os.fstat(descriptor).st_size, path)
            with translated(path):
                return await finished(read_range, descriptor, 0, size)
        finally:
            close_in_thread([descriptor])

    async def read_text(self, path: str, encoding: str = "utf-8", *, user: str | None = None) -> str:
        by = await self._by(user)
        data = await by.read(path)
        try:
            return data.decode(encoding)
        except (UnicodeDecodeError, LookupError) as error:
            raise ValidationFailed(f"{path} is not {encoding} text: {error}") from None

    async def read_stream(
        self, path: str, *, start: int = 0, end: int | None = None, user: str | None = None
    ) -> AsyncGenerator[bytes, None]:
        by = await self._by(user)
        if start < 0 or (end is not None and end < start):
            raise ValidationFailed(f"start and end must be 0 <= start <= end, not {start} and {end}")
        descriptor = await by._access.open(self._path(path), os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size
            at, last = start, size if end is None else min(end, size)
            while at < last:
                with translated(path):
                    data = await finished(read_range, descriptor, at, min(at + CHUNK_BYTES, last))
                if not data:
                    return
                at += len(data)
                yield data
        finally:
            close_in_thread([descriptor])

    async def write(self, path: str, data: bytes | str, *, mode: int | None = None, user: str | None = None) -> None:
        by = await self._by(user)
        await by._write(path, check_content(data), mode)

    async def _write(self, path: str, content: bytes, mode: int | None = None) -> None:
        if len(content) <= SMALL_BYTES:
            await self._access.write(self._path(path), content, check_mode(mode))
            return
        async with self._access.replacing(self._path(path), check_mode(mode)) as file:
            with translated(path):
                await finished(write_all, file.descriptor, content)

    async def write_stream(
        self, path: str, chunks: AsyncIterable[bytes], *, mode: int | None = None, user: str | None = None
    ) -> int:
        by = await self._by(user)
        where, bits = self._path(path), check_mode(mode)
        pieces = aiter(chunks)
        first = b""
        async for chunk in pieces:
            first += check_content(chunk)
            if len(first) > SMALL_BYTES:
                break
        else:
            await by._access.write(where, first, bits)
            return len(first)
        count = len(first)
        async with by._access.replacing(where, bits) as file:
            with translated(path):
                await finished(write_all, file.descriptor, first)
            async for chunk in pieces:
                content = check_content(chunk)
                with translated(path):
                    await finished(write_all, file.descriptor, content)
                count += len(content)
        return count

    async def append(self, path: str, data: bytes | str, *, user: str | None = None) -> None:
        by = await self._by(user)
        content = check_content(data)
        where = self._path(path)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        try:
            descriptor = await by._access.open(where, flags)
        except FileNotFound:
            await by._access.mkdir(where.rpartition(b"/")[0] or b"/", parents=True)
            descriptor = await by._access.open(where, flags)
        try:
            with translated(path):
                await finished(write_all, descriptor, content)
        finally:
            await close_in_thread([descriptor])

    async def mkdir(self, path: str, *, parents: bool = True, user: str | None = None) -> None:
        by = await self._by(user)
        await by._access.mkdir(self._path(path), parents=parents)

    async def remove(self, path: str, *, user: str | None = None) -> None:
        by = await self._by(user)
        await by._access.unlink(self._path(path))

    async def remove_tree(self, path: str, *, user: str | None = None) -> None:
        by = await self._by(user)
        await by._errands.run("remove", self._path(path), subject=path)

    async def rename(self, old: str, new: str, *, user: str | None = None) -> None:
        by = await self._by(user)
        await by._access.rename(self._path(old), self._path(new))

    async def move(self, source: str, destination: str, *, user: str | None = None) -> None:
        by = await self._by(user)
        start = self._path(source)
        target = await by._target(start, self._path(destination))
        try:
            await by._access.rename(start, target)
        except ValidationFailed as error:
            if error.details.get("errno") != "EXDEV":
                raise
            await by._errands.run("move", start, target, subject=f"{source} -> {destination}")

    async def copy(self, source: str, destination: str, *, user: str | None = None) -> None:
        by = await self._by(user)
        start = self._path(source)
        found = await by._access.stat(start, follow=True)
        target = await by._target(start, self._path(destination))
        if not found.is_file:
            await by._errands.run("copy", start, target, subject=f"{source} -> {destination}")
            return
        descriptor = await by._access.open(start, os.O_RDONLY)
        try:
            async with by._access.replacing(target, found.mode & 0o777) as file:
                await copy_between(descriptor, file.descriptor, destination)
                await finished(os.utime, file.descriptor, ns=(found.modified_ns, found.modified_ns))
        finally:
            close_in_thread([descriptor])

    async def _target(self, source: bytes, destination: bytes) -> bytes:
        """Return where a file moved or copied to that destination ends up: as `mv` and `cp` do it."""
        there = await self._access.stat_or_none(destination)
        return below(destination, name_of(source)) if there is not None and there.is_directory else destination

    async def list(
        self, path: str = ".", *, recursive: bool = False, hidden: bool = True, user: str | None = None
    ) -> builtins.list[FileInfo]:
        by = await self._by(user)
        where = self._path(path)
        if recursive:
            return await by._list_tree(where, path, hidden)
        descriptor = await by._access.open_directory(where)
        if descriptor is None:
            return await by._list_tree(where, path, hidden, deep=False)
        try:
            with translated(path):
                return await finished(list_directory, descriptor, where, hidden)
        finally:
            close_in_thread([descriptor])

    async def _list_tree(self, where: bytes, path: str, hidden: bool, *, deep: bool = True) -> builtins.list[FileInfo]:
        options = [b"1" if each else b"0" for each in (hidden, deep)]
        return await self._gather("list", where, *options, subject=path, decode=Listing(where).decode)

    async def _gather(
        self, verb: str, *arguments: bytes, subject: str, decode: Callable[[builtins.list[bytes]], T]
    ) -> builtins.list[T]:
        found: builtins.list[T] = []
        async with aclosing(self._errands.stream(verb, *arguments, subject=subject, decode=decode)) as batches:
            async for batch in batches:
                found += batch
        return found

    async def stat(self, path: str, *, user: str | None = None) -> FileInfo:
        by = await self._by(user)
        return await by._access.info(self._path(path))

    @gated_call
    async def stat_owned(self, path: str, *, follow: bool, user: str | None = None) -> Stat:
        """Describe an entry with the numbers of its owner and group, as they are inside."""
        by = await self._by(user)
        return await by._access.stat(self._path(path), follow=follow)

    async def exists(self, path: str, *, user: str | None = None) -> bool:
        by = await self._by(user)
        return await by._access.stat_or_none(self._path(path)) is not None

    async def chmod(self, path: str, mode: int, *, user: str | None = None) -> None:
        by = await self._by(user)
        bits = check_mode(mode)
        if bits is None:
            raise ValidationFailed("mode must be permission bits such as 0o644")
        await by._access.chmod(self._path(path), bits)

    async def glob(self, pattern: str, *, root: str = ".", user: str | None = None) -> builtins.list[str]:
        by = await self._by(user)
        encoded = check_glob(pattern)
        return await by._gather("glob", self._path(root), encoded, subject=root, decode=Paths().decode)

    async def search(
        self, pattern: str, path: str = ".", *, glob: str | None = None, limit: int = 1000, user: str | None = None
    ) -> builtins.list[SearchMatch]:
        by = await self._by(user)
        where = self._path(path)
        most = b"%d" % check_limit(limit)
        arguments = (check_pattern(pattern, "pattern"), check_pattern(glob or "", "glob"), most)
        return await by._gather("search", where, *arguments, subject=path, decode=Matches(where, limit).decode)

    async def replace(self, path: str, old: str, new: str, *, count: int | None = 1, user: str | None = None) -> int:
        by = await self._by(user)
        text, other = check_content(old), check_content(new)
        if not text:
            raise ValidationFailed("old is empty: it stands everywhere")
        found = await by._access.read(self._path(path))
        if isinstance(found, bytes):
            times = check_times(found.count(text), count, path)
            size = check_size(len(found) + times * (len(other) - len(text)), path)
            in_place = found.replace(text, other) if size <= CHUNK_BYTES else await finished(found.replace, text, other)
            await by._write(path, in_place)
            return times
        try:
            return await by._replace_large(found, path, text, other, count)
        finally:
            close_in_thread([found])

    async def _replace_large(self, descriptor: int, path: str, old: bytes, new: bytes, count: int | None) -> int:
        """In a thread, a window at a time: the file is never in memory as a whole."""
        size = check_size(os.fstat(descriptor).st_size, path)
        with translated(path):
            times = check_times(await settled(start_transfer(count_text, descriptor, old)), count, path)
            check_size(size + times * (len(new) - len(old)), path)
            async with self._access.replacing(self._path(path), None) as file:
                done = await settled(start_transfer(replace_text, descriptor, file.descriptor, old, new))
                if done != times:
                    raise ValidationFailed(f"{path} was changed meanwhile")
        return times

    async def upload(self, local: str | PathLike[str], path: str, *, user: str | None = None) -> None:
        by = await self._by(user)
        await upload(by._access, by._errands, os.fspath(local), self._path(path))

    async def download(
        self, path: str, local: str | PathLike[str], *, max_bytes: int = MOST_DOWNLOAD_BYTES, user: str | None = None
    ) -> None:
        by = await self._by(user)
        await download(by._access, by._errands, self._path(path), os.fspath(local), check_most(max_bytes))

    async def read_archive(
        self, path: str = ".", *, exclude: Sequence[str] = (), user: str | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Leave out excluded paths below `path`, with all below them."""
        by = await self._by(user)
        excluded = [encode_text(each, "exclude") for each in exclude]
        chunks = read_archive(by._errands, self._path(path), excluded)
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            await chunks.aclose()

    async def write_archive(
        self, path: str, chunks: AsyncIterable[bytes], *, lenient: bool = False, user: str | None = None
    ) -> None:
        """Unpack; with `lenient` as tar(1): absolute names lose their slash, links may lead anywhere."""
        by = await self._by(user)
        await write_archive(by._errands, self._path(path), chunks, lenient=lenient)

    async def watch(
        self,
        path: str = ".",
        *,
        recursive: bool = True,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (".git", "node_modules"),
        user: str | None = None,
    ) -> AsyncGenerator[FileEvent, None]:
        by = await self._by(user)
        filter = file_watch.encode_filter(recursive, include, exclude)
        events = file_watch.watch(by._errands, self._path(path), filter)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    async def check_changes(
        self,
        path: str = ".",
        *,
        since: str | None = None,
        recursive: bool = True,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (".git", "node_modules"),
        user: str | None = None,
    ) -> Changes:
        by = await self._by(user)
        filter = file_watch.encode_filter(recursive, include, exclude)
        return await file_watch.check_changes(by._errands, self._path(path), filter, since)
