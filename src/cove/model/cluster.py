"""The nodes of a cluster, and the claims on names in it."""

import msgspec


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One node: its name, where its API is, and the code that the ids made there end in.

    `slots` is the room that was granted to it: None for as much as its own configuration allows. A node that is
    `is_draining` gets no new sandboxes.
    """

    name: str
    address: str
    code: str
    version: str = ""
    slots: int | None = None
    is_draining: bool = False


class Members(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes as one of them knows them; `node` is the name of that one."""

    node: str
    members: tuple[Member, ...]

    @property
    def here(self) -> Member:
        """The node that knows this."""
        return next(member for member in self.members if member.name == self.node)


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The node that a chosen name belongs to; each claim of it has a higher epoch than the one before."""

    name: str
    node: str
    epoch: int
