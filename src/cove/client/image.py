"""Client of an image: the server is sent bytes and gives bytes, paths are this program's."""

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from os import PathLike
from typing import Any

from cove import api
from cove.client.calls import Calls
from cove.client.files import read_descriptor, read_tree
from cove.client.handle import Handle
from cove.errors import ConnectionLost
from cove.local.files import make_local, open_local, translated, write_at
from cove.local.threads import finished
from cove.model import BuildEvent, ImageInfo, ImageMade, TransferProgress
from cove.wire import operations
from cove.wire.target import Target

Progress = Callable[[TransferProgress], object] | None
_MODE = 0o644


class Image(Handle, api.AsyncImage, target=Target.IMAGE):
    """Holds nothing but its name."""

    def __init__(self, calls: Calls, facts: ImageInfo) -> None:
        self.name = self.id = facts.name
        super().__init__(Calls(calls.transport))

    async def save(self, path: str | PathLike[str], *, progress: Progress = None) -> None:
        local = os.fspath(path)
        with translated(local):
            async with aclosing(self._calls.content(operations.SAVE_IMAGE, self.name, request=None)) as chunks:
                first = await anext(chunks, b"")
                file, temporary = await finished(make_local, local)
                try:
                    await finished(write_at, file, first, 0)
                    await self._write_rest(chunks, file, len(first), progress)
                    await finished(os.fchmod, file, _MODE)
                    await finished(os.rename, temporary, local)
                except BaseException:
                    await finished(os.unlink, temporary)
                    raise
                finally:
                    os.close(file)

    async def _write_rest(self, chunks: AsyncGenerator[bytes, None], file: int, size: int, progress: Progress) -> None:
        async for chunk in chunks:
            await finished(write_at, file, chunk, size)
            size += len(chunk)
            _tell(progress, size)


async def made_image(
    calls: Calls,
    events: AsyncGenerator[TransferProgress | BuildEvent | ImageMade, None],
    progress: Callable[[Any], object] | None,  # of the events that there are
) -> Image:
    """Follow the making of an image; `progress` hears of it."""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, ImageMade):
                return Image.of(calls, event.image)
            if progress is not None:
                progress(event)
    raise ConnectionLost("the server has ended before the image was made")


@asynccontextmanager
async def opened_source(path: str, progress: Progress) -> AsyncGenerator[AsyncGenerator[bytes, None], None]:
    """Give an archive at a path of this program's, or a directory as one, in pieces."""
    if await finished(os.path.isdir, path):
        async with aclosing(_counted(read_tree(path), progress)) as chunks:
            yield chunks
        return
    with translated(path):
        file = await finished(open_local, path)
    try:
        async with aclosing(_counted(read_descriptor(file), progress)) as chunks:
            yield chunks
    finally:
        os.close(file)


async def _counted(chunks: AsyncGenerator[bytes, None], progress: Progress) -> AsyncGenerator[bytes, None]:
    sent = 0
    async with aclosing(chunks):
        async for chunk in chunks:
            yield chunk
            sent += len(chunk)
            _tell(progress, sent)


def _tell(progress: Progress, sent: int) -> None:
    if progress is not None:
        progress(TransferProgress(layers=0, total_layers=0, bytes=sent))
