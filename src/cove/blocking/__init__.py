"""The blocking (synchronous) API."""

from cove.blocking.facade import (
    ApiKey,
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
    "ApiKey",
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
