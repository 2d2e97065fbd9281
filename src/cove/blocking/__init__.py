"""The blocking (synchronous) API."""

from cove.blocking.facade import (
    CodeContext,
    Fleet,
    Image,
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
    "Fleet",
    "Image",
    "Process",
    "Sandbox",
    "Session",
    "Snapshot",
    "Terminal",
    "TerminalConnection",
    "Transaction",
    "Volume",
]
