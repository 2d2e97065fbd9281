"""Client of a session."""

from contextlib import suppress

from cove import api
from cove.client.calls import Calls
from cove.client.files import Files
from cove.client.handle import Handle
from cove.errors import SessionNotFound
from cove.wire import operations
from cove.wire.replies import SessionReply
from cove.wire.target import Target


class Session(Handle, api.Session, target=Target.SESSION):
    """Holds nothing but its id."""

    def __init__(self, calls: Calls, facts: SessionReply) -> None:
        super().__init__(calls, facts)
        self.files = Files.of(calls.of_session(self.id))

    async def delete(self) -> None:
        with suppress(SessionNotFound):  # deleted before
            await self._calls.call(operations.DELETE_SESSION, self.id)

    async def discard(self) -> None:
        await self.delete()
