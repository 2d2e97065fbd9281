"""Whether other users get through to a directory: path_resolution(7)."""

import os
import stat


def closed_directory(path: str) -> str | None:
    """The nearest directory, from this one up to the root, that others cannot enter; None if there is none."""
    while os.stat(path).st_mode & stat.S_IXOTH:
        if path == "/":
            return None
        path = os.path.dirname(path)
    return path
