"""The same API without asyncio."""

from cove.blocking.facade import Process, Sandbox

__all__ = ["Process", "Sandbox"]
