"""Texts that stand for secrets, and where they are found on disk."""

import os
from collections.abc import Collection
from pathlib import Path

# What belongs to the sandboxed code itself; files are written there because somebody said so.
OWN_FILES = ("workspace", "home", "tmp", "upper", "work", "layers", "shell")


def canary(name: str) -> str:
    """Return a text that is nowhere else."""
    return f"canary-{name}-5d1f0c"


def found_in(home: Path, texts: Collection[str]) -> set[tuple[str, str]]:
    """Each text that is in some file of Cove's own, or in its name, with the name of that file."""
    found = set()
    for directory, names, files in os.walk(home):
        names[:] = [name for name in names if name not in OWN_FILES]
        for name in (*files, *names):
            data = name.encode() + _read(Path(directory) / name)
            found |= {(name, text) for text in texts if text.encode() in data}
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # a directory, a socket, or gone
        return b""
