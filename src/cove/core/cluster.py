"""Decide where in a cluster: codes of nodes in ids, and the node that keeps the claims of a name."""

import base64
import hashlib
import re
from collections.abc import Iterable

from cove.core.identifier import new_identifier
from cove.errors import ValidationFailed
from cove.model.cluster import Member, Members

CODE_LENGTH = 4  # with the longest port and token, the label of a preview then has the 63 characters that DNS allows
_ID_LENGTH = 26
_GENERATED = re.compile(rf"[a-z2-7]{{{_ID_LENGTH}}}")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_CODE = re.compile(rf"[a-z2-7]{{{CODE_LENGTH}}}")


def code_of(name: str) -> str:
    """Return the code of a node by its name: 20 bits, so that two of a hundred nodes rarely have the same."""
    return base64.b32encode(hashlib.sha256(name.encode()).digest()).decode().lower()[:CODE_LENGTH]


def check_members(members: Members) -> Members:
    """Return them; ValidationFailed for names or codes that are none or not unique, or without the node itself."""
    for member in members.members:
        if not _NAME.fullmatch(member.name) or not _CODE.fullmatch(member.code):
            raise ValidationFailed(f"{member.name!r} cannot be a node: its name has 1-63 of a-z, 0-9 and inner hyphens")
        if not member.address.startswith("http://"):
            raise ValidationFailed(f"the address of node {member.name} must be like http://10.0.0.1:8787")
    names, codes = ({getattr(member, field) for member in members.members} for field in ("name", "code"))
    if not len(names) == len(codes) == len(members.members):
        raise ValidationFailed("two nodes have one name, or names that give one code: rename one of them")
    if members.node not in names:
        raise ValidationFailed(f"node {members.node!r} is not among the members: {', '.join(sorted(names))}")
    return members


def new_id(code: str) -> str:
    """Return a random id that ends in the code of the node where it is made; without a code, one that is as long."""
    return new_identifier(_ID_LENGTH - len(code)) + code


def birth_code(id: str) -> str | None:
    """Return the code that an id ends in, if it looks like one that was made."""
    return id[-CODE_LENGTH:] if _GENERATED.fullmatch(id) else None


def claim_name(tenant: str, id: str) -> str:
    """Return the name by which a sandbox's id is claimed: ids are a tenant's own."""
    return f"{tenant}:{id}" if tenant else id


def claim_keepers(name: str, members: Iterable[Member]) -> list[Member]:
    """Return the nodes by their rank for a name (rendezvous hashing): the first one keeps its claim."""
    return sorted(members, key=lambda member: hashlib.sha256(f"{member.name}/{name}".encode()).digest())
