"""Export and load snapshots beside the event loop, each in a thread of its own that a cancel stops."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import asynccontextmanager

from cove.archive.stream import Stream
from cove.layers.places import FileOrigin, open_origin, place_of
from cove.layers.record import Snapshot
from cove.layers.snapshot_export import digest_of, export_file, export_to, load_from
from cove.layers.store import LayerStore
from cove.local.feed import feed
from cove.local.files import translated
from cove.local.threads import Stop, finished, kept_or_undone, start_in_thread, start_transfer
from cove.model import ExportInfo, TransferProgress
from cove.tasks import settled

Progress = Callable[[TransferProgress], object] | None
_CHUNK_BYTES = 1 << 20
_MOST_SECONDS_BETWEEN = 0.1


@asynccontextmanager
async def admitted(store: LayerStore) -> AsyncGenerator[None, None]:
    """Hold room for one more snapshot until it is kept. Raises where there is none."""
    release = await kept_or_undone(start_in_thread(store.admit), lambda release: release())
    try:
        yield
    finally:
        await finished(release)


async def export_snapshot(store: LayerStore, id: str, target: str, progress: Progress = None) -> ExportInfo:
    """Export a snapshot to a path or URL of the caller's."""

    def work(stop: Stop, tell: Callable[[TransferProgress], object]) -> ExportInfo:
        return export_to(store, id, place_of(target), tell, stop.check)

    with Stop() as stop, translated(target):
        return await settled(start_transfer(work, stop, relayed(progress)), on_cancel=stop.set)


async def load_snapshot(store: LayerStore, source: str, progress: Progress = None) -> Snapshot:
    """Load a snapshot from a path or URL of the caller's."""

    def work(stop: Stop, tell: Callable[[TransferProgress], object]) -> Snapshot:
        with open_origin(source) as origin:
            return load_from(store, origin, tell, stop.check)

    with Stop() as stop, translated(source):
        loading = start_transfer(work, stop, relayed(progress))
        return await kept_or_undone(loading, lambda made: store.delete(made.id), on_cancel=stop.set)


async def snapshot_digest(store: LayerStore, id: str) -> str:
    """Return the digest of a snapshot."""
    with Stop() as stop, translated(f"snapshot {id}"):
        return await settled(start_transfer(digest_of, store, id, stop.check), on_cancel=stop.set)


async def read_archive(store: LayerStore, id: str) -> AsyncGenerator[bytes, None]:
    """Give an export as one file, in pieces; nothing of it is left when the reader leaves."""
    with Stop() as stop, translated(f"snapshot {id}"):
        exporting = start_transfer(export_file, store, id, stop.check)
        descriptor = await settled(exporting, on_cancel=stop.set, discard=os.close)
    try:
        while data := await finished(os.read, descriptor, _CHUNK_BYTES):
            yield data
    finally:
        os.close(descriptor)


async def load_archive(store: LayerStore, chunks: AsyncIterable[bytes]) -> Snapshot:
    """Load an export that comes as one file, in pieces."""

    def work(stream: Stream, stop: Stop) -> Snapshot:
        return load_from(store, FileOrigin(stream), lambda _: None, stop.check)

    async def loaded(loading: "asyncio.Future[Snapshot]", stop: Callable[[], object]) -> Snapshot:
        return await kept_or_undone(loading, lambda made: store.delete(made.id), on_cancel=stop)

    async with admitted(store):
        with translated("the export"):
            return await feed(chunks, work, loaded)


def relayed(progress: Progress) -> Callable[[TransferProgress], object]:
    """Return a function for the thread, by which the callback is called in the event loop, not too often."""
    if progress is None:
        return lambda _: None
    loop, last = asyncio.get_running_loop(), [0.0, -1.0]

    def tell(told: TransferProgress) -> None:
        now = loop.time()
        if told.layers != last[1] or now - last[0] > _MOST_SECONDS_BETWEEN:
            last[:] = now, told.layers
            loop.call_soon_threadsafe(progress, told)

    return tell
