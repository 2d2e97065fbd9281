"""An image, in the caller's own program."""

import builtins
import os
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import AbstractContextManager, ExitStack, aclosing, asynccontextmanager
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from cove import api
from cove.errors import CoveError
from cove.images.build_cache import BuildCache
from cove.images.pull import blobs_of, pull
from cove.images.record import ImageRecord
from cove.images.registry import Connect
from cove.images.store import ImageStore
from cove.images.transfer import new_file, save_to, save_to_file
from cove.local.files import translated
from cove.local.threads import finished, in_thread, in_transfer
from cove.model import ImageInfo, TransferProgress
from cove.runtime.snapshot_transfer import Progress, relayed
from cove.runtime.tracing import traced

_CHUNK_BYTES = 1 << 20


@traced("image", api.AsyncImage)
class Image(api.AsyncImage):
    """Holds its name, and the facts that were known when it was made."""

    def __init__(self, store: ImageStore, facts: ImageInfo) -> None:
        self._store = store
        self.name = facts.name
        self.facts = facts

    async def info(self) -> ImageInfo:
        return describe(await in_thread(self._store.find, self.name))

    async def save(self, path: str | PathLike[str], *, progress: Progress = None) -> None:
        record = await in_thread(self._store.find, self.name)
        told = _counting(relayed(progress), len(record.layers))
        with translated(os.fspath(path)):
            await in_transfer(lambda check: save_to(self._store, self.name, Path(path), told(check)))

    async def read_archive(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(read_archive(self._store, self.name)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def delete(self, *, force: bool = False) -> None:
        await in_thread(self._store.delete, self.name, force=force)


async def load_image(store: ImageStore, path: str, name: str | None, progress: Progress = None) -> Image:
    """Load an image; a cancelled call ends within a layer, and leaves none that nothing needs."""
    tell = _telling(relayed(progress))
    record = await in_transfer(lambda check: store.load(Path(path), name, tell(check), check))
    return Image(store, describe(record))


@asynccontextmanager
async def received(
    store: ImageStore, chunks: AsyncIterable[bytes], most: int, refusal: CoveError
) -> AsyncGenerator[BinaryIO, None]:
    """Hold all that comes in pieces in a file without a name. More than so many bytes raise the refusal."""
    with new_file(store) as file:
        async for chunk in chunks:
            most -= len(chunk)
            if most < 0:
                raise refusal
            await finished(file.write, chunk)
        await finished(file.flush)
        yield file


async def load_file(store: ImageStore, file: BinaryIO, name: str | None, progress: Progress = None) -> ImageInfo:
    """Load an archive that is open."""
    tell = _telling(relayed(progress))
    return describe(await in_transfer(lambda check: store.load_archive(file, name, tell(check), check)))


async def pull_image(
    store: ImageStore, reference: str, progress: Progress = None, connect: Connect | None = None
) -> ImageInfo:
    """Pull an image; a cancelled call keeps the bytes that it has for the next."""
    tell = _telling(relayed(progress))
    return describe(await in_transfer(lambda check: pull(store, reference, tell(check), connect, check)))


async def read_archive(
    store: ImageStore, name: str, job: AbstractContextManager[object] | None = None
) -> AsyncGenerator[bytes, None]:
    """Give a saved image, in pieces; nothing of it is left when the reader leaves. It is saved within the `job`."""
    with ExitStack() as held:
        if job is not None:
            await finished(held.enter_context, job)
        descriptor = await in_transfer(lambda check: save_to_file(store, name, lambda *_: check()), discard=os.close)
    try:
        while data := await finished(os.read, descriptor, _CHUNK_BYTES):
            yield data
    finally:
        os.close(descriptor)


def prune_images(store: ImageStore, *, all: bool = False) -> builtins.list[str]:
    """Remove what has no name, and with `all` images that nothing stands on; returns the names of those. Blocks."""
    gone = store.forget_unused() if all else []
    blobs_of(store).collect()
    BuildCache(store.path, store.layers).clear()
    return gone


async def list_images(store: ImageStore) -> builtins.list[ImageInfo]:
    """Describe all images."""
    return [describe(record) for record in await in_thread(store.list)]


def _telling(
    tell: Callable[[TransferProgress], object],
) -> Callable[[Callable[[], None]], Callable[[TransferProgress], None]]:
    """Return a function that makes the store's progress of a check."""

    def make(check: Callable[[], None]) -> Callable[[TransferProgress], None]:
        def progress(told: TransferProgress) -> None:
            check()
            tell(told)

        return progress

    return make


def _counting(
    tell: Callable[[TransferProgress], object], total: int
) -> Callable[[Callable[[], None]], Callable[[int, int], None]]:
    def make(check: Callable[[], None]) -> Callable[[int, int], None]:
        def progress(layers: int, size: int) -> None:
            check()
            tell(TransferProgress(layers=layers, total_layers=total, bytes=size))

        return progress

    return make


def describe(record: ImageRecord) -> ImageInfo:
    """Describe an image for a caller."""
    settings = record.config.settings
    return ImageInfo(
        name=record.name,
        id=record.id,
        created_at=record.created_at,
        size=record.size,
        layers=len(record.layers),
        architecture=record.config.architecture,
        env=tuple(settings.Env or ()),
        workdir=settings.WorkingDir,
        user=settings.User,
        entrypoint=tuple(settings.Entrypoint or ()),
        command=tuple(settings.Cmd or ()),
        labels=settings.Labels or {},
        owner=record.tenant or None,
    )
