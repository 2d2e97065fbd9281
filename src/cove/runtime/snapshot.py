"""A snapshot of this state directory."""

from cove.api.snapshot import AsyncSnapshot
from cove.layers.store import LayerStore
from cove.local.threads import in_thread
from cove.model import SnapshotInfo


class Snapshot(AsyncSnapshot):
    """A snapshot on this machine's disk."""

    def __init__(self, store: LayerStore, info: SnapshotInfo) -> None:
        super().__init__(info)
        self._store = store

    async def info(self) -> SnapshotInfo:
        return await in_thread(lambda: self._store.describe(self._store.find(self.id)))

    async def delete(self) -> None:
        await in_thread(self._store.delete, self.id)
