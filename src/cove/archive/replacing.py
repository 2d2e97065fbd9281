"""Replace what is in a directory by what is in another one, all of it or nothing."""

from __future__ import annotations

import os
import stat

from cove.archive.unpacking import OPEN_DIRECTORY, TEMPORARY, set_modes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def replace_content(
    source: int,
    staging: bytes,
    target: bytes,
    modes: dict[tuple[bytes, ...], int],
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
            modes.pop((), None)
            set_modes(destination, modes)
        finally:
            os.close(old)
            remove_tree(os.fsdecode(aside))
    finally:
        os.close(destination)


def exchange(source: int, destination: int, old: int) -> None:
    """Move the old names out and the new ones in; if one cannot be moved, all go back."""
    done: list[tuple[bytes, int, int]] = []
    try:
        for start, end in ((destination, old), (source, destination)):
            for name in map(os.fsencode, os.listdir(start)):
                if start == source or not name.startswith(TEMPORARY):
                    move(name, start, end)
                    done.append((name, start, end))
    except BaseException:
        for name, start, end in reversed(done):
            move(name, end, start)
        raise


def move(name: bytes, start: int, end: int) -> None:
    """Move a name; a directory must itself be writable to get another parent: rename(2)."""
    try:
        os.rename(name, name, src_dir_fd=start, dst_dir_fd=end)
        return
    except PermissionError as error:
        error.filename = name
        found = os.lstat(name, dir_fd=start)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise
    os.chmod(name, 0o700, dir_fd=start)
    try:
        os.rename(name, name, src_dir_fd=start, dst_dir_fd=end)
    except OSError:
        os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=start)
        raise
    os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=end)
