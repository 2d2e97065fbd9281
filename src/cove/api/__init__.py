"""The public interfaces, asynchronous: read this package first."""

from cove.api.api_key import AsyncApiKey
from cove.api.backups import Backups
from cove.api.code import CodeContext
from cove.api.files import Files
from cove.api.fleet import AsyncFleet
from cove.api.git import Git
from cove.api.image import AsyncImage
from cove.api.mounts import Mounts
from cove.api.ports import Ports, TcpConnection
from cove.api.process import Process
from cove.api.provider import AwaitableContext, Destroyable
from cove.api.sandbox import AsyncSandbox
from cove.api.secrets import define_secret
from cove.api.session import Session
from cove.api.snapshot import AsyncSnapshot
from cove.api.terminal import Terminal, TerminalConnection
from cove.api.transaction import AsyncTransaction
from cove.api.volume import AsyncVolume

__all__ = [
    "AsyncApiKey",
    "AsyncFleet",
    "AsyncImage",
    "AsyncSandbox",
    "AsyncSnapshot",
    "AsyncTransaction",
    "Backups",
    "AsyncVolume",
    "CodeContext",
    "Destroyable",
    "Files",
    "Git",
    "AwaitableContext",
    "Mounts",
    "Ports",
    "Process",
    "Session",
    "TcpConnection",
    "Terminal",
    "define_secret",
    "TerminalConnection",
]
