"""Operations of volumes, images and snapshots, which belong to no sandbox: the gateway answers them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from cove.images.store import ImageStore, open_images
from cove.layers.store import LayerStore
from cove.local.threads import in_thread
from cove.model import ImageInfo, VolumeInfo
from cove.runtime.image import describe
from cove.runtime.image import read_archive as read_image
from cove.runtime.snapshot_transfer import read_archive, snapshot_digest
from cove.runtime.volumes import Volumes
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.image_jobs import image_job


@dataclass(frozen=True, slots=True)
class VolumeAnswers:
    """The operations of one volume; the methods are those of `api.AsyncVolume`."""

    volumes: Volumes
    name: str

    async def info(self) -> VolumeInfo:
        """Describe it."""
        return await in_thread(self.volumes.get, self.name)

    async def delete(self) -> None:
        """Remove it with all that is in it."""
        await in_thread(self.volumes.delete, self.name)


@dataclass(frozen=True, slots=True)
class ImageAnswers:
    """The operations of one image; the methods are those of `api.AsyncImage`."""

    directory: Directory
    most_jobs: int
    name: str

    async def info(self) -> ImageInfo:
        """Describe it."""
        store = await open_images_of(self.directory)
        return describe(await in_thread(store.find, self.name))

    async def read_archive(self) -> AsyncGenerator[bytes, None]:
        """Give it as one archive."""
        store = await open_images_of(self.directory)
        async with aclosing(read_image(store, self.name, image_job(store, self.most_jobs))) as chunks:
            async for chunk in chunks:
                yield chunk

    async def delete(self, *, force: bool) -> None:
        """Forget it; layers that nothing else stands on go with it, which takes its time where they are large."""
        store = await open_images_of(self.directory)
        await asyncio.to_thread(store.delete, self.name, force=force)


async def open_images_of(directory: Directory) -> ImageStore:
    """Open the images of a state directory, as a tenant sees them."""
    return await in_thread(open_images, directory.home, LayerStore(directory.home, directory.tenant))


@dataclass(frozen=True, slots=True)
class SnapshotAnswers:
    """The operations of one snapshot; the methods are those of `api.AsyncSnapshot`."""

    layers: LayerStore
    id: str

    def read_archive(self) -> AsyncGenerator[bytes, None]:
        """Give its export as one file."""
        return read_archive(self.layers, self.id)

    async def digest(self) -> str:
        """Compute the digest of its files."""
        return await snapshot_digest(self.layers, self.id)

    async def delete(self) -> None:
        """Remove it; layers that nothing else stands on go with it, which takes its time where they are large."""
        await asyncio.to_thread(self.layers.delete, self.id)
