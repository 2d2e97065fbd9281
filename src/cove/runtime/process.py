"""A supervised process with a log: the result of `start_process`."""

import asyncio
import re
import signal as signals
import time
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Literal, Self

import msgspec

from cove import api
from cove.core.capture import Capture
from cove.core.command import DEFAULT_MAX_OUTPUT, check_input, check_timeout, parse_signal
from cove.core.output_log import STREAMS
from cove.core.readiness import make_target
from cove.errors import ProcessWaitTimeout, ValidationFailed
from cove.local.pipe import Stdin, refuse_ended
from cove.model import ExecResult, Gap, LogEvent, LogMatch, Outcome, Output, ProcessExit, ProcessStatus
from cove.runtime.gate import Gate, gated
from cove.runtime.link import Link
from cove.runtime.log import Log
from cove.runtime.readiness import wait_for_log, wait_for_port
from cove.runtime.supervised import Supervised
from cove.runtime.tracing import traced

# How long a process may outlive the last reader of its standard input, when that was itself.
_REPORT_SECONDS = 0.5


@traced("process", api.Process)
@gated(starts=False, streams=("logs",), free=("refresh",))
class Process(api.Process):
    """A live view: the attributes are always up to date."""

    def __init__(
        self, id: str, command: str | Sequence[str], *, link: Link, stdin: Stdin | None, session_id: str | None
    ) -> None:
        self.id = id
        self.command = command
        self.session_id = session_id
        self.pid = 0
        self.status = ProcessStatus.STARTING
        self.started_at = datetime.now(UTC)
        self.ended_at = None
        self.outcome = None
        self.exit_code = None
        self.signal = None
        self.began = time.perf_counter()
        self._duration = 0.0
        self._link = link
        self._stdin = stdin
        self.log: Log
        self.supervised: Supervised

    @property
    def gate(self) -> Gate:
        """The gate of its sandbox."""
        return self._link.gate

    def expect(self, supervised: Supervised) -> None:
        """Attach to the process that is about to be started."""
        self.supervised = supervised

    def attach(self) -> None:
        """Attach to the process that has started."""
        self.pid = self.supervised.pid
        self.status = ProcessStatus.RUNNING
        self.supervised.ended.add_done_callback(self._on_end)

    def hold_output(self) -> None:
        """Let the process wait on its full pipe."""
        self.supervised.output.pause()

    def release_output(self) -> None:
        """Take its output again."""
        self.supervised.output.resume()

    @property
    def is_attached(self) -> bool:
        """Return whether it has been spawned, so that it has a pid and a log."""
        return self.status is not ProcessStatus.STARTING

    async def refresh(self) -> Self:
        return self

    async def kill(self, signal: int | str = "TERM") -> None:
        number = parse_signal(signal)
        self.supervised.signal(number)
        if number == signals.SIGKILL:
            await asyncio.wait([self.supervised.ended])

    async def terminate(self, grace: float = 5.0) -> None:
        seconds = check_timeout(grace)
        if seconds is None:
            raise ValidationFailed("grace must be a number of seconds")
        self.supervised.end(Outcome.KILLED, seconds)
        await asyncio.wait([self.supervised.ended])

    async def wait(self, timeout: float | None = None) -> ProcessExit:
        with self.log.reading():
            await asyncio.wait([self.supervised.ended], timeout=check_timeout(timeout))
        if not self.supervised.ended.done():
            raise ProcessWaitTimeout(f"process {self.id} still runs after {timeout} s", id=self.id)
        return msgspec.structs.replace(self.supervised.ended.result(), ended_at=self.ended_at)

    async def output(self, timeout: float | None = None) -> ExecResult:
        captures = {name: Capture(DEFAULT_MAX_OUTPUT) for name in STREAMS}
        has_gap = False
        with self.log.reading():
            self.log.stop_waiting()
            end = await self.wait(timeout)
            async for event in self.logs():
                if isinstance(event, Output):
                    captures[event.stream].append(event.data)
                elif isinstance(event, Gap):
                    has_gap = True
        return ExecResult(
            command=self.command,
            outcome=end.outcome,
            exit_code=end.exit_code,
            signal=end.signal,
            stdout_bytes=captures["stdout"].getvalue(),
            stderr_bytes=captures["stderr"].getvalue(),
            truncated=has_gap or any(capture.truncated for capture in captures.values()),
            started_at=self.started_at,
            duration=self._duration,
            session_id=self.session_id,
        )

    def logs(
        self, *, since: str | None = None, follow: bool = True, lossless: bool = False
    ) -> AsyncGenerator[LogEvent, None]:
        return self.log.read(since, follow, lossless)

    async def wait_for_log(self, pattern: str | re.Pattern[str], *, timeout: float | None = None) -> LogMatch:
        with self.log.reading():
            return await wait_for_log(self, pattern, check_timeout(timeout))

    async def wait_for_port(
        self,
        port: int,
        *,
        mode: Literal["http", "tcp"] = "http",
        path: str = "/",
        status: tuple[int, int] = (200, 399),
        timeout: float | None = None,
    ) -> None:
        target = make_target(port, mode, path, status)
        with self.log.reading():
            await wait_for_port(self, self.supervised.ended, self._link, target, check_timeout(timeout))

    async def write_stdin(self, data: bytes | str) -> None:
        checked = check_input(data)
        stdin = self._open_stdin()
        try:
            await stdin.write(checked)
        except ValidationFailed:
            if stdin.is_closed or not await self._has_ended_by_now():
                raise
            raise refuse_ended(f"process {self.id}", self.supervised.ended.result()) from None

    async def close_stdin(self) -> None:
        self._open_stdin().close()

    async def _has_ended_by_now(self) -> bool:
        """A process that reads no more has most likely ended: then its launcher is about to say so."""
        await self.supervised.clock.wait([self.supervised.ended], _REPORT_SECONDS)
        return self.supervised.ended.done()

    def _open_stdin(self) -> Stdin:
        if self._stdin is None:
            raise ValidationFailed(f"process {self.id} was started without stdin=True")
        return self._stdin

    def _on_end(self, ended: "asyncio.Future[ProcessExit]") -> None:
        end = ended.result()
        self.ended_at = datetime.now(UTC)
        self._duration = time.perf_counter() - self.began
        self.status = end.status
        self.outcome, self.exit_code, self.signal = end.outcome, end.exit_code, end.signal
        if self._stdin is not None:
            self._stdin.close(partial(refuse_ended, f"process {self.id}", end))
        self.log.finish(end)
