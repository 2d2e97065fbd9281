"""The records that agents share: members, grants on their way, nodes that drain or were forgotten."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from cove.core.identifier import new_identifier
from cove.model.cluster import Member
from cove.server.ray_agent.engine import Store

_MEMBER = "member/"
_GRANT = "grant/"
_DRAIN = "drain/"
_FORGOTTEN = "forgotten/"
_LIFE = "life"


class MemberRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One node as it registered itself: the machine of the engine, its blocks, and the versions that it runs."""

    member: Member
    node_id: str
    blocks: tuple[str, ...] = ()
    python: str = ""
    engine: str = ""


class GrantRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A block that the engine was asked for by one node, and that the node where it is has not taken over yet."""

    by: str
    slots: int
    node: str = ""
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class Registry:
    """Reads and writes the records."""

    store: Store

    def members(self) -> dict[str, MemberRecord]:
        """Return all nodes that registered themselves."""
        return {
            key.removeprefix(_MEMBER): msgspec.json.decode(value, type=MemberRecord)
            for key, value in self._all(_MEMBER)
        }

    def register(self, record: MemberRecord) -> None:
        """Write the record of a node."""
        self.store.put(_MEMBER + record.member.name, msgspec.json.encode(record))

    def unregister(self, node: str) -> None:
        """Remove the record of a node."""
        self.store.delete(_MEMBER + node)

    def life(self) -> str:
        """Return the id of these records: another one after the engine has lost all of them."""
        if not self.store.get_all([_LIFE]):
            self.store.put_new(_LIFE, new_identifier().encode())
        return self.store.get_all([_LIFE])[_LIFE].decode()

    def grants(self) -> dict[str, GrantRecord]:
        """Return the grants on their way, by the name of the block."""
        return {
            key.removeprefix(_GRANT): msgspec.json.decode(value, type=GrantRecord) for key, value in self._all(_GRANT)
        }

    def grant(self, block: str) -> GrantRecord | None:
        """Return one grant; None when it was taken over."""
        found = self.store.get_all([_GRANT + block])
        return msgspec.json.decode(found[_GRANT + block], type=GrantRecord) if found else None

    def put_grant(self, block: str, record: GrantRecord) -> None:
        """Write a grant."""
        self.store.put(_GRANT + block, msgspec.json.encode(record))

    def drop_grant(self, block: str) -> None:
        """Remove a grant: it was taken over, or nobody wants it."""
        self.store.delete(_GRANT + block)

    def draining(self, node: str) -> bool | None:
        """Return what an operator has said of a node: to drain, not to drain any more, or nothing."""
        found = self.store.get_all([_DRAIN + node])
        return found[_DRAIN + node] == b"1" if found else None

    def set_draining(self, node: str, *, is_draining: bool) -> None:
        """Say so, for the node to read."""
        self.store.put(_DRAIN + node, b"1" if is_draining else b"0")

    def forgotten(self, node: str) -> str | None:
        """Return when a node was forgotten, if it was."""
        found = self.store.get_all([_FORGOTTEN + node])
        return found[_FORGOTTEN + node].decode() if found else None

    def set_forgotten(self, node: str, when: str | None) -> None:
        """Let a node be told, when it comes back, that it was forgotten; None lets it come back."""
        if when is None:
            self.store.delete(_FORGOTTEN + node)
        else:
            self.store.put(_FORGOTTEN + node, when.encode())

    def _all(self, prefix: str) -> Iterable[tuple[str, bytes]]:
        return sorted(self.store.get_all(self.store.keys(prefix)).items())
