"""Search permission of directories, for other users and for one group: path_resolution(7)."""

import os
import stat
from pathlib import Path


def closed_directory(path: str) -> str | None:
    """The nearest directory, from this one up to the root, that others cannot enter; None if there is none."""
    while os.stat(path).st_mode & stat.S_IXOTH:
        if path == "/":
            return None
        path = os.path.dirname(path)
    return path


def admit_group(path: Path, group: int | None) -> None:
    """Let the group through to what is below, and nobody else but the owner; without a group, nobody else."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if group is not None:
            os.fchown(directory, -1, group)
        os.fchmod(directory, stat.S_IRWXU if group is None else stat.S_IRWXU | stat.S_IXGRP)
    finally:
        os.close(directory)
