"""File operations of init: short calls with the sandbox's own rights, none of which can block.

Each verb takes the fields of the request and gives the fields and descriptors of the answer. What may take long
is done by `errand`, in a process of its own. Contents come out as descriptors; only small ones are read and written
here, because passing a descriptor costs more than they do.
"""

import errno
import posix

ALWAYS = posix.O_NONBLOCK | posix.O_NOCTTY | posix.O_CLOEXEC
CREATE = posix.O_RDWR | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW
FILE_MODE = 0o666
PRIVATE_MODE = 0o600
DIRECTORY_MODE = 0o777
PERMISSIONS = 0o7777
TYPE, REGULAR, DIRECTORY, LINK = 0o170000, 0o100000, 0o040000, 0o120000
# path_resolution(7): the kernel follows as many links.
MOST_LINKS = 40
# A file under such a name is being written and gets its own name by rename.
TEMPORARY = b".cove-"
# Directory for the replacement of a file when nothing new may be made beside that file.
ELSEWHERE = b"/tmp/"
# A file that may be written, but not be replaced as it is: by its directory, a mount, or an owner who cannot be set.
KEPT_OUT = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP)


def open_file(fields: list[bytes]) -> tuple[list[bytes], list[int]]:
    """Return a descriptor; what it is of is for the runtime to judge."""
    flags, mode, path = fields
    return [], [posix.open(path, int(flags) | ALWAYS, int(mode))]


def read(fields: list[bytes]) -> tuple[list[bytes], list[int]]:
    """Read a regular file that is small; of anything else a descriptor, for the runtime to judge.

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


def stat(fields: list[bytes]) -> tuple[list[bytes], list[int]]:
    """Mode, size, time of change, owner, group and inode."""
    follow, path = fields
    found = posix.stat(path, follow_symlinks=follow == b"1")
    values = (found.st_mode, found.st_size, found.st_mtime_ns, found.st_uid, found.st_gid, found.st_ino)
    return [b"%d" % value for value in values], []


def readlink(fields: list[bytes]) -> tuple[list[bytes], list[int]]:
    """Return where a link points."""
    return [posix.readlink(fields[0])], []


def create(fields: list[bytes]) -> tuple[list[bytes], list[int]]:
    """Create a file to become the content of the one at path: whoever has written it calls `commit` with both."""
    path = final(fields[0])
    old = open_old(path)
    try:
        temporary, fd = create_beside(path, old)
    except OSError as error:
        if old is None or error.errno not in KEPT_OUT:
            raise
        temporary, fd = create_beside(ELSEWHERE, old)
    finally:
        close(old)
    return [temporary, path], [fd]


def commit(fields: list[bytes]) -> tuple[list[bytes], list[int]]:
    """Let the new file take the place of the one at path; `0` when the old one has to be written over instead."""
    mode, temporary, path = fields
    fd = posix.open(temporary, posix.O_WRONLY | posix.O_NOFOLLOW | ALWAYS)
    old: int | None = None
    try:
        old = open_old(path)
        return [b"1" if take_place(temporary, fd, path, old, mode) else b"0"], []
    finally:
        close(old)
        posix.close(fd)


def write(fields: list[bytes]) -> tuple[list[bytes], list[int]]:
    """Make this the content of the file at path."""
    mode, path, *pieces = fields
    path = final(path)
    content = b"\0".join(pieces)
    old = open_old(path)
    try:
        if not write_new(path, old, content, mode):
            assert old is not None
            write_over(old, content, mode)
    finally:
        close(old)
    return [], []


def write_new(path: bytes, old: int | None, content: bytes, mode: bytes) -> bool:
    """Replace the file at path by a new one; False when that is not possible, and nothing has changed."""
    if old is not None and posix.fstat(old).st_nlink > 1:
        return False
    try:
        temporary, fd = create_beside(path, old)
    except OSError as error:
        if old is None or error.errno not in KEPT_OUT:
            raise
        return False
    done = False
    try:
        write_all(fd, content)
        done = take_place(temporary, fd, path, old, mode)
    finally:
        posix.close(fd)
        if not done:
            try:
                posix.unlink(temporary)
            except FileNotFoundError:
                pass  # somebody inside was faster; what failed before is what counts
    return done


def write_over(old: int, content: bytes, mode: bytes) -> None:
    """Write the content into an open file, after its space is reserved: a full disk leaves the old content."""
    size = posix.fstat(old).st_size
    if mode:
        posix.fchmod(old, int(mode))
    if content:
        try:
            posix.posix_fallocate(old, 0, len(content))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                posix.ftruncate(old, size)
                raise  # otherwise this file system cannot promise anything
    write_all(old, content)
    posix.ftruncate(old, len(content))


def write_all(fd: int, content: bytes) -> None:
    """Write all of it."""
    while content:
        content = content[posix.write(fd, content) :]


def take_place(temporary: bytes, fd: int, path: bytes, old: int | None, mode: bytes) -> bool:
    """Give the file open as fd the name path; False when what is there can only be written over.

    That is so when it has other names, when its owner or attributes could not be kept, and when its directory does
    not let it be replaced.
    """
    if old is None:
        if mode:
            posix.fchmod(fd, int(mode))
        posix.rename(temporary, path)
        return True
    try:
        was = posix.fstat(old)
        if was.st_nlink > 1:
            return False
        inherit(old, was, fd)
        posix.fchmod(fd, int(mode) if mode else was.st_mode & PERMISSIONS)
        posix.rename(temporary, path)
    except OSError as error:
        if error.errno in KEPT_OUT:
            return False
        raise
    return True


def inherit(old: int, was: posix.stat_result, fd: int) -> None:
    """Owner and extended attributes, among them access control lists: xattr(7)."""
    now = posix.fstat(fd)
    if (was.st_uid, was.st_gid) != (now.st_uid, now.st_gid):
        posix.fchown(fd, was.st_uid, was.st_gid)
    attributes, given = get_attributes(old), get_attributes(fd)
    for name in given:
        if name not in attributes:
            posix.removexattr(fd, name)
    for name, value in attributes.items():
        if given.get(name) != value:
            posix.setxattr(fd, name, value)


def get_attributes(fd: int) -> dict[str, bytes]:
    """Extended attributes, if that file system has any."""
    try:
        return {name: posix.getxattr(fd, name) for name in posix.listxattr(fd)}
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return {}
        raise


def open_old(path: bytes) -> int | None:
    """Return the file that is to be replaced, opened as one must be able to; None when there is none."""
    if path.endswith(b"/"):
        raise IsADirectoryError(errno.EISDIR, "a directory")
    try:
        check_regular(posix.stat(path, follow_symlinks=False).st_mode)
        fd = open_writable(path)
    except FileNotFoundError:
        return None
    try:
        check_regular(posix.fstat(fd).st_mode)
    except OSError:
        posix.close(fd)
        raise
    return fd


def open_writable(path: bytes) -> int:
    """Return a descriptor of what may be written; of a program that runs, which may be replaced only, one to read."""
    try:
        return posix.open(path, posix.O_WRONLY | posix.O_NOFOLLOW | ALWAYS)
    except OSError as error:
        if error.errno != errno.ETXTBSY:
            raise
        return posix.open(path, posix.O_RDONLY | posix.O_NOFOLLOW | ALWAYS)


def check_regular(mode: int) -> None:
    """Refuse to replace what is no regular file."""
    if mode & TYPE == DIRECTORY:
        raise IsADirectoryError(errno.EISDIR, "a directory")
    if mode & TYPE != REGULAR:
        raise OSError(errno.EINVAL, "not a regular file")


def close(fd: int | None) -> None:
    """Close a descriptor if it is open."""
    if fd is not None:
        posix.close(fd)


def create_beside(path: bytes, old: int | None) -> tuple[bytes, int]:
    """Return a new file in the same directory; nobody else reads what may become secret again."""
    temporary = folder(path) + TEMPORARY + posix.urandom(8).hex().encode()
    mode = FILE_MODE if old is None else PRIVATE_MODE
    try:
        return temporary, posix.open(temporary, CREATE | ALWAYS, mode)
    except FileNotFoundError:
        make_directories(folder(path))
        return temporary, posix.open(temporary, CREATE | ALWAYS, mode)


def mkdir(fields: list[bytes]) -> tuple[list[bytes], list[int]]:
    """Make a directory, with those above it if asked."""
    parents, path = fields
    if parents == b"1":
        make_directories(path)
    else:
        posix.mkdir(path, DIRECTORY_MODE)
    return [], []


def unlink(fields: list[bytes]) -> tuple[list[bytes], list[int]]:
    """Remove a name that is no directory."""
    posix.unlink(fields[0])
    return [], []


def rename(fields: list[bytes]) -> tuple[list[bytes], list[int]]:
    """Rename."""
    posix.rename(fields[0], fields[1])
    return [], []


def chmod(fields: list[bytes]) -> tuple[list[bytes], list[int]]:
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
    b"commit": commit,
    b"mkdir": mkdir,
    b"unlink": unlink,
    b"rename": rename,
    b"chmod": chmod,
}


def folder(path: bytes) -> bytes:
    """Return what stands before the last name, with its slash."""
    return path[: path.rfind(b"/") + 1]


def final(path: bytes) -> bytes:
    """Return where a write to path ends up: a link at its end is followed, whether or not anything is there."""
    for _ in range(MOST_LINKS):
        try:
            target = posix.readlink(path)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return path
            raise
        path = target if target.startswith(b"/") else folder(path) + target
    raise OSError(errno.ELOOP, "too many links")


def make_directories(path: bytes) -> None:
    """Make the directory and all above it that are missing; those that are there may be links to directories."""
    missing: list[bytes] = []
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
