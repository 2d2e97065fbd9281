"""Whole trees through a pipe: packed on one side of the sandbox's border, unpacked on the other, in either direction.

Neither side trusts the stream or the tree: every step is made from an open directory and follows no link. What is
unpacked is complete in a directory of its own before anything of the target changes.
"""

import errno
import os
import stat

if __package__:
    from cove.agent import tar
    from cove.agent.tar import Refused, Truncated
else:
    import tar
    from tar import Refused, Truncated

CHUNK = 1 << 20
MOST_DEPTH = 200
IMPLICIT_MODE = 0o755
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
CREATE_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Budget:
    """How much may pass; what is more is EFBIG."""

    def __init__(self, most_bytes, most_entries):
        # type: (int, int) -> None
        self.bytes = most_bytes
        self.entries = most_entries

    def spend(self, size):
        # type: (int) -> None
        self.bytes -= size
        self.entries -= 1
        if self.bytes < 0 or self.entries < 0:
            raise OSError(errno.EFBIG, "more than may be transferred at once")


class Stream:
    """One end of a pipe. `wait` is called when a non-blocking one is not ready; it raises to give up."""

    def __init__(self, fd, wait=None):
        # type: (int, Callable[[int, int], None] | None) -> None
        self.fd = fd
        self.wait = wait
        self.can_splice = hasattr(os, "splice")
        self.pending = b""  # read already, from the very beginning

    def read(self, size):
        # type: (int) -> bytes
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

    def write(self, data):
        # type: (bytes) -> None
        view = memoryview(data)
        while view:
            view = view[self.ready(4, os.write, self.fd, view) :]

    def send_file(self, file, size):
        # type: (int, int) -> None
        """So many bytes of a file; what a shrinking file lacks is zero."""
        at = 0
        while at < size:
            sent = self.ready(4, os.sendfile, self.fd, file, at, min(size - at, CHUNK))
            if not sent:
                self.write_zeros(size - at)
                return
            at += sent

    def write_zeros(self, size):
        # type: (int) -> None
        while size:
            self.write(bytes(min(size, CHUNK)))
            size -= min(size, CHUNK)

    def receive_file(self, file, size):
        # type: (int, int) -> None
        """The next so many bytes into a file."""
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

    def ready(self, events, call, *arguments):
        # type: (int, Callable[..., T], *object) -> T
        while True:
            try:
                return call(*arguments)
            except BlockingIOError:
                if self.wait is None:
                    raise
                self.wait(self.fd, events)


def pack(top, stream, budget, excluded=()):
    # type: (bytes, Stream, Budget, Collection[tuple[bytes, ...]]) -> None
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

    def __init__(self, top, stream, budget, excluded):
        # type: (bytes, Stream, Budget, Collection[tuple[bytes, ...]]) -> None
        self.tops = {os.path.join(name, b"") for name in (os.path.normpath(top), os.path.realpath(top))}
        self.stream = stream
        self.budget = budget
        self.excluded = excluded

    def directory(self, fd, parts):
        # type: (int, list[bytes]) -> None
        """Its own member, then everything in it, sorted."""
        if len(parts) > MOST_DEPTH:
            raise OSError(errno.ENAMETOOLONG, "nested too deeply")
        found = os.fstat(fd)
        self.budget.spend(0)
        self.member(tar.Member(tar.DIRECTORY, parts, found.st_mode, mtime=int(found.st_mtime)))
        for name in sorted(map(os.fsencode, os.listdir(fd))):
            if (*parts, name) not in self.excluded:
                self.entry(fd, [*parts, name])

    def entry(self, directory, parts):
        # type: (int, list[bytes]) -> None
        """One name: a link as a link, a file with its content, a directory with all below it."""
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

    def opened(self, fd, parts):
        # type: (int, list[bytes]) -> None
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            self.directory(fd, parts)
        elif stat.S_ISREG(found.st_mode):
            self.budget.spend(found.st_size)
            self.member(tar.Member(tar.FILE, parts, found.st_mode, found.st_size, int(found.st_mtime)))
            self.stream.send_file(fd, found.st_size)
            self.stream.write(bytes(tar.padding(found.st_size)))

    def member(self, member):
        # type: (tar.Member) -> None
        self.stream.write(tar.encode_member(member))

    def relative(self, parts, link):
        # type: (list[bytes], bytes) -> bytes
        """The link, without the name of the directory that everything is in."""
        for top in self.tops:
            if os.path.join(link, b"").startswith(top) and b".." not in link.split(b"/"):
                return b"../" * (len(parts) - 1) + link[len(top) :] or b"."
        return link


def unpack(stream, target, budget, remove_tree, lenient=False):
    # type: (Stream, bytes, Budget, Callable[[str], None], bool) -> None
    """Put what an archive holds at target, merged with a directory that is there. What fails changes nothing.

    For `lenient` see `tar.read_members`: only where links that lead out are as harmless as any other.
    """
    exists = os.path.lexists(target)
    if exists and not os.path.isdir(target):
        raise NotADirectoryError(errno.ENOTDIR, "not a directory", target)
    parent = target if exists else os.path.dirname(target.rstrip(b"/")) or b"."
    os.makedirs(parent, exist_ok=True)
    staging = os.path.join(parent, b".cove-" + os.urandom(8).hex().encode())
    os.mkdir(staging, 0o700)
    try:
        top = os.open(staging, OPEN_DIRECTORY)
        try:
            modes = Unpacking(top, stream, budget).run(lenient)
            if exists:
                merge(top, target, modes)
            else:
                modes.setdefault((), IMPLICIT_MODE)
                os.rename(staging, target)
                set_modes(top, modes)
        finally:
            os.close(top)
    finally:
        if os.path.lexists(staging):
            remove_tree(os.fsdecode(staging))


class Unpacking:
    """Makes the members below `top`. `held` are the open directories on the way to the last one."""

    def __init__(self, top, stream, budget):
        # type: (int, Stream, Budget) -> None
        self.top = top
        self.stream = stream
        self.budget = budget
        self.held = []  # type: list[tuple[bytes, int]]
        self.modes = {}  # type: dict[tuple[bytes, ...], int]

    def run(self, lenient):
        # type: (bool) -> dict[tuple[bytes, ...], int]
        """Returns the modes that the directories get at the end."""
        try:
            for member in tar.read_members(self.stream, lenient):
                self.budget.spend(member.size)
                self.make(member)
        finally:
            self.leave(0)
        return self.modes

    def make(self, member):
        # type: (tar.Member) -> None
        if len(member.parts) > MOST_DEPTH:
            raise Refused("nested too deeply: %s" % tar.shown(b"/".join(member.parts)))
        if member.kind == tar.DIRECTORY:
            self.enter(member.parts)
            self.modes[tuple(member.parts)] = member.mode
            return
        directory = self.enter(member.parts[:-1])
        name = member.parts[-1]
        self.clear(directory, name)
        if member.kind == tar.SYMLINK:
            os.symlink(member.link, name, dir_fd=directory)
        elif member.kind == tar.HARD_LINK:
            self.link(member, directory, name)
        else:
            self.write(member, directory, name)

    def write(self, member, directory, name):
        # type: (tar.Member, int, bytes) -> None
        fd = os.open(name, CREATE_FILE, 0o600, dir_fd=directory)
        try:
            self.stream.receive_file(fd, member.size)
            os.fchmod(fd, member.mode)
            os.utime(fd, (member.mtime, member.mtime))
        finally:
            os.close(fd)
        self.stream.read(tar.padding(member.size))

    def link(self, member, directory, name):
        # type: (tar.Member, int, bytes) -> None
        """Another name for a file of this archive, and for nothing else."""
        parts = tar.check_name(member.link)
        source = os.dup(self.enter(parts[:-1])) if parts else -1
        try:
            if source < 0 or not stat.S_ISREG(os.lstat(parts[-1], dir_fd=source).st_mode):
                raise Refused("a hard link to what is no file: %s" % tar.shown(member.link))
            directory = self.enter(member.parts[:-1])
            os.link(parts[-1], name, src_dir_fd=source, dst_dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            raise Refused("a hard link to what is not in the archive: %s" % tar.shown(member.link)) from None
        finally:
            if source >= 0:
                os.close(source)

    def clear(self, directory, name):
        # type: (int, bytes) -> None
        """A later member of the same name replaces a file or a link, never a directory."""
        try:
            os.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):
            raise Refused("a file in the place of a directory: %s" % tar.shown(name)) from None

    def enter(self, parts):
        # type: (list[bytes]) -> int
        """The directory at parts, made if it is missing; what is a link or a file there is refused."""
        common = 0
        while common < min(len(parts), len(self.held)) and self.held[common][0] == parts[common]:
            common += 1
        self.leave(common)
        for at in range(common, len(parts)):
            name = parts[at]
            parent = self.held[-1][1] if self.held else self.top
            try:
                os.mkdir(name, 0o700, dir_fd=parent)
                self.modes.setdefault(tuple(parts[: at + 1]), IMPLICIT_MODE)
            except FileExistsError:
                pass
            try:
                self.held.append((name, os.open(name, OPEN_DIRECTORY, dir_fd=parent)))
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise Refused("a path through what is no directory: %s" % tar.shown(b"/".join(parts))) from None
                raise
        return self.held[-1][1] if self.held else self.top

    def leave(self, depth):
        # type: (int) -> None
        while len(self.held) > depth:
            os.close(self.held.pop()[1])


def merge(source, target, modes):
    # type: (int, bytes, dict[tuple[bytes, ...], int]) -> None
    """Move everything into a directory that is there, after having seen that nothing is in the way."""
    destination = os.open(target, OPEN_DIRECTORY & ~os.O_NOFOLLOW)
    try:
        for move in (False, True):
            merge_directory(source, destination, move)
        modes.pop((), None)
        set_modes(destination, modes)
    finally:
        os.close(destination)


def merge_directory(source, destination, move):
    # type: (int, int, bool) -> None
    """One pass over a level: looking, or moving."""
    for name in os.listdir(source):
        is_directory = stat.S_ISDIR(os.lstat(name, dir_fd=source).st_mode)
        try:
            there = os.lstat(name, dir_fd=destination).st_mode
        except FileNotFoundError:
            there = 0
        if is_directory and there:
            merge_below(source, destination, name, move)
        elif there and stat.S_ISDIR(there):
            raise IsADirectoryError(errno.EISDIR, "a directory is there", name)
        elif move:
            os.rename(name, name, src_dir_fd=source, dst_dir_fd=destination)


def merge_below(source, destination, name, move):
    # type: (int, int, str, bool) -> None
    """The same one level down, where both sides have a directory."""
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


def set_modes(top, modes):
    # type: (int, dict[tuple[bytes, ...], int]) -> None
    """The directories' modes come last: until then all of them can be written."""
    walk = Unpacking(top, Stream(-1), Budget(0, 0))
    try:
        for parts in sorted(modes, key=len, reverse=True):
            os.fchmod(walk.enter(list(parts)), modes[parts])
    finally:
        walk.leave(0)
