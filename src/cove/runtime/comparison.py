"""Compare the files of a sandbox with those of a snapshot, or of its creation."""

from collections.abc import Callable
from pathlib import Path

from cove.layers.changes import find_changes
from cove.layers.diff import find_diff
from cove.local.threads import in_transfer
from cove.model import FileChange
from cove.runtime.layers import SandboxLayers


class Comparison:
    """Reads layers, and changes nothing."""

    __slots__ = ("_layers",)

    def __init__(self, layers: SandboxLayers) -> None:
        self._layers = layers

    async def changes(self, since: str | None) -> list[FileChange]:
        """Compare the files as they are with those of a snapshot, or of the creation."""
        return await in_transfer(lambda check: self._find_changes(since, check))

    def _find_changes(self, since: str | None, check: Callable[[], object]) -> list[FileChange]:
        trees, is_whole, files = self.trees(since), self._is_other(since), self._layers.files
        if files is not None:
            return files.changes(trees, check, is_whole=is_whole)
        return find_changes(*trees, check, is_whole=is_whole)

    async def diff(self, path: bytes, since: str | None) -> str:
        """Write the same as a patch."""
        return await in_transfer(lambda check: self._find_diff(path, since, check))

    def _find_diff(self, path: bytes, since: str | None, check: Callable[[], object]) -> str:
        trees, is_whole, files = self.trees(since), self._is_other(since), self._layers.files
        if files is not None:
            return files.diff(trees, path, check, is_whole=is_whole)
        return find_diff(*trees, path, check=check, is_whole=is_whole)

    def trees(self, since: str | None) -> tuple[list[Path], list[Path]]:
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
