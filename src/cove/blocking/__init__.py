"""The same API without asyncio."""

from cove.blocking.facade import Process, Sandbox, Session, Terminal, TerminalConnection

__all__ = ["Process", "Sandbox", "Session", "Terminal", "TerminalConnection"]
