"""The blocking (synchronous) API."""

from cove.blocking.facade import (
    CodeContext,
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
