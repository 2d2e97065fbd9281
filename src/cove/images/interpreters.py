"""Find the Python and the Node.js of an image, by their names: nothing of an image is run to learn about it."""

import os
import posixpath
import re
import stat
from collections.abc import Iterator, Mapping
from typing import Final

from cove.images.merged_view import MergedView, Parts

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOST_DIRECTORIES: Final = 20
_PROGRAM: Final = re.compile(rb"python3\.(\d{1,3})")


def find_python(view: MergedView, env: Mapping[str, str]) -> tuple[str, tuple[int, int]] | None:
    """Find `python3` on the path of the image, and its version, which the name of the program itself says."""
    for path, real in _find(view, env, "python3"):
        version = _PROGRAM.fullmatch(real[-1])
        if version is not None:
            return path, (3, int(version[1]))
    return None


def find_node(view: MergedView, env: Mapping[str, str]) -> str | None:
    """Find `node` on the path of the image. It says itself, inside, whether it is new enough."""
    return next((path for path, _ in _find(view, env, "node")), None)


def _find(view: MergedView, env: Mapping[str, str], name: str) -> Iterator[tuple[str, Parts]]:
    """Give the programs of that name on the path, in order: each with where it really is."""
    for directory in env.get("PATH", _PATH).split(":")[:_MOST_DIRECTORIES]:
        path = posixpath.join(directory, name)
        real = view.resolve(tuple(os.fsencode(path).split(b"/"))) if directory.startswith("/") else ()
        found = view.look(real) if real else None
        if found is not None and stat.S_ISREG(found.st_mode) and found.st_mode & 0o111:
            yield path, real
