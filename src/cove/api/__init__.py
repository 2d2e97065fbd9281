"""The public interfaces, asynchronous: read this package first."""

from cove.api.backups import Backups
from cove.api.code import CodeContext
from cove.api.files import Files
from cove.api.git import Git
from cove.api.ports import Ports, TcpConnection
from cove.api.process import Process
from cove.api.provider import AwaitableContext, Destroyable
from cove.api.sandbox import AsyncSandbox
from cove.api.secrets import define_secret
from cove.api.session import Session
from cove.api.terminal import Terminal, TerminalConnection

__all__ = [
    "AsyncSandbox",
    "Backups",
    "CodeContext",
    "Destroyable",
    "Files",
    "Git",
    "AwaitableContext",
    "Ports",
    "Process",
    "Session",
    "TcpConnection",
    "Terminal",
    "define_secret",
    "TerminalConnection",
]
