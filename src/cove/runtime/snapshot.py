"""A snapshot of this state directory."""

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from os import PathLike

from cove.api.snapshot import AsyncSnapshot
from cove.layers.store import LayerStore
from cove.local.threads import in_thread
from cove.model import ExportInfo, SnapshotInfo, TransferProgress
from cove.runtime.snapshot_transfer import export_snapshot, read_archive, snapshot_digest
from cove.runtime.tracing import traced


@traced("snapshot", AsyncSnapshot)
class Snapshot(AsyncSnapshot):
    """A snapshot on this machine's disk."""

    def __init__(self, store: LayerStore, info: SnapshotInfo) -> None:
        super().__init__(info)
        self._store = store

    async def info(self) -> SnapshotInfo:
        return await in_thread(lambda: self._store.describe(self._store.find(self.id)))

    async def export(
        self,
        target: str | PathLike[str],
        *,
        progress: Callable[[TransferProgress], object] | None = None,
    ) -> ExportInfo:
        return await export_snapshot(self._store, self.id, os.fspath(target), progress)

    async def read_archive(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(read_archive(self._store, self.id)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def digest(self) -> str:
        return await snapshot_digest(self._store, self.id)

    async def delete(self) -> None:
        await in_thread(self._store.delete, self.id)
