"""Interface of a supervised process."""

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import Literal, Self

from cove.api.named import Named
from cove.model import ExecResult, LogEvent, LogMatch, Outcome, ProcessExit, ProcessStatus


class Process(Named, ABC):
    """A process with an id, a log and an end. Its attributes are as of the last `refresh`."""

    id: str
    pid: int
    command: str | Sequence[str]
    session_id: str | None
    started_at: datetime
    ended_at: datetime | None
    status: ProcessStatus
    outcome: Outcome | None
    exit_code: int | None
    signal: int | None

    @abstractmethod
    async def refresh(self) -> Self:
        """Bring the attributes up to date; returns self."""

    @abstractmethod
    async def kill(self, signal: int | str = "TERM") -> None:
        """Signal the whole tree. KILL returns when nothing of it is left. For an ended process it is a no-op."""

    @abstractmethod
    async def terminate(self, grace: float = 5.0) -> None:
        """TERM, then KILL after `grace` seconds; returns when the whole tree is gone."""

    @abstractmethod
    async def wait(self, timeout: float | None = None) -> ProcessExit:
        """Wait for the end. After `timeout` seconds raises ProcessWaitTimeout; the process runs on."""

    @abstractmethod
    async def output(self, timeout: float | None = None) -> ExecResult:
        """Wait for the end and give what was printed, as `exec` would."""

    @abstractmethod
    def logs(
        self, *, since: str | None = None, follow: bool = True, lossless: bool = False
    ) -> AsyncGenerator[LogEvent, None]:
        """Follow the output after the cursor `since` (default: from the beginning), then Exit.

        Without `follow` it stops at what is there now. A reader that falls behind what is kept gets a Gap; with
        `lossless` the process waits for it instead. Leaving early frees everything at once.
        """

    @abstractmethod
    async def wait_for_log(self, pattern: str | re.Pattern[str], *, timeout: float | None = None) -> LogMatch:
        """Wait for the first line, already printed or to come, that contains the text or matches the expression.

        A text is also found in a line that has not ended yet; an expression sees whole lines only, of those beyond
        64 KiB the last part. With `timeout=0` only what is printed already is looked at.
        """

    @abstractmethod
    async def wait_for_port(
        self,
        port: int,
        *,
        mode: Literal["http", "tcp"] = "http",
        path: str = "/",
        status: tuple[int, int] = (200, 399),
        timeout: float | None = None,
    ) -> None:
        """Wait until something listens on that port inside the sandbox and, for http, answers in that status range."""

    @abstractmethod
    async def write_stdin(self, data: bytes | str) -> None:
        """Write to its standard input; needs `stdin=True` at the start."""

    @abstractmethod
    async def close_stdin(self) -> None:
        """End its standard input. Idempotent."""
