"""Values that travel between caller, runtime and server; no behaviour."""

from cove.model.code import (
    CodeContextInfo,
    CodeError,
    CodeEvent,
    Display,
    Done,
    Execution,
    Failure,
    Result,
    Text,
)
from cove.model.event import Exit, Gap, LogEvent, LogMatch, Output, Ready, TerminalEvent
from cove.model.info import SandboxInfo, SandboxStatus, SessionInfo, SessionStatus, TerminalInfo, TreeKill, Usage
from cove.model.outcome import Outcome, ProcessExit, ProcessStatus
from cove.model.result import ExecResult
from cove.model.spec import Isolation, Limits, Mount, Network, SandboxSpec, SpecFields, make_spec

__all__ = [
    "Text",
    "Result",
    "Failure",
    "Execution",
    "Done",
    "Display",
    "CodeEvent",
    "CodeError",
    "CodeContextInfo",
    "ExecResult",
    "Exit",
    "Gap",
    "Isolation",
    "Limits",
    "LogEvent",
    "LogMatch",
    "Mount",
    "Network",
    "Outcome",
    "Output",
    "ProcessExit",
    "ProcessStatus",
    "Ready",
    "SandboxInfo",
    "SandboxSpec",
    "SandboxStatus",
    "SessionInfo",
    "SessionStatus",
    "SpecFields",
    "TerminalEvent",
    "TerminalInfo",
    "TreeKill",
    "Usage",
    "make_spec",
]
