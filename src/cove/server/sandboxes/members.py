"""Keep the nodes of the cluster in the state directory: written by who knows them, read by all of this node. Blocks."""

import os
from pathlib import Path

import msgspec

from cove.core.cluster import check_members
from cove.local.state import replace_file
from cove.model.cluster import Members

_NAME = "members.json"

Stamp = tuple[int, int, int]


def write_members(home: Path, members: Members | None) -> None:
    """Replace what is known, all at once; None where there is no cluster."""
    path = members_path(home)
    if members is None:
        path.unlink(missing_ok=True)
    else:
        replace_file(path, msgspec.json.encode(check_members(members)), durable=True)


def read_members(home: Path) -> Members | None:
    """Return the nodes; None where there is no cluster."""
    try:
        return msgspec.json.decode(members_path(home).read_bytes(), type=Members)
    except FileNotFoundError:
        return None


def is_list(members: Members) -> bool:
    """Return whether the nodes stand in a configuration: no engine has granted them room."""
    return bool(members.members) and all(member.slots is None for member in members.members)


def members_path(home: Path) -> Path:
    """Return the path of the file, which is replaced at every change."""
    return home / _NAME


def stamp_of(path: Path) -> Stamp | None:
    """Return what is another one after each replacement of the file."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
