"""An image, in the caller's own program."""

import builtins
from pathlib import Path

from cove import api
from cove.images.pull import pull
from cove.images.record import ImageRecord
from cove.images.store import ImageStore
from cove.local.threads import in_thread
from cove.model import ImageInfo
from cove.runtime.state import in_transfer


class Image(api.AsyncImage):
    """Holds nothing but its name."""

    def __init__(self, store: ImageStore, name: str) -> None:
        self._store = store
        self.name = name

    async def info(self) -> ImageInfo:
        return describe(await in_thread(self._store.find, self.name))

    async def delete(self) -> None:
        await in_thread(self._store.delete, self.name)


async def load_image(store: ImageStore, path: str, name: str | None) -> Image:
    """Load an image; a cancelled call ends between two layers, and leaves none that nothing needs."""
    record = await in_transfer(lambda check: store.load(Path(path), name, lambda *_: check()))
    return Image(store, record.name)


async def pull_image(store: ImageStore, reference: str) -> Image:
    """Pull an image; a cancelled call keeps the bytes that it has for the next."""
    record = await in_transfer(lambda check: pull(store, reference, lambda *_: check()))
    return Image(store, record.name)


async def list_images(store: ImageStore) -> builtins.list[ImageInfo]:
    """Describe all images."""
    return [describe(record) for record in await in_thread(store.list)]


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
    )
