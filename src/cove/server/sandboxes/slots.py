"""Count the room of a node in slots: a sandbox takes one, and one with larger limits several. Blocks.

How large a slot is stands in `slot.json`. A sandbox that takes several has a file `slots/ENTRY.MORE`, named by the file
of its id and by how many more than one it takes: it counts while that id is taken.
"""

import math
import os
from contextlib import suppress
from pathlib import Path

import msgspec

from cove.local.state import replace_file
from cove.model import Limits
from cove.server.sandboxes.directory import Directory

_FILE = "slot.json"
_SLOTS = "slots"


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """The cores and bytes of memory of one slot; 0 for any number."""

    cpus: float = 0.0
    memory: int = 0

    def count(self, limits: Limits) -> int:
        """Return how many slots a sandbox with these limits takes; one without a limit takes no more for it."""
        cpus = math.ceil(limits.cpus / self.cpus) if limits.cpus and self.cpus else 1
        memory = math.ceil(limits.memory / self.memory) if limits.memory and self.memory else 1
        return max(1, cpus, memory)


def write_slot(home: Path, slot: Slot) -> None:
    """Write how large a slot is, for all processes of this state directory from now on."""
    replace_file(home / _FILE, msgspec.json.encode(slot))


def read_slot(home: Path) -> Slot:
    """Return how large a slot is."""
    try:
        return msgspec.json.decode((home / _FILE).read_bytes(), type=Slot)
    except FileNotFoundError:
        return Slot()


def take_slots(directory: Directory, id: str, limits: Limits) -> None:
    """Note how many slots the sandbox of an id takes, which is taken."""
    entry, slots = directory.entry(id).name, directory.home / _SLOTS
    for name in _names(directory.home):
        if name.partition(".")[0] == entry:  # of one that had the id before
            (slots / name).unlink(missing_ok=True)
    more = read_slot(directory.home).count(limits) - 1
    if more:
        slots.mkdir(mode=0o700, exist_ok=True)
        (slots / f"{entry}.{more}").touch(mode=0o600)


def count_slots(directory: Directory) -> int:
    """Count the slots of all ids that are taken, by whomever."""
    taken = os.listdir(directory.ids)
    larger = _names(directory.home)
    if not larger:
        return len(taken)
    more = dict(name.split(".") for name in larger)
    return len(taken) + sum(int(more.get(entry, 0)) for entry in taken)


def forget_stale_slots(directory: Directory) -> None:
    """Remove what is noted of ids that nobody has: whoever freed them was killed."""
    for name in _names(directory.home):
        if not (directory.ids / name.partition(".")[0]).exists():
            (directory.home / _SLOTS / name).unlink(missing_ok=True)


def _names(home: Path) -> list[str]:
    with suppress(FileNotFoundError):
        return os.listdir(home / _SLOTS)
    return []
