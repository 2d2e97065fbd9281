"""Watch a directory by inotify(7), with all that appears in it later.

Theory of operation. A new directory is watched first and read afterwards, so that whatever is put into it is either
found by reading or reported by the watch; `names` remembers what has been reported, so that nothing is told twice.
A move is two events that follow each other with one cookie; half a move is a deletion or a creation. When the kernel's
queue overflows, events are lost: everything is watched and read anew, and `resync` says so.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct

from cove.agent.files import TEMPORARY
from cove.agent.pattern import decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from cove.agent.pattern import Filter

MODIFY, ATTRIB, MOVED_FROM, MOVED_TO = 0x2, 0x4, 0x40, 0x80
CREATE, DELETE, DELETE_SELF, MOVE_SELF = 0x100, 0x200, 0x400, 0x800
UNMOUNT, OVERFLOW, IGNORED = 0x2000, 0x4000, 0x8000
ONLY_DIRECTORY, DONT_FOLLOW, IS_DIRECTORY = 0x01000000, 0x02000000, 0x40000000
MASK = MODIFY | ATTRIB | MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF | MOVE_SELF | ONLY_DIRECTORY
EVENT = struct.Struct("iIII")
READ_BYTES = 1 << 18
PAIR_MS = 2

libc = ctypes.CDLL(None, use_errno=True)


class TooMany(Exception):
    """The kernel's own limits are reached; the text says which."""


class Directory:
    """One watched directory: its path from the top, and the names in it that have been told of.

    `found` has the inode of each that was found by reading, until its watch tells of it too.
    """

    __slots__ = ("found", "names", "path")

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.names: dict[bytes, bool] = {}
        self.found: dict[bytes, int] = {}

    def forget(self, name: bytes) -> bool:
        """Forget a name; returns whether it was known."""
        self.found.pop(name, None)
        return self.names.pop(name, None) is not None


class Watch:
    """Tells `emit(kind, path, is_directory, old_path)` what happens; paths are relative to the top."""

    def __init__(
        self,
        top: bytes,
        recursive: bool,
        filter: Filter,
        only: bytes,
        emit: Callable[..., None],
        flush: Callable[[], None],
    ) -> None:
        self.top = top
        self.recursive = recursive
        self.filter = filter
        self.only = only
        self.emit = emit
        self.flush = flush
        self.fd = -1
        self.directories: dict[int, Directory] = {}
        self.moved: tuple[int, bytes, bool] | None = None
        self.ended = False
        self.begin()

    def begin(self) -> None:
        """Watch everything that is there now."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.fd < 0:
            raise TooMany("there are as many watchers as the kernel allows: fs.inotify.max_user_instances")
        self.directories = {}
        self.moved = None
        self.adopt(b"", None)

    def add(self, path: bytes) -> int:
        where = os.path.join(self.top, path) if path else self.top
        wd: int = libc.inotify_add_watch(self.fd, where, MASK | (DONT_FOLLOW if path else 0))
        if wd < 0:
            number = ctypes.get_errno()
            if number == errno.ENOSPC:
                raise TooMany("more directories than the kernel lets a user watch: fs.inotify.max_user_watches")
            raise OSError(number, os.strerror(number), where)
        return wd

    def adopt(self, path: bytes, tell: Callable[..., None] | None) -> None:
        """Watch a directory and all below it, and tell of what is found in it."""
        pending = [path]
        while pending:
            path = pending.pop()
            try:
                wd = self.add(path)
                directory = self.directories.setdefault(wd, Directory(path))
                directory.path = path
                found = list(os.scandir(os.path.join(self.top, path)))
            except OSError as error:
                if not path or error.errno == errno.ENOMEM:
                    raise
                continue  # gone again, or not ours to read
            for entry in found:
                relative = join(path, entry.name)
                if entry.name in directory.names or not self.counts(relative):
                    continue
                is_directory = entry.is_dir(follow_symlinks=False)
                directory.names[entry.name] = is_directory
                if tell:
                    directory.found[entry.name] = entry.inode()
                    tell(b"create", relative, is_directory)
                if is_directory and self.recursive:
                    pending.append(relative)

    def counts(self, path: bytes) -> bool:
        name = path.rpartition(b"/")[2]
        if self.only:
            return path == self.only
        return not name.startswith(TEMPORARY) and self.filter.enters(decode(path))

    def tell(self, kind: bytes, path: bytes, is_directory: bool, old_path: bytes = b"") -> None:
        shown = self.filter.shows(decode(path))
        if kind == b"move" and not self.filter.shows(decode(old_path)):
            kind, old_path = b"create", b""
        elif kind == b"move" and not shown:
            kind, path, old_path, shown = b"delete", old_path, b"", True
        if shown:
            self.emit(kind, path, is_directory, old_path)

    def run(self) -> None:
        while not self.ended:
            poll = select.poll()
            poll.register(1, 0)
            poll.register(self.fd, select.POLLIN)
            ready = poll.poll(PAIR_MS if self.moved else None)
            if any(fd == 1 for fd, _ in ready):
                return  # nobody reads any more
            if ready:
                self.take(os.read(self.fd, READ_BYTES))
            else:
                self.lose_moved()
            self.flush()

    def take(self, data: bytes) -> None:
        at = 0
        while at < len(data) and not self.ended:
            wd, mask, cookie, length = EVENT.unpack_from(data, at)
            at += EVENT.size
            name = data[at : at + length].rstrip(b"\0")
            at += length
            if mask & OVERFLOW:
                self.restart()
                return
            self.handle(wd, mask, cookie, name)

    def restart(self) -> None:
        try:
            self.begin()
        except FileNotFoundError:
            self.end()
        else:
            self.emit(b"resync", b"", True, b"")

    def end(self) -> None:
        self.emit(b"delete", b"", True, b"")
        self.ended = True

    def handle(self, wd: int, mask: int, cookie: int, name: bytes) -> None:
        if self.moved and not (mask & MOVED_TO and cookie == self.moved[0]):
            self.lose_moved()
        directory = self.directories.get(wd)
        if directory is None:
            return
        if mask & (DELETE_SELF | MOVE_SELF | UNMOUNT) and not directory.path:
            self.end()
        elif mask & IGNORED:
            del self.directories[wd]
        elif name and self.counts(join(directory.path, name)):
            self.change(directory, mask, cookie, name)
        elif name and mask & MOVED_TO:
            self.lose_moved()

    def change(self, directory: Directory, mask: int, cookie: int, name: bytes) -> None:
        path = join(directory.path, name)
        is_directory = bool(mask & IS_DIRECTORY)
        if mask & CREATE:
            self.appear(directory, name, is_directory)
        elif mask & (MODIFY | ATTRIB):
            if name in directory.names:
                self.tell(b"modify", path, is_directory)
        elif mask & DELETE:
            if directory.forget(name):
                self.tell(b"delete", path, is_directory)
        elif mask & MOVED_FROM:
            if directory.forget(name):
                self.moved = (cookie, path, is_directory)
        elif mask & MOVED_TO:
            self.arrive(directory, name, is_directory)

    def appear(self, directory: Directory, name: bytes, is_directory: bool) -> None:
        path = join(directory.path, name)
        if name not in directory.names:
            directory.names[name] = is_directory
            self.tell(b"create", path, is_directory)
        if is_directory and self.recursive:
            self.adopt(path, self.tell)

    def arrive(self, directory: Directory, name: bytes, is_directory: bool) -> None:
        """Report a file that was moved here: from another place that we watch, or from elsewhere."""
        path = join(directory.path, name)
        moved, self.moved = self.moved, None
        if moved:
            directory.names[name] = is_directory
            if is_directory:
                self.rename_below(moved[1], path)
            self.tell(b"move", path, is_directory, moved[1])
        elif directory.names.get(name) is False and not is_directory:
            if not self.was_found(directory, name):
                self.tell(b"modify", path, False)
        else:
            self.appear(directory, name, is_directory)

    def was_found(self, directory: Directory, name: bytes) -> bool:
        """Return whether the file that arrived is the one that reading found, and told of."""
        try:
            status = os.lstat(os.path.join(self.top, directory.path, name))
        except OSError:
            return False  # gone again
        return directory.found.pop(name, None) == status.st_ino

    def rename_below(self, old: bytes, new: bytes) -> None:
        for directory in self.directories.values():
            if directory.path == old or directory.path.startswith(old + b"/"):
                directory.path = new + directory.path[len(old) :]

    def lose_moved(self) -> None:
        """Report what was moved away and did not arrive where we look."""
        if not self.moved:
            return
        (_, path, is_directory), self.moved = self.moved, None
        self.tell(b"delete", path, is_directory)
        for wd, directory in list(self.directories.items()):
            if directory.path == path or directory.path.startswith(path + b"/"):
                libc.inotify_rm_watch(self.fd, wd)
                del self.directories[wd]


def join(path: bytes, name: bytes) -> bytes:
    """Return a path below another, relative to the top."""
    return path + b"/" + name if path else name
