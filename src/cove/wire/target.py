"""Targets: whose method an operation is."""

from enum import Enum

from cove import api
from cove.api.provider import Provider


class Target(Enum):
    """A class of `cove.api`, how many ids in a path name one of its kind, and its heading in documents."""

    SERVER = (Provider, 0, "server")
    SANDBOX = (api.AsyncSandbox, 0, "sandbox")
    SNAPSHOT = (api.AsyncSnapshot, 1, "snapshots")
    PROCESS = (api.Process, 1, "processes")
    SESSION = (api.Session, 1, "sessions")
    TERMINAL = (api.Terminal, 1, "terminals")
    CONTEXT = (api.CodeContext, 1, "code")
    FILES = (api.Files, 0, "files")
    GIT = (api.Git, 0, "git")
    PORTS = (api.Ports, 0, "ports")
    BACKUPS = (api.Backups, 0, "backups")
    MOUNTS = (api.Mounts, 0, "mounts")
    VOLUME = (api.AsyncVolume, 1, "volumes")
    IMAGE = (api.AsyncImage, 1, "images")

    def __init__(self, kind: type, ids: int, heading: str) -> None:
        self.kind = kind
        self.ids = ids
        self.heading = heading
