"""Extract the members of an archive below an open directory, and move them from there into another.

Every step is made from an open directory and follows no link: no path traversal ("zip slip"), no symlink race.
"""

from __future__ import annotations

import errno
import os
import stat

from cove.archive import tar
from cove.archive.tar import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cove.archive.stream import Budget, Stream

MOST_DEPTH = 200
# Of all directories that one archive makes, while it is unpacked.
MOST_NAME_BYTES = 64 << 20
# As `agent.files` names its own: what shows changes leaves these out.
TEMPORARY = b".cove-"
IMPLICIT_MODE = 0o755
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
CREATE_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Directories:
    """Facts of directories, such as a mode. Each is kept by its parent and one name: none costs more by its depth.

    The top is number 0, and a parent has a lower number than what is in it. Too many names are EFBIG.
    """

    def __init__(self) -> None:
        self.numbers: dict[tuple[int, bytes], int] = {}
        self.places: list[tuple[int, bytes]] = [(0, b"")]
        self.facts: list[tuple[int, ...] | None] = [None]
        self.left = MOST_NAME_BYTES

    def number(self, parts: Sequence[bytes]) -> int:
        """Return the number of a directory; one that is new has no facts."""
        number = 0
        for name in parts:
            number = self.below(number, name)
        return number

    def below(self, parent: int, name: bytes) -> int:
        """Return the number of a name in a directory."""
        found = self.numbers.get((parent, name))
        if found is None:
            self.spend(len(name))
            place = parent, name
            found = self.numbers[place] = len(self.places)
            self.places.append(place)
            self.facts.append(None)
        return found

    def spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise OSError(errno.EFBIG, "more names of directories than may be unpacked at once")

    def set(self, parts: Sequence[bytes], facts: tuple[int, ...]) -> None:
        self.facts[self.number(parts)] = facts

    def deepest_first(self) -> Iterator[tuple[list[bytes], tuple[int, ...]]]:
        """Yield what has facts: everything in a directory comes before the directory."""
        for number in range(len(self.facts) - 1, -1, -1):
            facts = self.facts[number]
            if facts is not None:
                yield self.parts(number), facts

    def parts(self, number: int) -> list[bytes]:
        """Return the path of a directory."""
        parts = []
        while number:
            number, name = self.places[number]
            parts.append(name)
        return parts[::-1]


class Descent:
    """The way to one directory below `top`: those on it are `held` open. `note` hears of those that were missing."""

    def __init__(self, top: int, note: Callable[[list[bytes]], object] = lambda _: None) -> None:
        self.top = top
        self.held: list[tuple[bytes, int]] = []
        self.note = note

    def enter(self, parts: list[bytes]) -> int:
        """Return the directory at parts, made if it is missing; what is a link or a file there is refused."""
        common = 0
        while common < min(len(parts), len(self.held)) and self.held[common][0] == parts[common]:
            common += 1
        self.leave(common)
        for at in range(common, len(parts)):
            name = parts[at]
            parent = self.held[-1][1] if self.held else self.top
            try:
                os.mkdir(name, 0o700, dir_fd=parent)
            except FileExistsError:
                pass
            else:
                self.note(parts[: at + 1])
            try:
                self.held.append((name, os.open(name, OPEN_DIRECTORY, dir_fd=parent)))
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise Refused("a path through what is no directory: %s" % tar.shown(b"/".join(parts))) from None
                raise
        return self.held[-1][1] if self.held else self.top

    def leave(self, depth: int) -> None:
        while len(self.held) > depth:
            os.close(self.held.pop()[1])


class Unpacking:
    """Makes the members of an archive below `top`."""

    def __init__(self, top: int, stream: Stream, budget: Budget) -> None:
        self.descent = Descent(top, self.note)
        self.stream = stream
        self.budget = budget
        self.directories = Directories()

    def note(self, parts: list[bytes]) -> None:
        """Note a directory that no member has named so far: it is an entry as any other."""
        self.budget.spend(0)
        self.directories.set(parts, (IMPLICIT_MODE,))

    def run(self, lenient: bool) -> Directories:
        """Returns the directories with the modes that they get at the end."""
        try:
            for member in tar.read_members(self.stream, lenient):
                self.budget.spend(member.size)
                self.make(member)
        finally:
            self.descent.leave(0)
        return self.directories

    def make(self, member: tar.Member) -> None:
        if len(member.parts) > MOST_DEPTH:
            raise Refused("nested too deeply: %s" % tar.shown(b"/".join(member.parts)))
        if member.kind == tar.DIRECTORY:
            self.make_directory(member)
            return
        directory = self.descent.enter(member.parts[:-1])
        name = member.parts[-1]
        self.clear(directory, name)
        if member.kind == tar.SYMLINK:
            os.symlink(member.link, name, dir_fd=directory)
        elif member.kind == tar.HARD_LINK:
            self.link(member, name)
        else:
            self.write(member, directory, name)

    def make_directory(self, member: tar.Member) -> None:
        if member.parts:
            try:
                os.mkdir(member.parts[-1], 0o700, dir_fd=self.descent.enter(member.parts[:-1]))
            except FileExistsError:
                pass
        self.descent.enter(member.parts)
        self.directories.set(member.parts, self.facts(member))

    def facts(self, member: tar.Member) -> tuple[int, ...]:
        """Return what a directory gets at the end: its mode, first of all."""
        return (member.mode,)

    def write(self, member: tar.Member, directory: int, name: bytes) -> None:
        fd = os.open(name, CREATE_FILE, 0o600, dir_fd=directory)
        try:
            self.content(member, fd)
            os.fchmod(fd, member.mode)
            os.utime(fd, (member.mtime, member.mtime))
        finally:
            os.close(fd)

    def content(self, member: tar.Member, fd: int) -> None:
        if member.stored is None:
            self.stream.receive_file(fd, member.size)
            self.stream.read(tar.padding(member.size))
            return
        for start, end in tar.read_ranges(self.stream, member):
            os.lseek(fd, start, os.SEEK_SET)
            self.stream.receive_file(fd, end - start)
        os.ftruncate(fd, member.size)
        self.stream.read(tar.padding(member.stored))

    def link(self, member: tar.Member, name: bytes) -> None:
        """Make a hard link to a file of this archive, and for nothing else."""
        parts = tar.check_name(member.link)
        source = os.dup(self.descent.enter(parts[:-1])) if parts else -1
        try:
            if source < 0 or not stat.S_ISREG(os.lstat(parts[-1], dir_fd=source).st_mode):
                raise Refused("a hard link to what is no file: %s" % tar.shown(member.link))
            directory = self.descent.enter(member.parts[:-1])
            os.link(parts[-1], name, src_dir_fd=source, dst_dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            raise Refused("a hard link to what is not in the archive: %s" % tar.shown(member.link)) from None
        finally:
            if source >= 0:
                os.close(source)

    def clear(self, directory: int, name: bytes) -> None:
        """Clear the way: a later member of the same name replaces a file or a link, never a directory."""
        try:
            os.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):
            raise Refused("a file in the place of a directory: %s" % tar.shown(name)) from None


def merge(source: int, target: bytes, directories: Directories) -> None:
    """Move everything into a directory that is there, after having seen that nothing is in the way."""
    destination = os.open(target, OPEN_DIRECTORY & ~os.O_NOFOLLOW)
    try:
        for move in (False, True):
            merge_directory(source, destination, move)
        directories.facts[0] = None
        set_modes(destination, directories)
    finally:
        os.close(destination)


def merge_directory(source: int, destination: int, move: bool) -> None:
    """Merge one level: look, or move."""
    for name in os.listdir(source):
        is_directory = stat.S_ISDIR(os.lstat(name, dir_fd=source).st_mode)
        try:
            there = os.lstat(name, dir_fd=destination)
        except FileNotFoundError:
            there = None
        if is_directory and there:
            merge_below(source, destination, name, move)
        elif there and stat.S_ISDIR(there.st_mode):
            replace_directory(source, destination, name, move)
        elif there and not move and is_protected(there, name, destination):
            raise PermissionError(errno.EACCES, "a file is there that may not be written", name)
        elif move:
            os.rename(name, name, src_dir_fd=source, dst_dir_fd=destination)


def replace_directory(source: int, destination: int, name: str, move: bool) -> None:
    """Replace an empty directory by what is none, as tar(1) does it."""
    if move:
        os.rmdir(name, dir_fd=destination)
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=destination)
        return
    below = os.open(name, OPEN_DIRECTORY, dir_fd=destination)
    try:
        if os.listdir(below):
            raise IsADirectoryError(errno.EISDIR, "a directory is there", name)
    finally:
        os.close(below)


def is_protected(there: os.stat_result, name: str, directory: int) -> bool:
    """Return whether a file belongs to somebody else and may not be written. Our own may be replaced, as by tar(1)."""
    if not stat.S_ISREG(there.st_mode) or there.st_uid == os.geteuid():
        return False
    return not os.access(name, os.W_OK, dir_fd=directory, effective_ids=True)


def merge_below(source: int, destination: int, name: str, move: bool) -> None:
    """Merge one level down, where both sides have a directory."""
    try:
        into = os.open(name, OPEN_DIRECTORY, dir_fd=destination)
    except OSError as error:
        error.filename = name
        if error.errno == errno.ELOOP:
            raise NotADirectoryError(errno.ENOTDIR, "a link is there", name) from None
        raise
    try:
        below = os.open(name, OPEN_DIRECTORY, dir_fd=source)
        try:
            merge_directory(below, into, move)
        finally:
            os.close(below)
    finally:
        os.close(into)


def set_modes(top: int, directories: Directories) -> None:
    """Set the directories' modes last: until then all of them can be written."""
    descent = Descent(top)
    try:
        for parts, facts in directories.deepest_first():
            os.fchmod(descent.enter(parts), facts[0])
    finally:
        descent.leave(0)
