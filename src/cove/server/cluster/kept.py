"""Keep what an agent has been granted in the state directory: it is the truth, and outlives Ray. Blocks."""

from pathlib import Path

import msgspec

from cove.local.state import replace_file

_NAME = "cluster.json"


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Room for so many sandboxes, by its name in the engine; `pin` says which machine it was asked for on, if any."""

    name: str
    slots: int
    pin: str = ""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks of this node, whether it is to get no new sandboxes, and the last life of the engine's store."""

    blocks: tuple[Block, ...] = ()
    is_draining: bool = False
    life: str = ""

    @property
    def slots(self) -> int:
        """The room of all blocks."""
        return sum(block.slots for block in self.blocks)


def read_kept(server: Path) -> Kept:
    """Return what was kept last; nothing, where nothing was."""
    try:
        return msgspec.json.decode((server / _NAME).read_bytes(), type=Kept)
    except FileNotFoundError:
        return Kept()


def write_kept(server: Path, kept: Kept) -> None:
    """Replace it; it is there after a crash of the machine."""
    replace_file(server / _NAME, msgspec.json.encode(kept), durable=True)
