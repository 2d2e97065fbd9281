"""Export and load snapshots of a server: the server streams bytes, paths and URLs are this program's."""

import os
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final

from cove.archive.stream import Stream
from cove.layers.places import FileOrigin, FilePlace, copy_export, open_origin, place_of
from cove.local.feed import feed
from cove.local.files import translated
from cove.local.threads import Stop, finished, start_transfer
from cove.model import ExportInfo, TransferProgress
from cove.tasks import settled

Progress = Callable[[TransferProgress], object] | None
_CHUNK_BYTES: Final = 1 << 20


async def write_export(
    chunks: AsyncGenerator[bytes, None], id: str, target: str, progress: Progress = None
) -> ExportInfo:
    """Write an export that comes as one file to a path or URL of this program's."""

    def work(stream: Stream, stop: Stop) -> ExportInfo:
        with tempfile.TemporaryDirectory(prefix="cove-") as working:
            return copy_export(FileOrigin(stream), id, place_of(target), Path(working), stop.check)

    with translated(target):
        async with aclosing(chunks):
            info = await feed(chunks, work, lambda writing, stop: settled(writing, on_cancel=stop))
    if progress is not None:
        progress(TransferProgress(layers=info.layers, total_layers=info.layers, bytes=info.sent_bytes))
    return info


async def read_export(source: str, progress: Progress = None) -> AsyncGenerator[bytes, None]:
    """Read an export at a path or URL of this program's as one file, in pieces."""
    with Stop() as stop, translated(source):
        gathering = start_transfer(_gather, source, stop)
        info, descriptor = await settled(gathering, on_cancel=stop.set, discard=lambda found: os.close(found[1]))
    sent = 0
    try:
        while data := await finished(os.read, descriptor, _CHUNK_BYTES):
            yield data
            sent += len(data)
            if progress is not None:
                progress(TransferProgress(layers=0, total_layers=info.layers, bytes=sent))
    finally:
        os.close(descriptor)


def _gather(source: str, stop: Stop) -> tuple[ExportInfo, int]:
    """Bring an export together in one file without a name: what is sent has to know its length."""
    with tempfile.TemporaryDirectory(prefix="cove-") as working, open_origin(source) as origin:
        place = FilePlace(Path(working) / "archive.tar")
        info = copy_export(origin, "snapshot", place, Path(working), stop.check)
        return info, os.open(info.location, os.O_RDONLY | os.O_CLOEXEC)
