"""Remove a directory tree that hostile code has filled, and may still change, without following a link or recursing."""

import errno
import os
import stat
from contextlib import suppress

_DIRECTORY = os.O_DIRECTORY | os.O_CLOEXEC
# How often one call looks again at directories to which somebody has added something since it emptied them.
_MOST_LOOKS = 1000


def remove_tree(path: str) -> None:
    """Remove path and all below it, however deep and whatever its modes; missing, or gone meanwhile, is fine.

    Several can remove the same tree, or one within another's, at once.
    """
    try:
        top = _open(path)
    except FileNotFoundError:
        return
    looks = _Looks()
    try:
        _empty(top, looks)
        while not looks.remove(path):
            _empty(top, looks)
    finally:
        os.close(top)


class _Looks:
    """Removes directories that were emptied, and says whether that is true of them still."""

    def __init__(self) -> None:
        self._left = _MOST_LOOKS

    def remove(self, name: str, parent: int | None = None) -> bool:
        """Remove a directory; False when somebody has put something into it since, and it is to be emptied again."""
        try:
            os.rmdir(name, dir_fd=parent)
        except FileNotFoundError:
            return True
        except OSError as error:
            self._left -= 1
            if error.errno != errno.ENOTEMPTY or not self._left:
                raise
            return False
        return True


def _empty(top: int, looks: _Looks) -> None:
    """Sink every subdirectory to the top level before emptying it, so that depth costs nothing.

    A directory is renamed into `top` under a number; two descriptors are open at most.
    """
    fresh = 0
    pending = _clear(top)
    while pending:
        name = pending.pop()
        try:
            directory = _open(name, top)
        except FileNotFoundError:  # somebody else removes it too
            continue
        except NotADirectoryError:  # it was swapped since it was seen
            _unlink(name, top)
            continue
        try:
            for child in _clear(directory):
                fresh += 1
                lifted = f".cove-{fresh}-{os.urandom(4).hex()}"
                with suppress(FileNotFoundError):
                    _lift(child, directory, lifted, top)
                    pending.append(lifted)
        finally:
            os.close(directory)
        if not looks.remove(name, top):
            pending.append(name)


def _open(name: str, parent: int | None = None) -> int:
    """Open a directory, never through a link, and give its owner all rights on it: by descriptor, not by name."""
    try:
        directory = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | _DIRECTORY, dir_fd=parent)
    except PermissionError:
        directory = _open_unreadable(name, parent)
    try:
        os.fchmod(directory, stat.S_IRWXU)
    except OSError:
        os.close(directory)
        raise
    return directory


def _open_unreadable(name: str, parent: int | None) -> int:
    """A descriptor with O_PATH needs no right on the directory: open(2), proc(5)."""
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | _DIRECTORY, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{handle}", stat.S_IRWXU)
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | _DIRECTORY)
    finally:
        os.close(handle)


def _lift(child: str, directory: int, lifted: str, top: int) -> None:
    try:
        os.rename(child, lifted, src_dir_fd=directory, dst_dir_fd=top)
    except PermissionError:  # a directory must itself be writable to get another parent
        os.close(_open(child, directory))
        os.rename(child, lifted, src_dir_fd=directory, dst_dir_fd=top)


def _clear(directory: int) -> list[str]:
    """Unlink everything that is not a directory; returns the names of those that are."""
    with os.scandir(directory) as entries:
        return [
            entry.name for entry in entries if entry.is_dir(follow_symlinks=False) or not _unlink(entry.name, directory)
        ]


def _unlink(name: str, parent: int) -> bool:
    """Unlink what is no directory; False when it is one since it was seen."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return True
    except IsADirectoryError:
        return False
    return True
