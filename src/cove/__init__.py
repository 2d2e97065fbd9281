"""Cove: a Linux computer that an AI agent, or any program, can use safely."""

import atexit

from cove.api import AsyncSandbox
from cove.api.provider import register_embedded
from cove.blocking import Sandbox
from cove.errors import *  # noqa: F403  # every error class is public
from cove.errors import __all__ as _errors
from cove.model import (
    ExecResult,
    Exit,
    Gap,
    Isolation,
    Limits,
    LogEvent,
    LogMatch,
    Mount,
    Network,
    Outcome,
    Output,
    ProcessExit,
    ProcessStatus,
    SandboxInfo,
    SandboxSpec,
    SandboxStatus,
    TreeKill,
)
from cove.runtime.embedded import Embedded

__version__ = "0.1.0"

__all__ = [
    *_errors,
    "AsyncSandbox",
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
    "Sandbox",
    "SandboxInfo",
    "SandboxSpec",
    "SandboxStatus",
    "TreeKill",
    "__version__",
]

_embedded = Embedded()
register_embedded(_embedded)
atexit.register(_embedded.abandon)
