"""Find the Python of an image, by its name alone: nothing of an image is run to learn about it."""

import os
import posixpath
import re
import stat
from collections.abc import Mapping
from typing import Final

from cove.images.merged_view import MergedView

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOST_DIRECTORIES: Final = 20
_PROGRAM: Final = re.compile(rb"python3\.(\d{1,3})")


def find_python(view: MergedView, env: Mapping[str, str]) -> tuple[str, tuple[int, int]] | None:
    """Find `python3` on the path of the image, and its version, which the name of the program itself says."""
    for directory in env.get("PATH", _PATH).split(":")[:_MOST_DIRECTORIES]:
        path = posixpath.join(directory, "python3")
        real = view.resolve(tuple(os.fsencode(path).split(b"/"))) if directory.startswith("/") else ()
        found = view.look(real) if real else None
        version = _PROGRAM.fullmatch(real[-1]) if real else None
        if found is not None and version is not None and stat.S_ISREG(found.st_mode) and found.st_mode & 0o111:
            return path, (3, int(version[1]))
    return None
