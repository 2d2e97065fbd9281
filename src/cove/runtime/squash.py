"""Shorten the chain of layers of a sandbox that makes many snapshots, beside what it does.

Theory of operation. Every snapshot and every transaction adds a layer; the kernel takes so many, and gets slower. When
a chain is deep, a run of its layers is merged into one (layers/merging), in a thread, while the sandbox goes on: layers
do not change. The merged layer is then written down in the sandbox's record, and takes the place of the run when the
mounts are next changed, which costs nothing. Snapshots that were made before keep the layers they have, so that neither
their files nor their digests change; those layers go with the last that names them.

A killed program leaves a half layer, or one that nothing names: garbage. What cannot be merged, as a hostile tree may
be, is left as it is; at the very end the sandbox can make no more snapshots.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from cove.archive.remove_tree import remove_tree
from cove.core.squash import DEEP, TOO_DEEP, Merge, add_merge, choose_run, plan_merge
from cove.errors import CoveError
from cove.layers.merging import merge_layers
from cove.layers.record import Layer
from cove.layers.store import is_of_image
from cove.local.threads import finished, in_transfer
from cove.runtime.layers import SandboxLayers
from cove.tasks import Tasks, shared

# A snapshot of a chain that is too deep waits so long for one that is shorter.
_CATCH_UP_SECONDS = 30.0

log = logging.getLogger("cove.runtime")


class Squash:
    """Merges for one sandbox, one after the other. `turn` is who may change what the sandbox stands on."""

    def __init__(self, layers: SandboxLayers, turn: asyncio.Lock) -> None:
        self._layers = layers
        self._turn = turn
        self._making: asyncio.Task[Merge | None] | None = None
        self._failed = ""

    @property
    def _depth(self) -> int:
        stack = self._layers.place.stack
        return 0 if stack is None else sum(not is_of_image(id) for id in stack.shorten(stack.layers))

    def look(self, background: Tasks) -> None:
        """Begin to merge layers if the chain is deep. The caller has the turn."""
        if self._depth > DEEP and (self._making is None or self._making.done()):
            self._making = background.start(self._make())
            background.start(self._note_when_made(self._making))

    async def catch_up(self, background: Tasks) -> None:
        """Wait for a chain that is too deep to become shorter, for a while. The caller has the turn."""
        if self._depth > TOO_DEEP:
            self.look(background)
            assert self._making is not None
            await asyncio.wait([self._making], timeout=_CATCH_UP_SECONDS)
            if self._making.done() and not self._making.cancelled():
                await self._note(self._making.result())

    async def _note_when_made(self, making: "asyncio.Task[Merge | None]") -> None:
        merge = await shared(making)
        async with self._turn:
            await self._note(merge)

    async def _note(self, merge: Merge | None) -> None:
        if merge is not None:
            await finished(self._write_down, merge)

    def _write_down(self, merge: Merge) -> None:
        place = self._layers.place
        with self._layers.store.holding():
            if place.stack is not None and merge not in place.stack.merges and self._layers.store.has(merge.into):
                place.commit(msgspec.structs.replace(place.stack, merges=add_merge(place.stack.merges, merge)))

    async def _make(self) -> Merge | None:
        try:
            return await in_transfer(self._merge)
        except (CoveError, OSError) as error:
            log.warning("layers cannot be merged: %s", error)
            return None

    def _merge(self, check: Callable[[], None]) -> Merge | None:
        """Merge what is best merged now. Blocks."""
        with self._layers.store.holding():
            merge = self._plan()
            if merge is None or merge.into == self._failed:
                return None
            if not self._layers.store.has(merge.into):
                self._failed = merge.into
                self._build(merge, check)
                self._failed = ""
            return merge

    def _plan(self) -> Merge | None:
        """Leave layers of images alone, and those of the creation apart from what came after it."""
        store, stack = self._layers.store, self._layers.place.stack
        if stack is None:
            return None
        layers, base = stack.shorten(stack.layers), stack.shorten(stack.base)
        images = sum(map(is_of_image, layers))
        boundary = len(base) - images if layers[: len(base)] == base else 0
        chosen = choose_run([store.size(id) or 0 for id in layers[images:]], [max(boundary, 0)])
        if not chosen:
            return None
        run = layers[images + chosen.start : images + chosen.stop]
        return plan_merge(run, is_bottom=not images and not chosen.start)

    def _build(self, merge: Merge, check: Callable[[], None]) -> None:
        store, place = self._layers.store, self._layers.place
        building = store.building()
        try:
            data = building / "data"
            data.mkdir(mode=0o700)
            sources = [store.data(id) for id in merge.run]
            merge_layers(sources, data, is_bottom=merge.is_bottom, owners=place.owners(merge.run), check=check)
            self._adopt(building, place.describe(merge.into, None))
        finally:
            remove_tree(str(building))

    def _adopt(self, building: Path, layer: Layer) -> None:
        try:
            self._layers.store.adopt(building, layer)
        except OSError:
            if not self._layers.store.has(layer.id):  # nobody else has made the same
                raise
