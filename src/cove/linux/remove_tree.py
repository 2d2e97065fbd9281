"""Remove a directory tree that hostile code has filled, without following a link or recursing."""

import os
import stat

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str) -> None:
    """Remove path and all below it, however deep and whatever its modes; missing is fine."""
    try:
        if not os.path.islink(path):
            os.chmod(path, stat.S_IRWXU, follow_symlinks=False)
        top = os.open(path, _OPEN)
    except FileNotFoundError:
        return
    try:
        _empty(top)
    finally:
        os.close(top)
    os.rmdir(path)


def _empty(top: int) -> None:
    """Sink every subdirectory to the top level before emptying it, so that depth costs nothing.

    A directory is renamed into `top` under a number; two descriptors are open at most.
    """
    fresh = 0
    pending = _clear(top)
    while pending:
        name = pending.pop()
        os.chmod(name, stat.S_IRWXU, dir_fd=top)
        directory = os.open(name, _OPEN, dir_fd=top)
        try:
            for child in _clear(directory):
                fresh += 1
                lifted = f".cove-{fresh}-{os.urandom(4).hex()}"
                os.chmod(child, stat.S_IRWXU, dir_fd=directory)
                os.rename(child, lifted, src_dir_fd=directory, dst_dir_fd=top)
                pending.append(lifted)
        finally:
            os.close(directory)
        os.rmdir(name, dir_fd=top)


def _clear(directory: int) -> list[str]:
    """Unlink everything that is not a directory; returns the names of those that are."""
    kept = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                kept.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=directory)
    return kept
