"""Hold a server to the number of sandboxes that its configuration allows, whichever process makes one. Blocks."""

from pathlib import Path

import msgspec

from cove.errors import LimitExceeded
from cove.local.state import replace_file
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.slots import count_slots

_NAME = "capacity.json"


class _Capacity(msgspec.Struct, frozen=True):
    """At most so many, or any number."""

    most: int | None = None


def write_capacity(home: Path, most: int | None) -> None:
    """Write it, for all processes of this state directory from now on."""
    replace_file(home / _NAME, msgspec.json.encode(_Capacity(most)))


def read_capacity(home: Path) -> int | None:
    """Return how many there may be at most; None for any number."""
    try:
        return msgspec.json.decode((home / _NAME).read_bytes(), type=_Capacity).most
    except FileNotFoundError:
        return None


def check_room(directory: Directory, more: int = 0) -> None:
    """Raise LimitExceeded when the slots that are taken, and so many more, are too many."""
    most = read_capacity(directory.home)
    if most is None or (taken := count_slots(directory)) + more <= most:
        return
    if taken != directory.count() or more > 1:
        raise LimitExceeded(
            f"this server has room for {most}, where larger sandboxes count as several: {taken} are taken, and "
            f"{more} more would be too many. Destroy some, or ask for less"
        )
    if more:
        raise LimitExceeded(f"{more} more sandboxes would be more than {most}, the most this server may have")
    raise LimitExceeded(f"this server has {most} sandboxes, which is the most it may have: destroy some")
