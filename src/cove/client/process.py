"""Client of a supervised process."""

from contextlib import suppress
from datetime import datetime, timedelta
from typing import Self

from cove import api
from cove.client.handle import Handle
from cove.errors import ProcessNotFound
from cove.model import ExecResult, ProcessExit
from cove.wire import operations, requests
from cove.wire.target import Target


class Process(Handle, api.Process, target=Target.PROCESS):
    """A process on a server. Its attributes are as of the last answer about it."""

    async def refresh(self) -> Self:
        self._take(await self._calls.facts(operations.GET_PROCESS, self.id))
        return self

    async def wait(self, timeout: float | None = None) -> ProcessExit:
        request = requests.Wait.of(timeout=timeout)
        end = await self._calls.call(operations.WAIT_PROCESS, self.id, request=request)
        await self._take_end(end, end.ended_at)
        return end

    async def output(self, timeout: float | None = None) -> ExecResult:
        request = requests.Wait.of(timeout=timeout)
        result = await self._calls.call(operations.PROCESS_OUTPUT, self.id, request=request)
        await self._take_end(result, result.started_at + timedelta(seconds=result.duration))
        return result

    async def discard(self) -> None:
        await self.kill("KILL")
        await self._calls.call(operations.WAIT_PROCESS, self.id, request=requests.Wait())

    async def _take_end(self, end: ProcessExit | ExecResult, ended_at: datetime | None) -> None:
        """Know of the end that was waited for, without asking for it."""
        if ended_at is None:
            with suppress(ProcessNotFound):  # one that is not kept may be forgotten by then
                await self.refresh()
            return
        self.ended_at = ended_at
        self.status = ProcessExit(outcome=end.outcome, exit_code=end.exit_code).status
        self.outcome, self.exit_code, self.signal = end.outcome, end.exit_code, end.signal
