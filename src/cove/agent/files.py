"""What init does with files: short calls with the sandbox's own rights, none of which can wait.

Each verb takes the fields of the request and gives the fields and descriptors of the answer. What may take long
is done by `errand`, in a process of its own. Contents come out as descriptors; only small ones are read and written
here, because passing a descriptor costs more than they do.
"""

import errno
import posix

ALWAYS = posix.O_NONBLOCK | posix.O_NOCTTY | posix.O_CLOEXEC
CREATE = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW
FILE_MODE = 0o666
DIRECTORY_MODE = 0o777
PERMISSIONS = 0o7777
TYPE, REGULAR, DIRECTORY, LINK = 0o170000, 0o100000, 0o040000, 0o120000
# path_resolution(7): the kernel follows as many links.
MOST_LINKS = 40
# A file under such a name is being written and gets its own name by rename.
TEMPORARY = b".cove-"


def open_file(fields):
    # type: (list[bytes]) -> tuple[list[bytes], list[int]]
    """A descriptor; what it is of is for the runtime to judge."""
    flags, mode, path = fields
    return [], [posix.open(path, int(flags) | ALWAYS, int(mode))]


def read(fields):
    # type: (list[bytes]) -> tuple[list[bytes], list[int]]
    """The content of a regular file that is small; of anything else a descriptor, for the runtime to judge.

    Files that the kernel makes up have a size of 0 or no blocks: proc(5), sysfs(5).
    """
    most, path = fields
    fd = posix.open(path, posix.O_RDONLY | ALWAYS)
    found = posix.fstat(fd)
    if found.st_mode & TYPE != REGULAR or not 0 < found.st_size <= int(most) or not found.st_blocks:
        return [b""], [fd]
    try:
        return [posix.pread(fd, int(most), 0)], []
    finally:
        posix.close(fd)


def stat(fields):
    # type: (list[bytes]) -> tuple[list[bytes], list[int]]
    """Mode, size, time of change, owner, group and inode."""
    follow, path = fields
    found = posix.stat(path, follow_symlinks=follow == b"1")
    values = (found.st_mode, found.st_size, found.st_mtime_ns, found.st_uid, found.st_gid, found.st_ino)
    return [b"%d" % value for value in values], []


def readlink(fields):
    # type: (list[bytes]) -> tuple[list[bytes], list[int]]
    """Where a link points."""
    return [posix.readlink(fields[0])], []


def create(fields):
    # type: (list[bytes]) -> tuple[list[bytes], list[int]]
    """A new file beside the one at path, with its mode: whoever has written it renames it to the second name."""
    mode, path = fields
    path = final(path)
    temporary, fd = create_beside(path, mode)
    return [temporary, path], [fd]


def write(fields):
    # type: (list[bytes]) -> tuple[list[bytes], list[int]]
    """Replace the file at path by one with this content."""
    mode, path, *pieces = fields
    path = final(path)
    temporary, fd = create_beside(path, mode)
    try:
        try:
            rest = b"\0".join(pieces)
            while rest:
                rest = rest[posix.write(fd, rest) :]
        finally:
            posix.close(fd)
        posix.rename(temporary, path)
    except OSError:
        try:
            posix.unlink(temporary)
        except FileNotFoundError:
            pass  # somebody inside was faster; what failed before is what counts
        raise
    return [], []


def create_beside(path, mode):
    # type: (bytes, bytes) -> tuple[bytes, int]
    """A new file in the same directory with that mode, or without one that of the file at path."""
    wanted = int(mode) if mode else current_mode(path)
    temporary = folder(path) + TEMPORARY + posix.urandom(8).hex().encode()
    try:
        fd = posix.open(temporary, CREATE | ALWAYS, FILE_MODE)
    except FileNotFoundError:
        make_directories(folder(path))
        fd = posix.open(temporary, CREATE | ALWAYS, FILE_MODE)
    if wanted is not None:
        posix.fchmod(fd, wanted & PERMISSIONS)
    return temporary, fd


def mkdir(fields):
    # type: (list[bytes]) -> tuple[list[bytes], list[int]]
    """A directory, with those above it if asked."""
    parents, path = fields
    if parents == b"1":
        make_directories(path)
    else:
        posix.mkdir(path, DIRECTORY_MODE)
    return [], []


def unlink(fields):
    # type: (list[bytes]) -> tuple[list[bytes], list[int]]
    """Remove a name that is no directory."""
    posix.unlink(fields[0])
    return [], []


def rename(fields):
    # type: (list[bytes]) -> tuple[list[bytes], list[int]]
    """Give another name."""
    posix.rename(fields[0], fields[1])
    return [], []


def chmod(fields):
    # type: (list[bytes]) -> tuple[list[bytes], list[int]]
    """Change the permission bits."""
    mode, path = fields
    posix.chmod(path, int(mode))
    return [], []


VERBS = {
    b"open": open_file,
    b"read": read,
    b"write": write,
    b"stat": stat,
    b"readlink": readlink,
    b"create": create,
    b"mkdir": mkdir,
    b"unlink": unlink,
    b"rename": rename,
    b"chmod": chmod,
}


def folder(path):
    # type: (bytes) -> bytes
    """What stands before the last name, with its slash."""
    return path[: path.rfind(b"/") + 1]


def final(path):
    # type: (bytes) -> bytes
    """Where a write to path ends up: a link at its end is followed, whether or not anything is there."""
    for _ in range(MOST_LINKS):
        try:
            target = posix.readlink(path)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return path
            raise
        path = target if target.startswith(b"/") else folder(path) + target
    raise OSError(errno.ELOOP, "too many links")


def current_mode(path):
    # type: (bytes) -> int | None
    """The mode of the file that is replaced; what is no regular file is not replaced."""
    if path.endswith(b"/"):
        raise IsADirectoryError(errno.EISDIR, "a directory")
    try:
        mode = posix.stat(path, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    if mode & TYPE == DIRECTORY:
        raise IsADirectoryError(errno.EISDIR, "a directory")
    if mode & TYPE != REGULAR:
        raise OSError(errno.EINVAL, "not a regular file")
    return mode & PERMISSIONS


def make_directories(path):
    # type: (bytes) -> None
    """The directory and all above it that are missing; those that are there may be links to directories."""
    missing = []  # type: list[bytes]
    path = path.rstrip(b"/") or b"/"
    while path not in (b"", b"/"):
        try:
            posix.mkdir(path, DIRECTORY_MODE)
            break
        except FileNotFoundError:
            missing.append(path)
            path = folder(path).rstrip(b"/")
        except FileExistsError:
            if posix.stat(path).st_mode & TYPE == DIRECTORY:
                break
            if missing:
                raise NotADirectoryError(errno.ENOTDIR, "not a directory") from None
            raise
    for each in reversed(missing):
        try:
            posix.mkdir(each, DIRECTORY_MODE)
        except FileExistsError:
            continue  # somebody else made it meanwhile
