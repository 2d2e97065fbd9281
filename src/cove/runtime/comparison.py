"""Compare the files of a sandbox with those of a snapshot, or of its creation."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from cove.errors import SandboxUnavailable
from cove.layers.changes import find_changes
from cove.layers.diff import find_diff
from cove.local.threads import in_transfer
from cove.model import FileChange
from cove.runtime.layers import SandboxLayers

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
# The directories of layers, bottom first: those below, and those on top.
Trees = tuple[list[Path], list[Path]]
Check = Callable[[], None]

_MOST_TIMES = 20


class _Find(Protocol[T_co]):
    def __call__(self, trees: Trees, check: Check, *, is_whole: bool) -> T_co:
        """Compare those layers; `check` raises when nobody waits for it any more."""


class Comparison:
    """Reads layers, and changes nothing."""

    __slots__ = ("_layers",)

    def __init__(self, layers: SandboxLayers) -> None:
        self._layers = layers

    async def changes(self, since: str | None) -> list[FileChange]:
        """Compare the files as they are with those of a snapshot, or of the creation."""

        def find(trees: Trees, check: Check, *, is_whole: bool) -> list[FileChange]:
            if (files := self._layers.files) is not None:
                return files.changes(trees, check, is_whole=is_whole)
            return find_changes(*trees, check, is_whole=is_whole)

        return await in_transfer(lambda check: self._compare(since, find, check))

    async def diff(self, path: bytes, since: str | None) -> str:
        """Write the same as a patch."""

        def find(trees: Trees, check: Check, *, is_whole: bool) -> str:
            if (files := self._layers.files) is not None:
                return files.diff(trees, path, check, is_whole=is_whole)
            return find_diff(*trees, path, check=check, is_whole=is_whole)

        return await in_transfer(lambda check: self._compare(since, find, check))

    def _compare(self, since: str | None, find: "_Find[T]", check: Check) -> T:
        """Compare, and once more where the layers were others before it was done: nobody waits for this. Blocks."""
        for _ in range(_MOST_TIMES):
            trees, is_whole = self.trees(since), self._is_other(since)
            error = None
            try:
                found = find(trees, check, is_whole=is_whole)
            except (OSError, SandboxUnavailable) as failure:
                error = failure
            if (trees, is_whole) == (self.trees(since), self._is_other(since)):
                if error is not None:
                    raise error
                return found
        raise SandboxUnavailable("snapshots are made faster than the files can be compared: try again")

    def trees(self, since: str | None) -> Trees:
        """Return the layers before, and those on top; where one does not stand on the other, all of each. Blocks."""
        stack, before = self._layers.place.convert(), self.layers_before(since)
        now = [*map(self._layers.data, stack.shorten(stack.layers)), self._layers.place.directories[0].parent]
        below = [*map(self._layers.data, before)]
        return below, now if self._is_other(since) else now[len(before) :]

    def layers_before(self, since: str | None) -> tuple[str, ...]:
        """Return the ids of the layers of a snapshot, or of the creation, as they are stacked here."""
        stack = self._layers.place.stack
        layers = () if stack is None else stack.base
        if since is not None:
            layers = self._layers.store.find(since).layers
        return layers if stack is None else stack.shorten(layers)

    def _is_other(self, since: str | None) -> bool:
        before, stack = self.layers_before(since), self._layers.place.stack
        return stack is not None and stack.shorten(stack.layers)[: len(before)] != before
