"""Outcomes: why a process ended, in one vocabulary for every surface."""

from datetime import datetime
from enum import StrEnum

import msgspec


class Outcome(StrEnum):
    """The reason why a process is no longer running."""

    EXITED = "exited"
    SIGNALED = "signaled"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    KILLED = "killed"
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
