"""A named volume, in the caller's own program."""

from cove import api
from cove.local.threads import in_thread
from cove.model import VolumeInfo
from cove.runtime.tracing import traced
from cove.runtime.volumes import Volumes


@traced("volume", api.AsyncVolume)
class Volume(api.AsyncVolume):
    """Holds nothing but its name."""

    def __init__(self, volumes: Volumes, name: str) -> None:
        self._volumes = volumes
        self.name = name

    async def info(self) -> VolumeInfo:
        return await in_thread(self._volumes.get, self.name)

    async def delete(self) -> None:
        await in_thread(self._volumes.delete, self.name)
