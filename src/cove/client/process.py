"""Client of a supervised process."""

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from datetime import datetime, timedelta
from typing import Literal, Self, cast

from cove import api
from cove.client.calls import Calls
from cove.client.retry import Backoff
from cove.core.command import check_input, check_timeout
from cove.errors import ConnectionLost, ProcessNotFound, Unreachable, ValidationFailed
from cove.model import ExecResult, Exit, LogEvent, LogMatch, ProcessExit
from cove.wire import operations, requests
from cove.wire.replies import ExecReply, ProcessReply


class Process(api.Process):
    """A process on a server. Its attributes are as of the last `refresh`."""

    def __init__(self, calls: Calls, reply: ProcessReply) -> None:
        self._calls = calls
        self.id = reply.id
        self._take(reply)

    def _take(self, reply: ProcessReply) -> None:
        self.pid = reply.pid
        self.command: str | Sequence[str] = reply.command
        self.session_id = reply.session_id
        self.started_at = reply.started_at
        self.ended_at = reply.ended_at
        self.status = reply.status
        self.outcome = reply.outcome
        self.exit_code = reply.exit_code
        self.signal = reply.signal

    async def refresh(self) -> Self:
        self._take(await self._calls.get(operations.GET_PROCESS, ProcessReply, self.id))
        return self

    async def _take_end(self, end: ProcessExit | ExecResult, ended_at: datetime | None) -> None:
        """Know of the end that was waited for, without asking for it."""
        if ended_at is None:
            await self._refresh_if_there()
            return
        self.ended_at = ended_at
        self.status = ProcessExit(outcome=end.outcome, exit_code=end.exit_code).status
        self.outcome, self.exit_code, self.signal = end.outcome, end.exit_code, end.signal

    async def _refresh_if_there(self) -> None:
        """Know of the end that was waited for; a process that is not kept may be forgotten by then."""
        with suppress(ProcessNotFound):
            await self.refresh()

    async def kill(self, signal: int | str = "TERM") -> None:
        request = requests.Kill(signal=signal)
        self._take(await self._calls.get(operations.KILL_PROCESS, ProcessReply, self.id, request=request))

    async def terminate(self, grace: float = 5.0) -> None:
        seconds = check_timeout(grace)
        if seconds is None:
            raise ValidationFailed("grace must be a number of seconds")
        request = requests.Terminate(grace=seconds)
        self._take(await self._calls.get(operations.TERMINATE_PROCESS, ProcessReply, self.id, request=request))

    async def wait(self, timeout: float | None = None) -> ProcessExit:
        request = requests.Wait(timeout=check_timeout(timeout))
        end = await self._calls.get(operations.WAIT_PROCESS, ProcessExit, self.id, request=request)
        await self._take_end(end, end.ended_at)
        return end

    async def output(self, timeout: float | None = None) -> ExecResult:
        request = requests.Wait(timeout=check_timeout(timeout))
        result = (await self._calls.get(operations.PROCESS_OUTPUT, ExecReply, self.id, request=request)).result()
        await self._take_end(result, result.started_at + timedelta(seconds=result.duration))
        return result

    async def logs(
        self, *, since: str | None = None, follow: bool = True, lossless: bool = False
    ) -> AsyncGenerator[LogEvent, None]:
        """Follow the output; reconnect at the cursor where a connection broke."""
        backoff = Backoff()
        while True:
            request = requests.Logs(since=since, follow=follow, lossless=lossless)
            events = self._calls.events(operations.PROCESS_LOGS, self.id, request=request)
            try:
                async with aclosing(events):
                    async for item in events:
                        event = cast(LogEvent, item)
                        backoff.renew()
                        since = event.cursor
                        yield event
                        if isinstance(event, Exit):
                            return
                return
            except (ConnectionLost, Unreachable):
                await backoff.pause()

    async def wait_for_log(self, pattern: str | re.Pattern[str], *, timeout: float | None = None) -> LogMatch:
        request = requests.WaitForLog(
            pattern=pattern.pattern if isinstance(pattern, re.Pattern) else pattern,
            is_expression=isinstance(pattern, re.Pattern),
            flags=pattern.flags & ~re.UNICODE if isinstance(pattern, re.Pattern) else 0,
            timeout=check_timeout(timeout),
        )
        return await self._calls.get(operations.WAIT_FOR_LOG, LogMatch, self.id, request=request)

    async def wait_for_port(
        self,
        port: int,
        *,
        mode: Literal["http", "tcp"] = "http",
        path: str = "/",
        status: tuple[int, int] = (200, 399),
        timeout: float | None = None,
    ) -> None:
        seconds = check_timeout(timeout)
        request = requests.WaitForPort(port=port, mode=mode, path=path, status=status, timeout=seconds)
        await self._calls.do(operations.WAIT_FOR_PORT, self.id, request=request)

    async def write_stdin(self, data: bytes | str) -> None:
        await self._calls.upload(operations.WRITE_STDIN, self.id, request=None, content=check_input(data))

    async def close_stdin(self) -> None:
        await self._calls.do(operations.CLOSE_STDIN, self.id)


async def remove_process(calls: Calls, made: ProcessReply) -> None:
    """End a process that nobody will hear of."""
    await calls.do(operations.KILL_PROCESS, made.id, request=requests.Kill(signal="KILL"))
    await calls.do(operations.WAIT_PROCESS, made.id, request=requests.Wait())
