"""Cove: a Linux computer that an AI agent, or any program, can use safely."""

from cove.api import AsyncSandbox
from cove.api.provider import register_embedded
from cove.errors import CoveError
from cove.model import ExecResult, Limits, Mount, Outcome, SandboxInfo, SandboxSpec
from cove.runtime.embedded import Embedded

__version__ = "0.1.0"

__all__ = ["AsyncSandbox", "CoveError", "ExecResult", "Limits", "Mount", "Outcome", "SandboxInfo", "SandboxSpec"]

register_embedded(Embedded())
