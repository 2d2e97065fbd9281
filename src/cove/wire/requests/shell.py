"""Requests for sessions and terminals."""

from cove.wire.requests.request import Command, Environment, Request, Seconds


class CreateSession(Request, frozen=True):
    """`timeout` is the default for its commands."""

    id: str | None = None
    cwd: str | None = None
    env: Environment | None = None
    timeout: Seconds = None
    user: str | None = None


class OpenTerminal(Request, frozen=True):
    """Get or create."""

    id: str | None = None
    shell: Command | None = None
    cwd: str | None = None
    env: Environment | None = None
    cols: int = 80
    rows: int = 24
    user: str | None = None

    @property
    def makes_new(self) -> bool:
        return self.id is None


class Resize(Request, frozen=True):
    """1 to 1000 each way."""

    cols: int
    rows: int


class Connect(Request, frozen=True):
    """The cursor of a viewer: what it has seen already."""

    since: str | None = None
    lossless: bool = False
