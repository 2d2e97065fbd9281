"""The room of this node: blocks that it was granted, kept in the state directory and asked for again when lost."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from cove.core.identifier import new_identifier
from cove.server.cluster.kept import Block, Kept, read_kept, write_kept
from cove.server.ray_agent.engine import BlockState, Engine, EngineNode

WAIT_SECONDS = 2.0
_MOST_BLOCKS = 4096


def new_block_name() -> str:
    """Return a name that no block has."""
    return f"cove-block-{new_identifier(16)}"


class Blocks:
    """Holds blocks for what runs here.

    `room` is what the engine has confirmed; what is kept counts until it says otherwise. `count` says how many
    sandboxes there are, and `publish` makes new room known to all processes of this node.
    """

    def __init__(
        self, server: Path, engine: Engine, size: int, *, count: Callable[[], int], publish: Callable[[int], None]
    ) -> None:
        self._server = server
        self._engine = engine
        self._size = size
        self._count = count
        self._publish = publish
        self._kept = read_kept(server)
        self._idle_since: float | None = None
        self.room = self._kept.slots

    @property
    def kept(self) -> Kept:
        """Return what stands in the state directory."""
        return self._kept

    @property
    def is_overcommitted(self) -> bool:
        """Return whether more sandboxes are here than there is room for."""
        return self._count() > self.room

    def set_draining(self, is_draining: bool) -> None:
        """Keep whether this node gets new sandboxes."""
        if self._kept.is_draining != is_draining:
            self._keep(msgspec.structs.replace(self._kept, is_draining=is_draining))
        self._tell()

    def set_life(self, life: str) -> None:
        """Keep by which memory of the engine this node knows the others."""
        if self._kept.life != life:
            self._keep(msgspec.structs.replace(self._kept, life=life))

    def adopt(self, name: str, slots: int) -> None:
        """Take over a block that was granted on this machine; a no-op for one that is held."""
        if all(block.name != name for block in self._kept.blocks):
            self._replace(*self._kept.blocks, Block(name=name, slots=slots))
            self.room += slots
            self._tell()

    def confirm(self, here: EngineNode) -> None:
        """Look for every block, ask again for those that are lost, and for as many as what runs here needs."""
        missing = -(-(self._count() - self._kept.slots) // self._size)
        if missing > 0:
            more = (Block(name=new_block_name(), slots=self._size, pin=_pin(here)) for _ in range(missing))
            self._replace(*self._kept.blocks, *list(more)[:_MOST_BLOCKS])
        self.room = sum(block.slots for block in self._kept.blocks if self._is_here(block, here))
        self._tell()

    def _is_here(self, block: Block, here: EngineNode) -> bool:
        state = self._engine.find_block(block.name)
        if state is not None and (state.node_id == here.id or (state.node_id is None and block.pin == _pin(here))):
            return state.node_id is not None
        return self._ask_again(block, here, state)

    def _ask_again(self, block: Block, here: EngineNode, state: BlockState | None) -> bool:
        """The new name is kept before it is asked for: whoever is killed in between asks again for the same."""
        again = Block(name=new_block_name(), slots=block.slots, pin=_pin(here))
        self._replace(*(again if each.name == block.name else each for each in self._kept.blocks))
        if state is not None:
            self._engine.remove_block(block.name)
        self._engine.make_block(again.name, again.slots, here)
        made = self._engine.wait_for_block(again.name, WAIT_SECONDS)
        return made is not None and made.node_id == here.id

    def release_idle(self, after: float) -> None:
        """Give one block back when it was not needed for so long; the last one goes with the last sandbox."""
        if not self._spare(1):
            self._idle_since = None
            return
        now = time.monotonic()
        self._idle_since = now if self._idle_since is None else self._idle_since
        if now - self._idle_since >= after:
            self.release(1)

    def release(self, most: int) -> int:
        """Give back at most so many blocks that nothing needs; returns how many those were.

        First the room is less, then it is counted whether that is enough: who makes a sandbox meanwhile is in time or
        is refused.
        """
        released = 0
        while released < most and self._spare(1):
            *others, block = self._kept.blocks
            room, self.room = self.room, min(self.room, self._kept.slots - block.slots)
            self._tell()
            if self._count() > self._kept.slots - block.slots:
                self.room = room
                self._tell()
                break
            self._replace(*others)
            self._engine.remove_block(block.name)
            released += 1
        return released

    def _spare(self, blocks: int) -> bool:
        held = self._kept.blocks
        return len(held) >= blocks and self._count() <= sum(block.slots for block in held[: len(held) - blocks])

    def drop_all(self) -> None:
        """Give everything back: this node leaves the cluster."""
        for block in self._kept.blocks:
            self._engine.remove_block(block.name)
        self._replace()

    def _replace(self, *blocks: Block) -> None:
        self._keep(msgspec.structs.replace(self._kept, blocks=blocks))

    def _keep(self, kept: Kept) -> None:
        write_kept(self._server, kept)
        self._kept = kept

    def _tell(self) -> None:
        self._publish(0 if self._kept.is_draining else self.room)


def _pin(here: EngineNode) -> str:
    return here.label or here.ip
