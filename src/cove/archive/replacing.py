"""Replace what is in a directory by what is in another one, all of it or nothing."""

from __future__ import annotations

import errno
import os
import stat

from cove.archive.unpacking import OPEN_DIRECTORY, TEMPORARY, set_modes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from cove.archive.unpacking import Directories

# Each level of a directory that is moved piece by piece has two descriptors open.
MOST_DEPTH = 200


def replace_content(
    source: int,
    staging: bytes,
    target: bytes,
    directories: Directories,
    remove_tree: Callable[[str], None],
) -> None:
    """Move everything from `source`, which is `staging` below target, to target; what was there is removed.

    The directory itself stays: it may be where something is mounted. So does what others are just making in it.
    """
    aside = os.path.join(target, TEMPORARY + os.urandom(8).hex().encode())
    destination = os.open(target, OPEN_DIRECTORY & ~os.O_NOFOLLOW)
    try:
        os.mkdir(aside, 0o700)
        old = os.open(aside, OPEN_DIRECTORY)
        try:
            exchange(source, destination, old)
            directories.facts[0] = None
            set_modes(destination, directories)
        finally:
            os.close(old)
            remove_tree(os.fsdecode(aside))
    finally:
        os.close(destination)


def exchange(source: int, destination: int, old: int) -> None:
    """Move the old names out and the new ones in; if one cannot be moved, all go back.

    What others are just making stays, unless what comes in has the same name: then it was left by somebody killed.
    """
    done: list[tuple[bytes, int, int]] = []
    coming = {os.fsencode(name) for name in os.listdir(source)}
    before = [os.fsencode(name) for name in os.listdir(destination)]
    leaving = [name for name in before if name in coming or not name.startswith(TEMPORARY)]
    try:
        for start, end, names in ((destination, old, leaving), (source, destination, coming)):
            for name in names:
                move(name, start, end)
                done.append((name, start, end))
    except BaseException:
        for name, start, end in reversed(done):
            move(name, end, start)
        raise


def move(name: bytes, start: int, end: int, depth: int = 0) -> None:
    """Move a name; a directory must itself be writable to get another parent: rename(2)."""
    try:
        os.rename(name, name, src_dir_fd=start, dst_dir_fd=end)
        return
    except OSError as error:
        error.filename = name
        found = os.lstat(name, dir_fd=start)
        is_ours = stat.S_ISDIR(found.st_mode) and os.geteuid() in (0, found.st_uid)
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EXDEV) or not is_ours:
            raise
    os.chmod(name, 0o700, dir_fd=start)
    try:
        try:
            os.rename(name, name, src_dir_fd=start, dst_dir_fd=end)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            move_piecewise(name, start, end, depth)
    except BaseException:
        os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=start)
        raise
    made = os.lstat(name, dir_fd=end)
    if (made.st_uid, made.st_gid) != (found.st_uid, found.st_gid):
        os.chown(name, found.st_uid, found.st_gid, dir_fd=end, follow_symlinks=False)
    os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=end)
    os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=end)


def move_piecewise(name: bytes, start: int, end: int, depth: int) -> None:
    """Make a directory anew and move what is in it: one of a layer below is not renamed by overlayfs."""
    if depth == MOST_DEPTH:
        raise OSError(errno.ENAMETOOLONG, "directories are nested too deeply", name)
    os.mkdir(name, 0o700, dir_fd=end)
    source, made = os.open(name, OPEN_DIRECTORY, dir_fd=start), os.open(name, OPEN_DIRECTORY, dir_fd=end)
    done: list[bytes] = []
    try:
        for each in map(os.fsencode, os.listdir(source)):
            move(each, source, made, depth + 1)
            done.append(each)
    except BaseException:
        for each in reversed(done):
            move(each, made, source, depth + 1)
        os.rmdir(name, dir_fd=end)
        raise
    finally:
        os.close(source)
        os.close(made)
    os.rmdir(name, dir_fd=start)
