"""Client of a code context."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

from cove import api
from cove.client.calls import Calls
from cove.core.command import check_timeout
from cove.errors import ContextNotFound
from cove.model import CodeEvent, Execution
from cove.wire import operations, requests
from cove.wire.replies import CodeContextReply


class CodeContext(api.CodeContext):
    """Holds nothing but its id."""

    def __init__(self, calls: Calls, reply: CodeContextReply) -> None:
        self._calls = calls
        self.id = reply.id
        self.language = reply.language

    async def run(self, code: str, *, timeout: float | None = None) -> Execution:
        request = requests.RunInContext(code=code, timeout=check_timeout(timeout))
        return await self._calls.get(operations.RUN_IN_CONTEXT, Execution, self.id, request=request)

    async def stream(self, code: str, *, timeout: float | None = None) -> AsyncGenerator[CodeEvent, None]:
        request = requests.RunInContext(code=code, timeout=check_timeout(timeout))
        async with aclosing(self._calls.events(operations.STREAM_IN_CONTEXT, self.id, request=request)) as events:
            async for event in events:
                yield cast(CodeEvent, event)

    async def interrupt(self) -> None:
        await self._calls.do(operations.INTERRUPT_CONTEXT, self.id)

    async def delete(self) -> None:
        try:
            await self._calls.do(operations.DELETE_CONTEXT, self.id)
        except ContextNotFound:
            return  # deleted before
