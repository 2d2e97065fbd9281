"""System calls on namespaces, mounts and netlink, which the standard library does not have.

Every path inside a jail is resolved once, by openat2(2), and no link is followed; what is mounted is mounted by
descriptor. Standard library only, and as little of that as possible: see attach/program.
"""

import _ctypes
import _socket
import errno
import posix
import stat
import sys

# Numbers that all ABIs share.
OPEN_TREE = 428
MOVE_MOUNT = 429
FSOPEN = 430
FSCONFIG = 431
FSMOUNT = 432
FSPICK = 433
OPENAT2 = 437
MOUNT_SETATTR = 442

CLONE_FS = 0x200
CLONE_NEWNS = 0x20000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000

AT_CURRENT_DIRECTORY = -100
AT_EMPTY_PATH = 0x1000
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = posix.O_CLOEXEC
AT_RECURSIVE = 0x8000
MOVE_MOUNT_EMPTY_SOURCE = 0x4
MOVE_MOUNT_EMPTY_PATHS = MOVE_MOUNT_EMPTY_SOURCE | 0x40
FSPICK_FLAGS = 1 | 2  # close on exec, do not follow a link
FSOPEN_CLOEXEC = FSMOUNT_CLOEXEC = 1
FSCONFIG_SET_FLAG = 0
FSCONFIG_SET_STRING = 1
FSCONFIG_CMD_CREATE = 6
FSCONFIG_CMD_RECONFIGURE = 7
RESOLVE_NO_LINKS = 0x2 | 0x4  # magic links, symbolic links
NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
READ_ONLY = 0x1
NO_PRIVILEGES = 0x2 | 0x4  # no set-user-id, no devices
MOUNT_ATTRIBUTES = READ_ONLY | NO_PRIVILEGES
NO_LINKS = 0x200000  # symbolic links are read, and never followed: mount_setattr(2)
AT_STATX_DONT_SYNC = 0x4000
STATX_ATTR_MOUNT_ROOT = 0x2000
STATX_BYTES = 256
ATTRIBUTES_AT, INODE_AT, DEVICE_AT = 8, 32, 136  # in struct statx
MS_PRIVATE = 0x40000
MS_BIND, MS_REC = 0x1000, 0x4000
MNT_DETACH = 2
MOUNT_ATTR_IDMAP = 0x100000
PR_SET_DUMPABLE = 4
PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 47, 2
NETLINK_HEADER_BYTES = 16

PATH = posix.O_PATH | posix.O_NOFOLLOW | posix.O_CLOEXEC
ANSWER_BYTES = 1 << 16  # of netlink


class _Long(_ctypes._SimpleCData):  # type: ignore[type-arg]  # no subscript when it runs
    _type_ = "l"


class _Byte(_ctypes._SimpleCData):  # type: ignore[type-arg]  # no subscript when it runs
    _type_ = "B"


class _Buffer(_ctypes.Array):  # type: ignore[type-arg]  # no subscript when it runs
    _type_ = _Byte
    _length_ = STATX_BYTES


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Long


_library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # the program itself


def _function(name: str) -> _Function:
    return _Function(_ctypes.dlsym(_library, name))


syscall, setns, unshare, mount, umount2, pivot_root, prctl, statx, capset = map(
    _function, ("syscall", "setns", "unshare", "mount", "umount2", "pivot_root", "prctl", "statx", "capset")
)


class Failed(Exception):
    """A step that the kernel refused: `number` is its errno, `subject` what it was about, `at` its place."""

    def __init__(self, number: int, subject: str, at: int = 0) -> None:
        super().__init__(number, subject)
        self.number = number
        self.subject = subject
        self.at = at


def call(subject: str, function: _Function, *arguments: object) -> int:
    """Call a function of the C library that returns -1 when it fails."""
    result: int = function(*arguments)
    if result < 0:
        raise Failed(_ctypes.get_errno(), subject)
    return result


def ask_netlink(family: int, message: bytes, subject: str) -> None:
    """Send what is given in hexadecimal digits, and take the first answer: an error, or the acknowledgement.

    The kernel has answered when it has taken the message.
    """
    sock = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, family)
    try:
        sock.send(bytes.fromhex(message.decode()))
        answer = sock.recv(ANSWER_BYTES, _socket.MSG_DONTWAIT)[NETLINK_HEADER_BYTES:][:4]
    finally:
        sock.close()
    number = -int.from_bytes(answer, sys.byteorder, signed=True)
    if number:
        raise Failed(number, subject)


def open_path(path: str) -> int:
    """Open what an absolute path leads to, without following a link: openat2(2)."""
    how = b"".join(each.to_bytes(8, sys.byteorder) for each in (PATH, 0, RESOLVE_NO_LINKS))
    name = path.encode("utf-8", "surrogateescape")
    return call(path, syscall, OPENAT2, AT_CURRENT_DIRECTORY, name, how, len(how))


def clone_source(path: str, expected: int) -> int:
    """Clone the mount of a host's file, alone. The descriptor says which file it has to be."""
    found = open_path(path)
    try:
        if identify(found) != identify(expected):
            raise Failed(errno.ESTALE, path)
        return call(path, syscall, OPEN_TREE, found, b"", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH)
    finally:
        posix.close(found)


def enter_without_links(path: str, expected: int, *, is_still: bool) -> None:
    """Stand in a directory of the host, by a mount that shows it read-only and in which no link is followed.

    What `is_still` needs no such mount, which Linux before 5.12 does not have.
    """
    tree = clone_source(path, expected)
    try:
        try:
            set_attributes(tree, path, MOUNT_ATTRIBUTES | NO_LINKS)
        except Failed as failure:
            if not is_still or failure.number != errno.ENOSYS:
                raise
        posix.fchdir(tree)
    finally:
        posix.close(tree)


def clone_mounted(target: bytes) -> int:
    """Clone what is mounted there, with all below it."""
    path = target.decode("utf-8", "surrogateescape")
    found = open_path(path)
    try:
        flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | AT_RECURSIVE
        return call(path, syscall, OPEN_TREE, found, b"", flags)
    finally:
        posix.close(found)


def set_attributes(mount: int, subject: str, wanted: int, cleared: int = 0) -> None:
    """Set attributes of one mount: mount_setattr(2)."""
    attributes = b"".join(each.to_bytes(8, sys.byteorder) for each in (wanted, cleared)) + bytes(16)
    call(subject, syscall, MOUNT_SETATTR, mount, b"", AT_EMPTY_PATH, attributes, len(attributes))


def clone(source: int, subject: str, *, read_only: bool, id_map: int | None = None) -> int:
    """Clone the mounts at a descriptor as a detached tree, which shares no later mount with the host's.

    No set-user-id, no devices. `id_map` is a user namespace by whose map owners are translated.
    """
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | AT_RECURSIVE
    tree = call(subject, syscall, OPEN_TREE, source, b"", flags)
    wanted = MOUNT_ATTRIBUTES if read_only else MOUNT_ATTRIBUTES & ~1
    wanted |= 0 if id_map is None else MOUNT_ATTR_IDMAP
    attributes = b"".join(each.to_bytes(8, sys.byteorder) for each in (wanted, 0, MS_PRIVATE, id_map or 0))
    try:
        call(subject, syscall, MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH | AT_RECURSIVE, attributes, len(attributes))
    except Failed:
        posix.close(tree)
        raise
    return tree


def identify_mount(descriptor: int) -> tuple[int, int, int] | None:
    """Return device and inode of a mount's root; None for what is no root: statx(2).

    Asks the kernel alone, never who serves the files: that one may be dead. So it asks for no more than the kernel has
    at hand: a FUSE file system of another user has no inode to tell.
    """
    found = _Buffer()
    result: int = statx(descriptor, b"", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, _ctypes.byref(found))
    if result & 0xFFFFFFFF:  # an int, of which only the lower half counts
        raise Failed(_ctypes.get_errno(), "a mount")
    data = bytes(found)
    if not int.from_bytes(data[ATTRIBUTES_AT : ATTRIBUTES_AT + 8], sys.byteorder) & STATX_ATTR_MOUNT_ROOT:
        return None
    major, minor = (int.from_bytes(data[at : at + 4], sys.byteorder) for at in (DEVICE_AT, DEVICE_AT + 4))
    return major, minor, int.from_bytes(data[INODE_AT : INODE_AT + 8], sys.byteorder)


def is_same_mount(found: tuple[int, int, int] | None, expected: bytes) -> bool:
    """Return whether it is the mount `major:minor:inode`. Inode 0 is any: a FUSE mount has a device of its own."""
    major, minor, inode = map(int, expected.split(b":"))
    return found is not None and found[:2] == (major, minor) and inode in (0, found[2])


def open_or_make(target: str, is_directory: bool) -> int:
    """Open a mount point, making what is missing: each directory is opened, or made, below the one before it."""
    *parents, last = target.strip("/").split("/")
    place = posix.open("/", PATH)
    for name in parents:
        place = _step(place, name, True, target)
    return _step(place, last, is_directory, target)


def _step(directory: int, name: str, is_directory: bool, target: str) -> int:
    """Go down to a file or directory that is made if it is missing. The directory is closed."""
    try:
        try:
            found = posix.open(name, PATH, dir_fd=directory)
        except FileNotFoundError:
            _make(directory, name, is_directory)
            found = posix.open(name, PATH, dir_fd=directory)
    except OSError as error:
        raise Failed(error.errno or errno.EIO, target) from None
    finally:
        posix.close(directory)
    if stat.S_ISLNK(posix.fstat(found).st_mode):
        posix.close(found)
        raise Failed(errno.ELOOP, target)
    return found


def _make(directory: int, name: str, is_directory: bool) -> None:
    if is_directory:
        posix.mkdir(name, 0o755, dir_fd=directory)
    else:
        flags = posix.O_CREAT | posix.O_EXCL | posix.O_WRONLY | posix.O_CLOEXEC
        posix.close(posix.open(name, flags, 0o644, dir_fd=directory))


def identify(descriptor: int) -> tuple[int, int]:
    """Return device and inode, which stay the same under every name."""
    found = posix.fstat(descriptor)
    return found.st_dev, found.st_ino
