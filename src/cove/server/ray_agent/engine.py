"""The engine as the agent sees it: nodes that are alive, blocks of room, and a store of keys. All calls block."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class EngineFailed(Exception):
    """The engine did not answer, or not in time."""


@dataclass(frozen=True, slots=True)
class EngineNode:
    """A machine that is alive for the engine; `label` is the node of Cove that its raylet was started for."""

    id: str
    ip: str
    slots: int
    label: str = ""


@dataclass(frozen=True, slots=True)
class BlockState:
    """A block: the machine that has it, or None while it is waited for."""

    node_id: str | None


class Store(Protocol):
    """Keys and values that all agents share."""

    def put_new(self, key: str, value: bytes) -> bool:
        """Write a key that is not there; returns whether it was this call that did."""
        ...

    def put(self, key: str, value: bytes) -> None:
        """Write a key, whatever it has."""
        ...

    def get_all(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the values of those keys that are there."""
        ...

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin so."""
        ...

    def delete(self, key: str) -> None:
        """Remove a key, if it is there."""
        ...


class Engine(Store, Protocol):
    """The cluster, from one node of it."""

    @property
    def node_id(self) -> str:
        """The id of the machine that this agent is on; another one each time its raylet is started."""
        ...

    def nodes(self) -> list[EngineNode]:
        """Return the machines that are alive."""
        ...

    def make_block(self, name: str, slots: int, pin: EngineNode | None) -> None:
        """Ask for room, on that machine or on any; it is there at once or later. Asking again is a no-op."""
        ...

    def find_block(self, name: str) -> BlockState | None:
        """Return a block that was asked for; None when the engine does not know it."""
        ...

    def wait_for_block(self, name: str, timeout: float) -> BlockState | None:
        """Return a block, after it has its machine or that time."""
        ...

    def remove_block(self, name: str) -> None:
        """Give room back, or stop waiting for it."""
        ...
