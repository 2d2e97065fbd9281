"""What users hold in their hands: read this first."""

from cove.api.opening import Destroyable, Opening
from cove.api.process import Process
from cove.api.sandbox import AsyncSandbox
from cove.api.session import Session

__all__ = ["AsyncSandbox", "Destroyable", "Opening", "Process", "Session"]
