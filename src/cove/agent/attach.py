"""Move staged mounts to their targets: a short-lived process that enters a jail's namespaces from outside.

It runs before anything else does in that jail, as the sandbox's own user, and never executes or reads anything
inside. It waits for a word on its input, which says that bubblewrap is done. No link is followed: every directory of a
target is opened, or made, below the one before it.

Arguments: descriptors of the jail's mount namespace and of the user namespace that owns it, then the staging
directory and the targets in their order, each as `number=path`.
"""

import _ctypes
import posix
import stat
import sys

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
MOVE_MOUNT = 429
MOVE_MOUNT_F_EMPTY_PATH = 0x4
MOVE_MOUNT_T_EMPTY_PATH = 0x40
MNT_DETACH = 2
OPEN = posix.O_PATH | posix.O_NOFOLLOW | posix.O_CLOEXEC

_library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # the stub leaves out that None is the program itself


def call(name: str, *arguments: object) -> int:
    """Call a function of the C library; 0 is success."""
    result: int = _ctypes.call_function(_ctypes.dlsym(_library, name), arguments)
    return result


def enter(mount_namespace: int, user_namespace: int) -> None:
    """The user namespace first: its rights are what opens the other one."""
    if call("setns", user_namespace, CLONE_NEWUSER) or call("setns", mount_namespace, CLONE_NEWNS):
        leave("the kernel does not let Cove enter the sandbox's namespaces")


def move(staging: str, number: str, target: str) -> None:
    """Move one mount; what it is decides whether its mount point is a directory or a file."""
    source = posix.open(staging + "/" + number, OPEN)
    is_directory = stat.S_ISDIR(posix.fstat(source).st_mode)
    try:
        place = open_target(target, is_directory)
    except OSError as error:
        leave("mount target " + target + ": " + posix.strerror(error.errno or 0))
    flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
    if call("syscall", MOVE_MOUNT, source, b"", place, b"", flags):
        leave("mount target " + target + " cannot be mounted on")
    posix.close(source)
    posix.close(place)


def open_target(target: str, is_directory: bool) -> int:
    """Open the mount point, making what is missing."""
    *parents, last = target.strip("/").split("/")
    directory = posix.open("/", OPEN)
    for name in parents:
        directory = step(directory, name, make_directory, target)
    return step(directory, last, make_directory if is_directory else make_file, target)


def step(directory: int, name: str, make: object, target: str) -> int:
    """Go down one directory, which is closed, to one that is made if it is missing."""
    try:
        found = posix.open(name, OPEN, dir_fd=directory)
    except FileNotFoundError:
        make(directory, name)  # type: ignore[operator]  # a function of two
        found = posix.open(name, OPEN, dir_fd=directory)
    posix.close(directory)
    if stat.S_ISLNK(posix.fstat(found).st_mode):
        leave("mount target " + target + ": " + name + " is a symbolic link, and none is followed")
    return found


def make_directory(directory: int, name: str) -> None:
    """Make a directory on the way to a mount point."""
    posix.mkdir(name, 0o755, dir_fd=directory)


def make_file(directory: int, name: str) -> None:
    """Make the mount point of a file."""
    posix.close(posix.open(name, posix.O_CREAT | posix.O_EXCL | posix.O_WRONLY, 0o644, dir_fd=directory))


def leave(complaint: str) -> None:
    """End with a complaint for the runtime."""
    posix.write(2, complaint.encode("utf-8", "surrogateescape"))
    posix._exit(1)


def main(mount_namespace: str, user_namespace: str, staging: str, *targets: str) -> None:
    """Do it all; without the word, the jail has not started."""
    if not posix.read(0, 1):
        posix._exit(1)
    enter(int(mount_namespace), int(user_namespace))
    for each in targets:
        number, _, target = each.partition("=")
        move(staging, number, target)
    call("umount2", staging.encode(), MNT_DETACH)


if __name__ == "__main__":
    main(*sys.argv[1:])
