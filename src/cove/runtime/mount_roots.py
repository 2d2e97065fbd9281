"""Identify the mount at a path inside a sandbox, by device and inode of its root; no link is followed."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from cove.attach import Target, kernel
from cove.errors import PermissionDenied
from cove.linux.path_walk import LinkInPath, find
from cove.linux.pidfd import open_fact

Root = tuple[int, int, int]


def root_of(tree: int) -> Root:
    """Return which mount a detached tree is."""
    root = kernel.identify_mount(tree)
    assert root is not None
    return root


def root_at(target: Target, path: str) -> Root:
    """Return which mount stands at a path inside; raise PermissionDenied if the path was changed meanwhile.

    Nothing runs inside yet, but what another sandbox shares can lie on the path.
    """
    try:
        with _opened(target, path) as found:
            root = kernel.identify_mount(found)
    except (FileNotFoundError, NotADirectoryError, LinkInPath):
        root = None
    if root is None:
        raise PermissionDenied(f"mount target {path} is refused: the path to it was changed while it was mounted")
    return root


def is_missing(target: Target, path: str) -> bool:
    """Return whether nothing is at a path inside."""
    try:
        with _opened(target, path):
            return False
    except FileNotFoundError:
        return True
    except (OSError, LinkInPath):
        return False


def is_directory(tree: int) -> bool:
    """Return whether the root of a tree is a directory."""
    return stat.S_ISDIR(os.fstat(tree).st_mode)


@contextmanager
def _opened(target: Target, path: str) -> Iterator[int]:
    top = open_fact(target.pidfd, target.pid, "root", os.O_PATH | os.O_DIRECTORY)
    try:
        found = find(path, root=top)
    finally:
        os.close(top)
    try:
        yield found.descriptor
    finally:
        found.close()
