"""Requests for backups."""

from cove.wire.requests.request import Request


class CreateBackup(Request, frozen=True):
    """Without `ttl` it never expires."""

    dir: str
    name: str | None = None
    ttl: float | None = None
    gitignore: bool = False


class RestoreBackup(Request, frozen=True):
    """Without `dir` it is restored where it was saved."""

    dir: str | None = None
