"""Client of a volume."""

from contextlib import suppress

from cove import api
from cove.client.calls import Calls
from cove.client.handle import Handle
from cove.errors import VolumeNotFound
from cove.model import VolumeInfo
from cove.wire import operations
from cove.wire.target import Target


class Volume(Handle, api.AsyncVolume, target=Target.VOLUME):
    """Holds nothing but its name."""

    def __init__(self, calls: Calls, facts: VolumeInfo) -> None:
        self.name = self.id = facts.name
        super().__init__(calls)

    async def discard(self) -> None:
        with suppress(VolumeNotFound):
            await self._calls.call(operations.DELETE_VOLUME, self.name)
