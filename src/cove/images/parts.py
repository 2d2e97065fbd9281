"""Parts of an image: what it has at /workspace, /home/user and /tmp lies beside its root, as in every layer. Blocks.

A sandbox has mounts of its own there, which show these parts of all layers below its own. What is in a layer is an
enemy's: each step is made from an open directory, and follows no link.
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cove.images.merged_view import OPAQUE, OPEN_DIRECTORY, is_whiteout, look_at, opened_view
from cove.layers.record import ROOT

# Where a part is in an image, by its name in a layer.
PLACES: Final[Mapping[str, tuple[bytes, ...]]] = {
    "workspace": (b"workspace",),
    "home": (b"home", b"user"),
    "tmp": (b"tmp",),
}


def is_apart(parts: Sequence[bytes]) -> bool:
    """Return whether a path of an image is in a part beside its root."""
    return any(tuple(parts[: len(place)]) == place for place in PLACES.values())


def split_parts(data: Path, below: Sequence[Path], owner: int | None) -> None:
    """Move the parts of a layer that was unpacked whole into its root; `below` has the data of the layers below it.

    What is made for it belongs to `owner`, if there is one.
    """
    top = os.open(data, OPEN_DIRECTORY)
    try:
        for part, place in PLACES.items():
            has_lower = any((lower / part).is_dir() for lower in below)
            if _split(top, part, place, has_lower=has_lower) and owner is not None:
                os.chown(part, owner, owner, dir_fd=top, follow_symlinks=False)
    finally:
        os.close(top)


def _split(top: int, part: str, place: tuple[bytes, ...], *, has_lower: bool) -> bool:
    """Let a part of which something on the way hides what is below hide it itself; returns whether it is a new one."""
    held = [os.open(ROOT, OPEN_DIRECTORY, dir_fd=top)]
    try:
        hides, found = _is_opaque(held[-1]), None
        for name in place:
            found = look_at(held[-1], name)
            if found is None or not stat.S_ISDIR(found.st_mode):
                hides = hides or found is not None
                break
            held.append(os.open(name, OPEN_DIRECTORY, dir_fd=held[-1]))
            hides = hides or _is_opaque(held[-1])
        if len(held) > len(place):
            with _times_kept(held[-2]):
                os.rename(place[-1], part, src_dir_fd=held[-2], dst_dir_fd=top)
        elif hides and has_lower:
            os.mkdir(part, 0o755, dir_fd=top)
            os.utime(part, (0, 0), dir_fd=top, follow_symlinks=False)
            if len(held) == len(place) and found is not None and is_whiteout(found):
                with _times_kept(held[-1]):
                    os.unlink(place[-1], dir_fd=held[-1])  # the part says it now
        if hides and has_lower:
            _hide(top, part)
        return hides and has_lower and len(held) <= len(place)
    finally:
        for fd in held:
            os.close(fd)


@contextmanager
def _times_kept(directory: int) -> Iterator[None]:
    """Leave a directory as old as the image says it is."""
    before = os.fstat(directory)
    yield
    os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))


def _is_opaque(directory: int) -> bool:
    return OPAQUE in os.listxattr(directory)


def _hide(top: int, part: str) -> None:
    fd = os.open(part, OPEN_DIRECTORY, dir_fd=top)
    try:
        os.setxattr(fd, OPAQUE, b"y")
    finally:
        os.close(fd)


def has_directory(data: Sequence[Path], path: str) -> bool:
    """Return whether an image has a directory at an absolute path, by the data of its layers, the lowest first."""
    parts = tuple(part for part in os.fsencode(path).split(b"/") if part)
    for part, place in PLACES.items():
        if parts[: len(place)] == place:
            return _is_directory([each / part for each in data if (each / part).is_dir()], parts[len(place) :])
    return _is_directory([each / ROOT for each in data], parts)


def _is_directory(tops: Sequence[Path], parts: tuple[bytes, ...]) -> bool:
    if not parts:
        return bool(tops)
    with opened_view([str(top) for top in tops]) as view:
        real = view.resolve(parts)
        found = view.look(real) if real else None
        return found is not None and stat.S_ISDIR(found.st_mode)
