"""Compare a tree with the layers it stands on, in the form of overlayfs: whiteouts and opaque directories.

A tree is a list of layers. Of every name the highest layer that has it counts; a whiteout says that it is gone. A
directory is merged with those below it, down to one that is opaque or to a layer where the name is something else.
The cost follows what the upper layers have: the lower ones are only asked for the same names, and read whole only
where all of a directory is gone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Final, Protocol

import msgspec

from cove.core.file_path import decode_path
from cove.errors import LimitExceeded
from cove.model import FileChange, FileChangeKind

MOST_CHANGES: Final = 200_000
MOST_VISITED: Final = 2_000_000


class EntryKind(Enum):
    """The kind of a name in a layer."""

    FILE = auto()
    DIRECTORY = auto()
    SYMLINK = auto()
    OTHER = auto()
    WHITEOUT = auto()


# Looked up once, for the loops over all files.
_FILE, _DIRECTORY = EntryKind.FILE, EntryKind.DIRECTORY
_SAME_WHATEVER_IS_IN_THEM: Final = (EntryKind.DIRECTORY, EntryKind.OTHER)


class Entry(msgspec.Struct, frozen=True, gc=False):
    """The facts about one name; `mode` has the permission bits."""

    kind: EntryKind
    mode: int = 0
    size: int = 0


class Layer(Protocol):
    """One layer. A directory is a path below its top, which is the empty one."""

    def read(self, directory: bytes) -> Mapping[bytes, Entry]:
        """Return all names in a directory that is there."""

    def find(self, directory: bytes, name: bytes) -> Entry | None:
        """Look one name up in a directory that is there."""

    def is_opaque(self, directory: bytes) -> bool:
        """Return whether what lower layers have there is hidden."""


class Place(msgspec.Struct, frozen=True, gc=False):
    """A name in a tree: what it is, the layer that says so, and those that a directory is merged from, highest first.

    What is no directory is merged from none. A name that `hides` has nothing of the layers below the tree's own.
    """

    entry: Entry | None = None
    owner: Layer | None = None
    merged: tuple[Layer, ...] = ()
    hides: bool = False


class Change(msgspec.Struct, frozen=True, gc=False):
    """One path that differs, with what it was before and what it is after."""

    path: bytes
    before: Place
    after: Place

    @property
    def kind(self) -> FileChangeKind:
        """Say how it differs."""
        if self.before.entry is None:
            return FileChangeKind.ADDED
        return FileChangeKind.DELETED if self.after.entry is None else FileChangeKind.MODIFIED

    def file_change(self, prefix: str) -> FileChange:
        """Describe it for a caller, by its path below a prefix; the size is that of what is there."""
        found = self.after.entry or self.before.entry
        assert found is not None
        return FileChange(path=prefix + decode_path(self.path), kind=self.kind, size=found.size)


# Whether two files or links of the same path, kind and size have the same content.
Same = Callable[[bytes, Place, Place], bool]
NOWHERE: Final = Place()


class Comparison:
    """Collects the changes from the tree of the layers `lower` to that of `lower` and `upper`, both bottom first."""

    def __init__(self, lower: Sequence[Layer], upper: Sequence[Layer], same: Same, *, is_whole: bool = False) -> None:
        """With `is_whole` the layers `upper` do not stand on those below, but are the other tree themselves."""
        self._same = same
        self._found: list[Change] = []
        self._visited = 0
        self._pending = [(b"", self._top(lower), self._top(upper, hides=is_whole))]

    @staticmethod
    def _top(layers: Sequence[Layer], *, hides: bool = False) -> Place:
        if not layers:
            return Place(hides=hides)
        return Place(Entry(EntryKind.DIRECTORY), layers[-1], tuple(reversed(layers)), hides=hides)

    def run(self) -> list[Change]:
        """Return all changes, sorted by path."""
        while self._pending:
            self._directory(*self._pending.pop())
        self._found.sort(key=lambda change: change.path)
        return self._found

    def _directory(self, path: bytes, before: Place, after: Place) -> None:
        """Compare what is in a directory; where it hides nothing, names that it does not have are as before."""
        names = _names(path, after.merged)
        if after.hides:
            names |= _names(path, before.merged)
        self._visited += len(names)
        if self._visited > MOST_VISITED:
            raise LimitExceeded(f"more than {MOST_VISITED} files were touched: they cannot be compared at once")
        for name in names:
            was = resolve(before.merged, path, name)
            now = resolve(after.merged, path, name)
            if now is None:  # only where it hides what was there
                now = NOWHERE
            elif after.hides and not now.hides:
                now = Place(now.entry, now.owner, now.merged, hides=True)
            self._name(path + b"/" + name if path else name, was or NOWHERE, now)

    def _name(self, path: bytes, before: Place, after: Place) -> None:
        if self._differs(path, before, after):
            self._found.append(Change(path, before, after))
            if len(self._found) > MOST_CHANGES:
                raise LimitExceeded(f"more than {MOST_CHANGES} files have changed: they cannot be listed at once")
        if after.merged:
            self._pending.append((path, before if before.merged else NOWHERE, after))
        elif before.merged:
            self._pending.append((path, before, Place(hides=True)))

    def _differs(self, path: bytes, before: Place, after: Place) -> bool:
        was, now = before.entry, after.entry
        if was is None or now is None:
            return was is not now
        if was.kind is not now.kind or was.mode != now.mode:
            return True
        if was.kind in _SAME_WHATEVER_IS_IN_THEM:
            return False
        return was.size != now.size or not self._same(path, before, after)


def _names(path: bytes, layers: Iterable[Layer]) -> set[bytes]:
    return {name for layer in layers for name in layer.read(path)}


def resolve(layers: Sequence[Layer], directory: bytes, name: bytes) -> Place | None:
    """Find what a name is in these layers, highest first; None where none has it."""
    for layer in layers:
        found = layer.find(directory, name)
        if found is None:
            continue
        kind = found.kind
        if kind is _FILE:
            return Place(found, layer, (), True)
        if kind is _DIRECTORY:
            return _merge(layers[layers.index(layer) :], directory, name, found)
        return Place(hides=True) if kind is EntryKind.WHITEOUT else Place(found, layer, (), True)
    return None


def _merge(layers: Sequence[Layer], directory: bytes, name: bytes, entry: Entry) -> Place:
    """Merge a directory of the first of these layers with those below it."""
    path = directory + b"/" + name if directory else name
    merged: list[Layer] = []
    hides = False
    for layer in layers:
        found = layer.find(directory, name)
        if found is None:
            continue
        hides = found.kind is not EntryKind.DIRECTORY
        if not hides:
            merged.append(layer)
            hides = layer.is_opaque(path)
        if hides:
            break
    return Place(entry, merged[0], tuple(merged), hides)
