"""Interface of an image: layers and configuration that a sandbox can have as its system."""

import builtins
from abc import ABC, abstractmethod

from cove.api.named import Named
from cove.api.provider import local_images
from cove.model import ImageInfo


class AsyncImage(Named, ABC):
    """An image in this user's state directory. `AsyncSandbox.create(image=name)` makes a sandbox on it.

    A server has the images of its own state directory: load them on its machine.
    """

    name: str

    @classmethod
    async def load(cls, path: str, *, name: str | None = None) -> "AsyncImage":
        """Load an archive of an image, or the tar archive of a root file system; one with the same name is replaced.

        Archives are those of `docker save` and of OCI tools, plain or compressed by gzip or zstd. A root file system
        needs a `name`. Raises ImageInvalid.
        """
        return await local_images().load_image(path, name=name)

    @classmethod
    async def pull(cls, reference: str) -> "AsyncImage":
        """Pull `HOST/NAME:TAG` from a registry, with the credentials of `~/.docker/config.json`.

        What an interrupted pull has fetched is used by the next. Raises ImageNotFound, ImageInvalid, Unauthorized.
        """
        return await local_images().pull_image(reference)

    @classmethod
    async def get(cls, name: str) -> "AsyncImage":
        """The image with that name; raises ImageNotFound."""
        return await local_images().get_image(name)

    @classmethod
    async def list(cls) -> builtins.list[ImageInfo]:
        """The images of this user's state directory."""
        return await local_images().list_images()

    @abstractmethod
    async def info(self) -> ImageInfo:
        """Describe the image."""

    @abstractmethod
    async def delete(self) -> None:
        """Forget the image. Its layers stay as long as a sandbox, a snapshot or another image stands on them."""
