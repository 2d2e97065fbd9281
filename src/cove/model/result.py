"""Outcomes, in one vocabulary for every surface, and the result of a finished command."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

import msgspec

from cove.errors import CommandFailed
from cove.model.network import NetworkDenial


class Outcome(StrEnum):
    """The reason why a process is no longer running; `stopped` when its sandbox was."""

    EXITED = "exited"
    SIGNALED = "signaled"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    KILLED = "killed"
    STOPPED = "stopped"
    LOST = "lost"


class ProcessStatus(StrEnum):
    """The status of a process in its life."""

    STARTING = "starting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    KILLED = "killed"
    ERROR = "error"


class ProcessExit(msgspec.Struct, frozen=True, kw_only=True):
    """The one record of how a process ended; `exit_code` is None only when the process was lost."""

    outcome: Outcome
    exit_code: int | None
    signal: int | None = None
    user_seconds: float | None = None
    system_seconds: float | None = None
    max_rss_bytes: int | None = None
    ended_at: datetime | None = None

    @property
    def is_infrastructure_failure(self) -> bool:
        """The sandbox failed, not the process: a trainer must not score this."""
        return self.outcome is Outcome.LOST

    @property
    def status(self) -> ProcessStatus:
        """The process status that goes with this end."""
        match self.outcome:
            case Outcome.EXITED:
                return ProcessStatus.COMPLETED if self.exit_code == 0 else ProcessStatus.FAILED
            case Outcome.LOST:
                return ProcessStatus.ERROR
            case _:
                return ProcessStatus.KILLED


class CommandEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a command, without what it printed."""

    command: str | Sequence[str]
    outcome: Outcome
    exit_code: int | None
    started_at: datetime
    duration: float
    truncated: bool = False
    signal: int | None = None
    session_id: str | None = None
    session_restarted: bool = False
    restored_command: str | None = None
    denied: tuple[NetworkDenial, ...] = ()


class ExecResult(CommandEnd, frozen=True, kw_only=True):
    """The end of a command and what it printed; bytes are exact, text is decoded with replacement.

    With `session_restarted` the session's shell had to be replaced; its state is as after `restored_command`
    (None: as the session was created). `denied` is what the network policy refused to the sandbox meanwhile.
    """

    stdout_bytes: bytes
    stderr_bytes: bytes

    @property
    def stdout(self) -> str:
        """Standard output as text."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error as text."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        """Exited with 0."""
        return self.outcome is Outcome.EXITED and self.exit_code == 0

    @property
    def timed_out(self) -> bool:
        """Ended because its time was up."""
        return self.outcome is Outcome.TIMED_OUT

    @property
    def is_infrastructure_failure(self) -> bool:
        """The sandbox failed, not the command: a trainer must not score this."""
        return self.outcome is Outcome.LOST

    def check(self) -> "ExecResult":
        """Return self if `ok`, raise CommandFailed otherwise."""
        if self.ok:
            return self
        command = self.command if isinstance(self.command, str) else " ".join(self.command)
        tail = self.stderr_bytes[-500:].decode("utf-8", "replace").strip()
        raise CommandFailed(
            f"{command[:200]!r} {self.outcome} with exit code {self.exit_code}" + (f": {tail}" if tail else ""),
            outcome=self.outcome,
            exit_code=self.exit_code,
        )
