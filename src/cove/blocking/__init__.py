"""The same API without asyncio."""

from cove.blocking.facade import Process, Sandbox, Session

__all__ = ["Process", "Sandbox", "Session"]
