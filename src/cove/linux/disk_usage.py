"""Measure disk usage of a tree while hostile code changes it: no link is followed, no file opened."""

import os
from contextlib import suppress
from dataclasses import dataclass

BLOCK_BYTES = 512
DEEPEST = 400

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class DiskUsage:
    """The usage that was found; `is_partial` when directories could not be read, or were nested too deep to look at."""

    bytes: int = 0
    files: int = 0
    is_partial: bool = False


def measure_disk(paths: list[str]) -> DiskUsage:
    """Measure what these trees take together. Blocks, for as long as there are files."""
    usage = DiskUsage()
    seen: set[tuple[int, int]] = set()
    for path in paths:
        with suppress(OSError):
            _measure(os.open(path, _DIRECTORY), usage, seen)
    return usage


def _measure(top: int, usage: DiskUsage, seen: set[tuple[int, int]]) -> None:
    """Depth first, with one open directory for each level: a path could be longer than the kernel takes."""
    levels = [(top, _read(top, usage, seen))]
    while levels:
        descriptor, names = levels[-1]
        if len(levels) > DEEPEST and names:
            usage.is_partial = True
            names.clear()
        if not names:
            os.close(levels.pop()[0])
            continue
        try:
            below = os.open(names.pop(), _DIRECTORY, dir_fd=descriptor)
        except PermissionError:
            usage.is_partial = True
            continue
        except OSError:
            continue  # removed meanwhile
        levels.append((below, _read(below, usage, seen)))


def _read(directory: int, usage: DiskUsage, seen: set[tuple[int, int]]) -> list[str]:
    """Count what is in one directory; returns the names of the directories in it."""
    names = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            try:
                found = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if found.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
                if (found.st_dev, found.st_ino) in seen:
                    continue
                seen.add((found.st_dev, found.st_ino))
            usage.files += 1
            usage.bytes += found.st_blocks * BLOCK_BYTES
            if entry.is_dir(follow_symlinks=False):
                names.append(entry.name)
    return names
