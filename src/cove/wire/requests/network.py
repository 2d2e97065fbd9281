"""Requests for the network of a sandbox and its ports."""

from cove.model import Network, NetworkPolicy
from cove.wire.requests.request import Request


class SetNetwork(Request, frozen=True):
    """A mode, or a policy."""

    network: Network | NetworkPolicy


class NetworkLog(Request, frozen=True):
    """From which cursor on; with `follow`, what comes later too."""

    since: str | None = None
    follow: bool = False


class ConnectPort(Request, frozen=True):
    """With a token: only while the port is exposed with it."""

    token: str | None = None


class ExposePort(Request, frozen=True):
    """Without a token one is made."""

    port: int
    name: str | None = None
    token: str | None = None
