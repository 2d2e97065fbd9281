"""What is done to a running system, and which failures of calls are allowed because of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from cove.errors import (
    ConnectionLost,
    ContextCrashed,
    ContextNotFound,
    CoveError,
    InterpreterNotReady,
    NothingStarted,
    ProcessExitedBeforeReady,
    ProcessNotFound,
    SandboxStopped,
    SandboxUnavailable,
    ServiceNotResponding,
    SessionNotFound,
    SessionTerminated,
    SpawnFailed,
    TerminalNotFound,
)

_LONGEST_CALL: Final = 300.0
AFTERMATH: Final = 2.0  # seconds after the end of a fault in which a call may still meet it


class Fault(StrEnum):
    """What can happen to a sandbox or to a server."""

    EVERYTHING_INSIDE_KILLED = "everything inside killed"
    AGENT_KILLED = "agent killed"
    RUNTIME_KILLED = "runtime killed"
    RESTARTED = "restarted"
    STOPPED = "stopped because it was idle"
    STOPPED_BY_CALL = "stopped by a call"
    EGRESS_KILLED = "egress process killed"
    RCLONE_KILLED = "rclone killed"
    ATTACH_KILLED = "attach helper killed"
    WORKER_KILLED = "gateway worker killed"
    ZYGOTE_KILLED = "zygote killed"
    SERVER_KILLED = "server killed"
    NODE_KILLED = "node killed"


_GONE = (SessionNotFound, ProcessNotFound, TerminalNotFound, ContextNotFound)
_ENDED = (SessionTerminated, ContextCrashed, ServiceNotResponding, ProcessExitedBeforeReady)
_LOST = (SandboxUnavailable, SpawnFailed, InterpreterNotReady, ConnectionLost, *_ENDED, *_GONE)

ALLOWED: Final[Mapping[Fault, tuple[type[CoveError], ...]]] = {
    Fault.EVERYTHING_INSIDE_KILLED: (SpawnFailed, InterpreterNotReady, *_ENDED),
    Fault.AGENT_KILLED: _LOST,
    Fault.RUNTIME_KILLED: _LOST,
    Fault.RESTARTED: _LOST,
    Fault.STOPPED: _GONE,
    Fault.STOPPED_BY_CALL: (SandboxStopped, *_LOST),
    Fault.EGRESS_KILLED: (SandboxUnavailable,),
    Fault.RCLONE_KILLED: (SandboxUnavailable,),
    Fault.ATTACH_KILLED: (SandboxUnavailable,),
    Fault.WORKER_KILLED: (ConnectionLost, ServiceNotResponding, SandboxUnavailable),
    Fault.ZYGOTE_KILLED: (NothingStarted,),
    Fault.SERVER_KILLED: (ConnectionLost, ServiceNotResponding, NothingStarted),
    Fault.NODE_KILLED: (ConnectionLost, ServiceNotResponding, NothingStarted),
}

# Faults that end what runs: its exit record may say that it was lost.
LOSING: Final = frozenset(
    (
        *(Fault.EVERYTHING_INSIDE_KILLED, Fault.AGENT_KILLED, Fault.RUNTIME_KILLED, Fault.RESTARTED),
        *(Fault.STOPPED, Fault.STOPPED_BY_CALL),
    )
)


@dataclass
class Strike:
    """One fault: when, and for whom."""

    fault: Fault
    place: str | None
    began: float
    ended: float | None = None


@dataclass
class Weather:
    """The faults so far. `place` is the sandbox that a fault is for; None is for all of them."""

    count: int = 0
    _strikes: list[Strike] = field(default_factory=list)

    def begin(self, fault: Fault, place: str | None, now: float) -> Strike:
        """From here on it has its effects. Those that no call can have met are forgotten."""
        self.count += 1
        self._strikes = [each for each in self._strikes if each.ended is None or each.ended + _LONGEST_CALL > now]
        self._strikes.append(Strike(fault, place, now))
        return self._strikes[-1]

    def during(self, place: str, began: float) -> list[Fault]:
        """The faults that a call in this sandbox, begun then and ended now, may have met."""
        return [
            strike.fault
            for strike in self._strikes
            if strike.place in (place, None) and (strike.ended is None or strike.ended + AFTERMATH > began)
        ]

    def permits(self, error: CoveError, place: str, began: float) -> bool:
        """Whether a call that began then and ended now may fail in this way."""
        return any(isinstance(error, ALLOWED[fault]) for fault in self.during(place, began))

    def permits_loss(self, place: str, began: float) -> bool:
        """Whether what ran in that time may have been lost."""
        return any(fault in LOSING for fault in self.during(place, began))
