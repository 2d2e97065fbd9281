"""Write what a sandbox has changed as a patch, from its layers on disk. Blocks."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from cove.core.layer_changes import Change, EntryKind, Place
from cove.core.unified_diff import FileState, Patch
from cove.layers.changes import compare_parts
from cove.layers.directory import DirectoryLayer

MOST_PATCH_BYTES: Final = 4 << 20
MOST_FILE_BYTES: Final = 1 << 20
_FILE, _LINK = 0o100000, 0o120000


def find_diff(
    lower: Sequence[Path],
    upper: Sequence[Path],
    path: bytes = b"/",
    most_bytes: int = MOST_PATCH_BYTES,
    check: Callable[[], object] = lambda: None,
    *,
    is_whole: bool = False,
) -> str:
    """Return the differences of all files at or below a path inside as one patch; see `find_changes`.

    Binary and very large files are named. A patch over `most_bytes` is cut, and says so in its last line.
    """
    patch = Patch(most_bytes)
    for prefix, changes in compare_parts(lower, upper, check, is_whole=is_whole):
        top = prefix.encode()[1:]
        chosen = [change for change in changes if _is_below(b"/" + top + change.path, path) and _is_shown(change)]
        for at, change in enumerate(chosen):
            check()
            if patch.is_full:
                patch.leave_out(len(chosen) - at)
                break
            patch.add(top + change.path, *(_state(change.path, side) for side in (change.before, change.after)))
    return patch.text()


def _is_below(path: bytes, top: bytes) -> bool:
    top = top.rstrip(b"/")
    return path == top or path.startswith(top + b"/")


def _is_shown(change: Change) -> bool:
    """Return whether a side has a file or a link: directories are no part of a patch."""
    return any(side.entry is not None and not side.merged for side in (change.before, change.after))


def _state(path: bytes, place: Place) -> FileState | None:
    entry = place.entry
    if entry is None or place.merged:
        return None
    assert isinstance(place.owner, DirectoryLayer)
    if entry.kind is EntryKind.SYMLINK:
        return FileState(_LINK, place.owner.read_link(path))
    if entry.kind is EntryKind.FILE:
        return FileState(_FILE | entry.mode, _read(place.owner, path))
    return FileState(_FILE | entry.mode, None)


def _read(layer: DirectoryLayer, path: bytes) -> bytes | None:
    """Return the content of a file; None for one that is not to be shown."""
    opened = layer.open_file(path)
    if opened is None:
        return None
    with opened:
        content = b""
        while len(content) <= MOST_FILE_BYTES and (more := os.read(opened.descriptor, MOST_FILE_BYTES + 1)):
            content += more
        return content if len(content) <= MOST_FILE_BYTES else None
