"""Client of a code context."""

from contextlib import suppress

from cove import api
from cove.client.handle import Handle
from cove.errors import ContextNotFound
from cove.wire import operations
from cove.wire.target import Target


class CodeContext(Handle, api.CodeContext, target=Target.CONTEXT):
    """Holds nothing but its id."""

    async def delete(self) -> None:
        with suppress(ContextNotFound):  # deleted before
            await self._calls.call(operations.DELETE_CONTEXT, self.id)

    async def discard(self) -> None:
        await self.delete()
