"""Find what a sandbox has changed, from its layers on disk. Blocks.

All of it was written by hostile code: nothing is followed, and entries, bytes and differences have a bound.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from cove.core.layer_changes import Change, Comparison, EntryKind, Place
from cove.layers.directory import DirectoryLayer
from cove.model import FileChange

# Parts of a layer, and their paths inside.
PARTS: Final = (("home", "/home/user/"), ("root", "/"), ("tmp", "/tmp/"), ("workspace", "/workspace/"))
MOST_COMPARED_BYTES: Final = 1 << 30
_CHUNK_BYTES: Final = 1 << 20


def find_changes(
    lower: Sequence[Path],
    upper: Sequence[Path],
    check: Callable[[], object] = lambda: None,
    *,
    is_whole: bool = False,
) -> list[FileChange]:
    """List the differences that the layers `upper` make on the layers `lower`, each bottom first, sorted by path.

    A layer is given by its directory with `workspace`, `home`, `tmp`, or some of them. `check` is called again and
    again, and may raise to give up. With `is_whole` the layers `upper` are the other tree themselves.
    """
    found: list[FileChange] = []
    for prefix, changes in compare_parts(lower, upper, check, is_whole=is_whole):
        found += [change.file_change(prefix) for change in changes]
    return sorted(found, key=lambda change: change.path)


def compare_parts(
    lower: Sequence[Path], upper: Sequence[Path], check: Callable[[], object], *, is_whole: bool = False
) -> Iterator[tuple[str, list[Change]]]:
    """Compare part by part. While a part is worked on, its layers stay open."""
    contents = Contents(check)
    for name, prefix in PARTS:
        with opened_layers(lower, name) as below, opened_layers(upper, name) as above:
            yield prefix, Comparison(below, above, contents.same, is_whole=is_whole).run()


@contextmanager
def opened_layers(layers: Sequence[Path], part: str) -> Iterator[list[DirectoryLayer]]:
    """Open one part of those layers that have it."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(DirectoryLayer(layer / part))
            for layer in layers
            if (layer / part).is_dir() and not (layer / part).is_symlink()
        ]


class Contents:
    """Compares contents within a budget; beyond it, what has the same size is said to differ."""

    def __init__(self, check: Callable[[], object]) -> None:
        self._check = check
        self._left = MOST_COMPARED_BYTES

    def same(self, path: bytes, before: Place, after: Place) -> bool:
        """Return whether two files or links of the same size are the same."""
        self._check()
        assert before.entry is not None
        assert isinstance(before.owner, DirectoryLayer)
        assert isinstance(after.owner, DirectoryLayer)
        if before.entry.kind is EntryKind.SYMLINK:
            return before.owner.read_link(path) == after.owner.read_link(path)
        self._left -= before.entry.size
        return self._left >= 0 and self._same_files(path, before.owner, after.owner)

    def _same_files(self, path: bytes, before: DirectoryLayer, after: DirectoryLayer) -> bool:
        with ExitStack() as stack:
            files = [layer.open_file(path) for layer in (before, after)]
            for file in files:
                if file is not None:
                    stack.enter_context(file)
            first, second = files
            if first is None or second is None:
                return False
            return self._same_content(first.descriptor, second.descriptor)

    def _same_content(self, first: int, second: int) -> bool:
        at = 0
        while True:
            self._check()
            chunk = os.pread(first, _CHUNK_BYTES, at)
            if chunk != os.pread(second, _CHUNK_BYTES, at):
                return False
            if not chunk:
                return True
            at += len(chunk)
