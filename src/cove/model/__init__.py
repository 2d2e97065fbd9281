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
from cove.model.file import (
    Changes,
    ChangesStatus,
    FileEvent,
    FileEventKind,
    FileInfo,
    FileKind,
    GitClone,
    SearchMatch,
)
from cove.model.info import SandboxInfo, SandboxStatus, SessionInfo, SessionStatus, TerminalInfo, TreeKill, Usage
from cove.model.outcome import Outcome, ProcessExit, ProcessStatus
from cove.model.port import ExposedPort
from cove.model.result import ExecResult
from cove.model.spec import Isolation, Limits, Mount, Network, SandboxSpec, SpecFields, make_spec

__all__ = [
    "Changes",
    "ChangesStatus",
    "CodeContextInfo",
    "CodeError",
    "CodeEvent",
    "Display",
    "Done",
    "ExecResult",
    "Execution",
    "Exit",
    "ExposedPort",
    "Failure",
    "FileEvent",
    "FileEventKind",
    "FileInfo",
    "FileKind",
    "Gap",
    "GitClone",
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
    "Result",
    "SandboxInfo",
    "SandboxSpec",
    "SandboxStatus",
    "SearchMatch",
    "SessionInfo",
    "SessionStatus",
    "SpecFields",
    "TerminalEvent",
    "TerminalInfo",
    "Text",
    "TreeKill",
    "Usage",
    "make_spec",
]
