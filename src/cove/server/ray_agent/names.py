"""Claims on names, on a store that can only write a key that is not there.

The claims of a name stand under `name/<name>/<number>`, numbered from 1; the last one holds. Whoever writes a number
first has that claim: so of two nodes that claim one name, or take one over, exactly one wins. Epochs begin with the
clock, so that one of a name that was freed and claimed again is not met twice.
"""

import time

import msgspec

from cove.model.cluster import Claim
from cove.server.ray_agent.engine import EngineFailed, Store

_TRIES = 8


class Names:
    """The claims of all nodes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def claim(self, name: str, node: str, epoch: int | None = None) -> Claim:
        """Claim a name for a node, and return the claim that holds.

        A node that has it already gets a higher epoch. With `epoch`, another node's claim is taken over if it has it.
        """
        for _ in range(_TRIES):
            number, held = self._last(name)
            if number and held is None:
                continue  # it was freed between two looks
            if held is not None and held.node != node and held.epoch != epoch:
                return held
            wanted = Claim(name=name, node=node, epoch=_next_epoch(held))
            if self._store.put_new(_key(name, number + 1), msgspec.json.encode(wanted)):
                return self._confirmed(number, held, wanted)
        raise EngineFailed(f"too many claim {name} at once")

    def ensure(self, name: str, node: str) -> Claim:
        """Return the claim that holds; where there is none, one for the node."""
        return self.find(name) or self.claim(name, node)

    def find(self, name: str) -> Claim | None:
        """Return who has the name."""
        return self._last(name)[1]

    def unclaim(self, claim: Claim) -> None:
        """Free a name, if exactly this claim holds it."""
        number, held = self._last(claim.name)
        if held == claim:
            self._store.delete(_key(claim.name, number))

    def free_all_of(self, node: str) -> int:
        """Free every name of a node; returns how many those were."""
        names = {key.split("/")[1] for key in self._store.keys("name/")}
        freed = [held for name in sorted(names) if (held := self.find(name)) is not None and held.node == node]
        for held in freed:
            self.unclaim(held)
        return len(freed)

    def _confirmed(self, number: int, taken: Claim | None, wanted: Claim) -> Claim:
        """Keep a claim that was written, unless the one before it was freed or others came after it meanwhile."""
        was_there = taken is None or self._read(wanted.name, number) == taken
        if not was_there or self._last(wanted.name)[0] != number + 1:
            self._store.delete(_key(wanted.name, number + 1))
            return self.find(wanted.name) or self.claim(wanted.name, wanted.node)
        if taken is not None:
            self._store.delete(_key(wanted.name, number))
        return wanted

    def _last(self, name: str) -> tuple[int, Claim | None]:
        numbers = [int(key.rpartition("/")[2]) for key in self._store.keys(f"name/{name}/")]
        number = max(numbers, default=0)
        return number, self._read(name, number)

    def _read(self, name: str, number: int) -> Claim | None:
        key = _key(name, number)
        found = self._store.get_all([key] if number else []).get(key)
        return None if found is None else msgspec.json.decode(found, type=Claim)


def _key(name: str, number: int) -> str:
    return f"name/{name}/{number:06d}"


def _next_epoch(held: Claim | None) -> int:
    """The target of a move knows the claim that it took over by its epoch, which is one more than the source's."""
    return time.time_ns() // 1_000_000 if held is None else held.epoch + 1
