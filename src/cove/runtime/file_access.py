"""Short file operations: requests to the agent, which acts with the sandbox's own rights."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cove.agent import protocol
from cove.core.file_path import below, decode_path, name_of
from cove.errors import FileNotFound, IsDirectory, NotDirectory, PermissionDenied, ValidationFailed
from cove.linux.descriptors import Kind, is_kind
from cove.local.files import translated
from cove.local.threads import close_in_thread, finished
from cove.model import FileInfo, FileKind
from cove.runtime.file_content import write_over
from cove.runtime.gate import Gate
from cove.runtime.journal import Journal
from cove.runtime.link import Link
from cove.tasks import owned, settled

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_MICROSECONDS = 253_402_300_799_000_000  # the end of the year 9999, beyond which no datetime goes
_MODE_BITS = 0o7777
# Contents up to this size go through the agent, with the request.
SMALL_BYTES = 32 << 10


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that is being written beside the one it will replace."""

    descriptor: int
    temporary: bytes
    final: bytes


@dataclass(frozen=True, slots=True)
class Stat:
    """The result of stat(2) on a name inside."""

    mode: int
    size: int
    modified_ns: int
    user_id: int
    group_id: int

    @property
    def is_directory(self) -> bool:
        """Return whether it is a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        """Return whether it is a regular file."""
        return stat.S_ISREG(self.mode)


class FileAccess:
    """The agent's file verbs. Paths are absolute bytes; descriptors belong to whoever calls."""

    def __init__(self, link: Link, user: bytes = b"") -> None:
        self._link = link
        self._user = user

    def of_user(self, user: bytes) -> "FileAccess":
        """Return the same for another user."""
        return FileAccess(self._link, user)

    @property
    def gate(self) -> Gate:
        """The gate of the sandbox."""
        return self._link.gate

    @property
    def journal(self) -> Journal:
        """The journal of the sandbox."""
        return self._link.journal

    async def open(self, path: bytes, flags: int) -> int:
        """A regular file, opened as asked."""
        return _check_file(await self._open(path, flags), path)

    async def read(self, path: bytes) -> bytes | int:
        """The content of a small regular file; a large one, opened."""
        found = await self._link.request_content(
            b"read", b"%d" % SMALL_BYTES, path, subject=decode_path(path), user=self._user
        )
        return _check_file(found, path) if isinstance(found, int) else found

    async def write(self, path: bytes, content: bytes, mode: int | None) -> None:
        """Replace a file by one with this content of at most SMALL_BYTES. It happens, or it does not."""
        asked = b"" if mode is None else b"%d" % mode
        await self._link.request(b"write", asked, path, content, subject=decode_path(path), user=self._user)

    async def open_directory(self, path: bytes) -> int | None:
        """A directory, to be listed by ourselves: its user must be able to read and to enter it.

        None where its files are shown to that user alone, by FUSE.
        """
        descriptor = await self._open(below(path, b"."), os.O_RDONLY | os.O_DIRECTORY, decode_path(path))
        try:
            if is_kind(descriptor, Kind.DIRECTORY):
                return descriptor
        except PermissionError:
            close_in_thread([descriptor])
            return None
        close_in_thread([descriptor])
        raise NotDirectory(f"{decode_path(path)}: a directory of the kernel's own is not listed")

    async def _open(self, path: bytes, flags: int, subject: str | None = None) -> int:
        named = decode_path(path) if subject is None else subject
        answer = await self._link.request(
            b"open", b"%d" % flags, b"438", path, expect_descriptors=1, subject=named, user=self._user
        )
        return answer.descriptors[0]

    @asynccontextmanager
    async def replacing(self, path: bytes, mode: int | None) -> AsyncIterator[NewFile]:
        """A new file that takes the place of the one at path at the end, or is removed if anything fails.

        What the sandbox's user may not write is refused at the beginning and, if that has changed, at the end.
        """
        file = await self._create(path)
        try:
            yield file
            if not await self._commit(file, mode, path):
                await self._write_over(file, mode, path)
                await self._discard(file)
        except BaseException:
            await self._discard(file)
            raise
        finally:
            await close_in_thread([file.descriptor])  # what is open for writing cannot be executed: ETXTBSY

    async def _commit(self, file: NewFile, mode: int | None, path: bytes) -> bool:
        asked = b"" if mode is None else b"%d" % mode
        answer = await self._link.request(
            b"commit", asked, file.temporary, file.final, expect_fields=1, subject=decode_path(path), user=self._user
        )
        return answer.fields[0] == b"1"

    async def _write_over(self, file: NewFile, mode: int | None, path: bytes) -> None:
        """Keep a file that cannot be replaced, as one with several names. A cancelled caller waits for the end."""
        descriptor = await self.open(file.final, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            if mode is not None:
                await self.chmod(file.final, mode)
            with translated(decode_path(path)):
                await finished(write_over, file.descriptor, descriptor)
        finally:
            await close_in_thread([descriptor])

    async def _create(self, path: bytes) -> NewFile:
        request = self._link.request(
            b"create", path, expect_fields=2, expect_descriptors=1, subject=decode_path(path), user=self._user
        )
        creating = owned(request)
        try:
            answer = await settled(creating)
        except asyncio.CancelledError:
            if not creating.cancelled() and creating.exception() is None:
                file = NewFile(creating.result().descriptors[0], *creating.result().fields)
                close_in_thread([file.descriptor])
                await self._discard(file)
            raise
        file = NewFile(answer.descriptors[0], *answer.fields)
        try:
            _check_file(file.descriptor, path)
        except PermissionDenied:
            await self._discard(file)
            raise
        return file

    async def _discard(self, file: NewFile) -> None:
        await settled(self._unlink_if_there(file.temporary))

    async def _unlink_if_there(self, path: bytes) -> None:
        try:
            await self.unlink(path)
        except FileNotFound:
            return  # it has its name already

    async def stat(self, path: bytes, *, follow: bool) -> Stat:
        """Describe the entry at a path."""
        answer = await self._link.request(
            b"stat", b"1" if follow else b"0", path, expect_fields=6, subject=decode_path(path), user=self._user
        )
        return Stat(*(signed(field) for field in answer.fields[:5]))

    async def stat_or_none(self, path: bytes) -> Stat | None:
        """Describe what a path leads to, links followed; None when that is nothing."""
        try:
            return await self.stat(path, follow=True)
        except (FileNotFound, NotDirectory):
            return None

    async def info(self, path: bytes) -> FileInfo:
        """A name, described; a link is not followed."""
        found = await self.stat(path, follow=False)
        target = None
        if stat.S_ISLNK(found.mode):
            answer = await self._link.request(
                b"readlink", path, expect_fields=1, subject=decode_path(path), user=self._user
            )
            target = answer.fields[0]
        return make_info(path, found.mode, found.size, found.modified_ns, target)

    async def mkdir(self, path: bytes, *, parents: bool) -> None:
        """Make a directory."""
        await self._link.request(b"mkdir", b"1" if parents else b"0", path, subject=decode_path(path), user=self._user)

    async def unlink(self, path: bytes) -> None:
        """Remove a file or a link."""
        await self._link.request(b"unlink", path, subject=decode_path(path), user=self._user)

    async def rename(self, old: bytes, new: bytes) -> None:
        """Rename. A directory is never replaced by a file, nor one that is not empty by another."""
        await self._link.request(
            b"rename", old, new, subject=f"{decode_path(old)} -> {decode_path(new)}", user=self._user
        )

    async def chmod(self, path: bytes, mode: int) -> None:
        """Change permission bits."""
        await self._link.request(b"chmod", b"%d" % mode, path, subject=decode_path(path), user=self._user)


def _check_file(descriptor: int, path: bytes) -> int:
    """The descriptor if it is of a regular file."""
    try:
        if is_kind(descriptor, Kind.FILE):
            return descriptor
        is_directory = is_kind(descriptor, Kind.DIRECTORY)
    except PermissionError:
        close_in_thread([descriptor])
        raise PermissionDenied(
            f"{decode_path(path)}: Cove is root, to whom a bucket shows no files: copy it inside, to /tmp or from there"
        ) from None
    close_in_thread([descriptor])
    if is_directory:
        raise IsDirectory(f"{decode_path(path)}: Is a directory")
    raise ValidationFailed(f"{decode_path(path)} is not a regular file")


def signed(field: bytes) -> int:
    """A decimal field that may be negative: times before 1970."""
    return -protocol.number(field[1:]) if field.startswith(b"-") else protocol.number(field)


def make_info(path: bytes, mode: int, size: int, modified_ns: int, target: bytes | None) -> FileInfo:
    """The description that callers get; a time beyond what Python can say becomes the last that it can."""
    microseconds = max(-62_135_596_800_000_000, min(modified_ns // 1000, _MOST_MICROSECONDS))
    return FileInfo(
        name=decode_path(name_of(path)),
        path=decode_path(path.rstrip(b"/") or b"/"),
        kind=kind_of(mode),
        size=size,
        mode=mode & _MODE_BITS,
        modified_at=_EPOCH + timedelta(microseconds=microseconds),
        target=None if target is None else decode_path(target),
    )


def kind_of(mode: int) -> FileKind:
    """Return the kind from the kernel's type bits: inode(7)."""
    if stat.S_ISREG(mode):
        return FileKind.FILE
    if stat.S_ISDIR(mode):
        return FileKind.DIRECTORY
    return FileKind.SYMLINK if stat.S_ISLNK(mode) else FileKind.OTHER


def check_mode(mode: int | None) -> int | None:
    """Return the permission bits, or raise ValidationFailed."""
    if mode is not None and (isinstance(mode, bool) or not isinstance(mode, int) or not 0 <= mode <= _MODE_BITS):
        raise ValidationFailed(f"mode must be permission bits such as 0o644, not {mode!r}")
    return mode
