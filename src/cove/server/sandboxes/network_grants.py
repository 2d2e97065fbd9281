"""Keep what the configuration grants to network policies and mounts where the processes of sandboxes find it. Blocks.

The file has no values of secrets, only where they are read from.
"""

from pathlib import Path

import msgspec

from cove.core.mount_grants import MountGrants
from cove.core.network_grants import NetworkGrants
from cove.local.state import replace_file

_NAME = "network.json"
_MOUNTS = "mounts.json"


def write_grants(home: Path, grants: NetworkGrants) -> None:
    """Write it, for all sandboxes of this state directory from now on."""
    replace_file(home / _NAME, msgspec.json.encode(grants))


def read_grants(home: Path) -> NetworkGrants:
    """Read it; nothing is granted where there is none."""
    try:
        return msgspec.json.decode((home / _NAME).read_bytes(), type=NetworkGrants)
    except FileNotFoundError:
        return NetworkGrants()


def write_mount_grants(home: Path, grants: MountGrants) -> None:
    """Write what may be mounted, for all sandboxes of this state directory from now on."""
    replace_file(home / _MOUNTS, msgspec.json.encode(grants))


def read_mount_grants(home: Path) -> MountGrants:
    """Read it; nothing is granted where there is none."""
    try:
        return msgspec.json.decode((home / _MOUNTS).read_bytes(), type=MountGrants)
    except FileNotFoundError:
        return MountGrants()
