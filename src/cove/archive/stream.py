"""Pack and unpack trees through a pipe, across the sandbox's border in either direction.

Neither side trusts the stream or the tree: every step is made from an open directory and follows no link. What is
unpacked is complete in a directory of its own before anything of the target changes.
"""

from __future__ import annotations

import errno
import os
import stat
from itertools import islice

from cove.archive import tar
from cove.archive.replacing import replace_content
from cove.archive.sparse_copy import data_ranges
from cove.archive.tar import Truncated
from cove.archive.unpacking import IMPLICIT_MODE, MOST_DEPTH, OPEN_DIRECTORY, TEMPORARY, Unpacking, merge, set_modes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from typing import ParamSpec, TypeVar

    from cove.archive.unpacking import Directories

    P = ParamSpec("P")
    T = TypeVar("T")

CHUNK = 1 << 20
# stat(2): what st_blocks counts.
BLOCK_BYTES = 512
OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Budget:
    """The bytes and entries that may pass; more is EFBIG (decompression bombs, sparse bombs)."""

    def __init__(self, most_bytes: int, most_entries: int) -> None:
        self.bytes = most_bytes
        self.entries = most_entries

    def spend(self, size: int) -> None:
        self.bytes -= size
        self.entries -= 1
        if self.bytes < 0 or self.entries < 0:
            raise OSError(errno.EFBIG, "more than may be transferred at once")


class Stream:
    """One end of a pipe. `wait` is called when a non-blocking one is not ready; it raises to give up."""

    def __init__(self, fd: int, wait: Callable[[int, int], None] | None = None) -> None:
        self.fd = fd
        self.wait = wait
        self.can_splice = hasattr(os, "splice")
        self.pending = b""  # read already, from the very beginning

    def read(self, size: int) -> bytes:
        """Exactly so many bytes."""
        chunks = [self.pending[:size]]
        self.pending = self.pending[size:]
        size -= len(chunks[0])
        while size:
            chunk = self.ready(1, os.read, self.fd, min(size, CHUNK))
            if not chunk:
                raise Truncated("the archive ends in the middle")
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self.ready(4, os.write, self.fd, view) :]

    def send_file(self, file: int, start: int, end: int) -> None:
        """Send some bytes of a file; what a shrinking file lacks is zero."""
        while start < end:
            sent = self.ready(4, os.sendfile, self.fd, file, start, min(end - start, CHUNK))
            if not sent:
                self.write_zeros(end - start)
                return
            start += sent

    def write_zeros(self, size: int) -> None:
        while size:
            self.write(bytes(min(size, CHUNK)))
            size -= min(size, CHUNK)

    def receive_file(self, file: int, size: int) -> None:
        """Receive the next so many bytes into a file."""
        while size and self.can_splice:
            try:
                moved = self.ready(1, os.splice, self.fd, file, min(size, CHUNK))
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self.can_splice = False  # this is no pipe, or that file system cannot
                break
            if not moved:
                raise Truncated("the archive ends in the middle")
            size -= moved
        while size:
            data = self.read(min(size, CHUNK))
            size -= len(data)
            while data:
                data = data[os.write(file, data) :]

    def ready(self, events: int, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        while True:
            try:
                return call(*arguments, **options)
            except BlockingIOError:
                if self.wait is None:
                    raise
                self.wait(self.fd, events)


def pack(top: bytes, stream: Stream, budget: Budget, excluded: Container[tuple[bytes, ...]] = ()) -> None:
    """Write what is in a directory, without the paths that are excluded and all below them.

    Pipes, sockets and devices are left out. An absolute link into the directory becomes a relative one, so that it
    leads to the same place wherever the archive is unpacked.
    """
    fd = os.open(top, OPEN_DIRECTORY & ~os.O_NOFOLLOW)
    try:
        Packing(top, stream, budget, excluded).directory(fd, [])
    finally:
        os.close(fd)
    stream.write(bytes(2 * tar.BLOCK))


class Packing:
    """Writes the members below a directory, which `tops` are the absolute names of."""

    def __init__(self, top: bytes, stream: Stream, budget: Budget, excluded: Container[tuple[bytes, ...]]) -> None:
        self.tops = {os.path.join(name, b"") for name in (os.path.normpath(top), os.path.realpath(top))}
        self.stream = stream
        self.budget = budget
        self.excluded = excluded

    def directory(self, fd: int, parts: list[bytes]) -> None:
        """Pack a directory: its own member, then everything in it, sorted."""
        if len(parts) > MOST_DEPTH:
            raise OSError(errno.ENAMETOOLONG, "nested too deeply")
        found = os.fstat(fd)
        self.budget.spend(0)
        self.member(tar.Member(tar.DIRECTORY, parts, found.st_mode, mtime=int(found.st_mtime)))
        for name in sorted(map(os.fsencode, os.listdir(fd))):
            if (*parts, name) not in self.excluded:
                self.entry(fd, [*parts, name])

    def entry(self, directory: int, parts: list[bytes]) -> None:
        """Pack one name: a link as a link, a file with its content, a directory with all below it."""
        name = parts[-1]
        try:
            mode = os.lstat(name, dir_fd=directory).st_mode
            if stat.S_ISLNK(mode):
                self.budget.spend(0)
                link = self.relative(parts, os.readlink(name, dir_fd=directory))
                self.member(tar.Member(tar.SYMLINK, parts, 0o777, link=link))
                return
            if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
                return
            fd = os.open(name, OPEN_DIRECTORY if stat.S_ISDIR(mode) else OPEN_FILE, dir_fd=directory)
        except FileNotFoundError:
            return  # removed while we looked
        except OSError as error:
            error.filename = b"/".join(parts)
            raise
        try:
            self.opened(fd, parts)
        finally:
            os.close(fd)

    def opened(self, fd: int, parts: list[bytes]) -> None:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            self.directory(fd, parts)
        elif stat.S_ISREG(found.st_mode):
            self.budget.spend(found.st_size)
            self.file(fd, tar.Member(tar.FILE, parts, found.st_mode, found.st_size, int(found.st_mtime)), found)

    def file(self, fd: int, member: tar.Member, found: os.stat_result) -> None:
        """Pack a file, without the holes if there are any."""
        ranges = [(0, member.size)]
        if found.st_blocks * BLOCK_BYTES < found.st_size:
            data = list(islice(data_ranges(fd, member.size), tar.MOST_RANGES))
            if data != ranges and len(data) < tar.MOST_RANGES:
                ranges = member.ranges = data
        self.member(member)
        for start, end in ranges:
            self.stream.send_file(fd, start, end)
        self.stream.write(bytes(tar.padding(sum([end - start for start, end in ranges]))))

    def member(self, member: tar.Member) -> None:
        self.stream.write(tar.encode_member(member))

    def relative(self, parts: list[bytes], link: bytes) -> bytes:
        """Return the link, without the name of the directory that everything is in."""
        for top in self.tops:
            if os.path.join(link, b"").startswith(top) and b".." not in link.split(b"/"):
                return b"../" * (len(parts) - 1) + link[len(top) :].lstrip(b"/") or b"."
        return link


def unpack(
    stream: Stream,
    target: bytes,
    budget: Budget,
    remove_tree: Callable[[str], None],
    lenient: bool = False,
    replace: bool = False,
    begin_change: Callable[[], None] = lambda: None,
) -> None:
    """Put what an archive holds at target, merged with a directory that is there. What fails changes nothing.

    With `replace` it is all that the directory then has. For `lenient` see `tar.read_members`: only where links that
    lead out are as harmless as any other. `begin_change` is called before the target changes: it is the last that may
    raise what does not come from here. Before it, and while what is half made is removed, one such may come.
    """
    exists = os.path.lexists(target)
    if exists and not os.path.isdir(target):
        raise NotADirectoryError(errno.ENOTDIR, "not a directory", target)
    parent = target if exists else os.path.dirname(target.rstrip(b"/")) or b"."
    os.makedirs(parent, exist_ok=True)
    staging = os.path.join(parent, TEMPORARY + os.urandom(8).hex().encode())

    def discard() -> None:
        if os.path.lexists(staging):
            remove_tree(os.fsdecode(staging))

    try:
        try:
            os.mkdir(staging, 0o700)
            top = os.open(staging, OPEN_DIRECTORY)
            try:
                directories = Unpacking(top, stream, budget).run(lenient)
                begin_change()
                if exists and replace:
                    replace_content(top, staging, target, directories, remove_tree)
                else:
                    place(top, staging, target, directories, exists)
            finally:
                os.close(top)
        finally:
            discard()
    finally:
        discard()  # whatever interrupted the first does not come twice


def place(top: int, staging: bytes, target: bytes, directories: Directories, exists: bool) -> None:
    """Merge everything into target, or let the new directory become it."""
    if exists:
        merge(top, target, directories)
        return
    directories.facts[0] = directories.facts[0] or (IMPLICIT_MODE,)
    os.rename(staging, target)
    set_modes(top, directories)
