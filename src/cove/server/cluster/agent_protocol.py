"""The protocol of workers and the command line with the agent of a cluster's engine: one call per connection.

A request and its answer are one line of JSON each. The socket is in the state directory, for this user only.
"""

from pathlib import Path

import msgspec

from cove.model.cluster import Claim, Member

MOST_BYTES = 1 << 20
# The agent ends so when this node has left the cluster: it is not started again.
LEFT = 64


def agent_socket(server: Path) -> Path:
    """Return the path of the socket, in the server's directory of the state directory."""
    return server / "agent.sock"


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an agent, passed as an argument: there is no secret in it, as others can read arguments."""

    home: str
    node: str
    port: int
    address: str | None = None
    engine_address: str = "auto"
    engine_version: str = ""
    engine_ip: str | None = None
    token_file: str = ""
    max_sandboxes: int | None = None
    block_slots: int = 16
    slot_cpus: float = 0.0
    slot_memory: int = 0
    idle_seconds: float = 60.0
    refresh_seconds: float = 1.0


class GrantRoom(msgspec.Struct, frozen=True, kw_only=True, tag="grant"):
    """Ask for room, for at most so many seconds."""

    slots: int
    timeout: float


class ReleaseRoom(msgspec.Struct, frozen=True, kw_only=True, tag="release"):
    """Give room back."""

    node: str
    slots: int


class ClaimName(msgspec.Struct, frozen=True, kw_only=True, tag="claim"):
    """Claim a name."""

    name: str
    node: str
    epoch: int | None = None


class FindName(msgspec.Struct, frozen=True, kw_only=True, tag="find"):
    """Ask who has a name."""

    name: str


class FreeName(msgspec.Struct, frozen=True, kw_only=True, tag="unclaim"):
    """Free a name."""

    claim: Claim


class Drain(msgspec.Struct, frozen=True, kw_only=True, tag="drain"):
    """Give a node no new sandboxes, or again."""

    node: str
    undo: bool = False


class Forget(msgspec.Struct, frozen=True, kw_only=True, tag="forget"):
    """Give up a node that is gone for good, or take it back."""

    node: str
    undo: bool = False


class Leave(msgspec.Struct, frozen=True, kw_only=True, tag="leave"):
    """Take this node out of the cluster."""


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """Ask for the state of the cluster."""


Call = GrantRoom | ReleaseRoom | ClaimName | FindName | FreeName | Drain | Forget | Leave | Report


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """One node, with the versions that it runs; `is_alive` is the engine's opinion."""

    member: Member
    is_alive: bool
    python: str
    engine: str


class AgentReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the cluster, and what is wrong with this node.

    `superseded` are the sandboxes here whose names others have taken. `forgotten` says why this node is no member.
    """

    node: str
    nodes: tuple[NodeReport, ...]
    sandboxes: int
    is_overcommitted: bool
    superseded: tuple[str, ...]
    forgotten: str | None
    engine_address: str = ""
    token_file: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to any call: one of its fields, or the code of an error and its message."""

    node: str | None = None
    claim: Claim | None = None
    count: int = 0
    report: AgentReport | None = None
    error: str | None = None
    message: str = ""
