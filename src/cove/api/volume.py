"""Interface of a named volume: a directory that outlives sandboxes, and that several can use at once."""

import builtins
from abc import ABC, abstractmethod

from cove.api.named import Named
from cove.api.provider import provider_for
from cove.model import VolumeInfo


class AsyncVolume(Named, ABC):
    """A named volume. `VolumeMount(volume=name, target=...)` lets a sandbox use it."""

    name: str

    @classmethod
    async def create(
        cls, name: str, *, size: int | None = None, url: str | None = None, api_key: str | None = None
    ) -> "AsyncVolume":
        """Make a volume that holds at most `size` bytes. Raises VolumeAlreadyExists."""
        return await provider_for(url, api_key).create_volume(name, size=size)

    @classmethod
    async def get(cls, name: str, *, url: str | None = None, api_key: str | None = None) -> "AsyncVolume":
        """The volume with that name; raises VolumeNotFound."""
        return await provider_for(url, api_key).get_volume(name)

    @classmethod
    async def list(cls, *, url: str | None = None, api_key: str | None = None) -> builtins.list[VolumeInfo]:
        """The volumes of this user's state directory, or of the server."""
        return await provider_for(url, api_key).list_volumes()

    @abstractmethod
    async def info(self) -> VolumeInfo:
        """Describe the volume, and measure what it holds."""

    @abstractmethod
    async def delete(self) -> None:
        """Remove it with all that is in it. VolumeInUse while a sandbox, running or stopped, has it mounted."""
