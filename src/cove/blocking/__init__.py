"""The blocking (synchronous) API."""

from cove.blocking.facade import (
    CodeContext,
    Process,
    Sandbox,
    Session,
    Snapshot,
    Terminal,
    TerminalConnection,
    Transaction,
    Volume,
)

__all__ = [
    "CodeContext",
    "Process",
    "Sandbox",
    "Session",
    "Snapshot",
    "Terminal",
    "TerminalConnection",
    "Transaction",
    "Volume",
]
