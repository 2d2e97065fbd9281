"""An engine in memory: machines with slots, blocks that fit or wait, and a store that all agents share."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from cove.server.ray_agent.engine import BlockState, EngineFailed, EngineNode


@dataclass(slots=True)
class FakeBlock:
    slots: int
    pin: str
    node_id: str | None = None


@dataclass(slots=True)
class FakeCluster:
    """What a head knows. `is_down` lets every call fail; `lose_memory` is a head that comes back without anything."""

    nodes: dict[str, EngineNode] = field(default_factory=dict)
    store: dict[str, bytes] = field(default_factory=dict)
    blocks: dict[str, FakeBlock] = field(default_factory=dict)
    is_down: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def start_node(self, id: str, label: str, slots: int = 64) -> None:
        with self.changed:
            self.nodes[id] = EngineNode(id=id, ip=f"10.0.0.{len(self.nodes) + 1}", slots=slots, label=label)
            self.place()

    def end_node(self, id: str) -> None:
        """Its blocks wait, and those that are not pinned are moved."""
        with self.changed:
            del self.nodes[id]
            for block in self.blocks.values():
                if block.node_id == id:
                    block.node_id = None
            self.place()

    def lose_memory(self) -> None:
        with self.changed:
            self.store.clear()
            self.blocks.clear()

    def place(self) -> None:
        for block in self.blocks.values():
            if block.node_id is None:
                block.node_id = next(
                    (
                        node.id
                        for node in sorted(self.nodes.values(), key=lambda node: self._used(node.id))
                        if block.pin in ("", node.label) and self._used(node.id) + block.slots <= node.slots
                    ),
                    None,
                )
        self.changed.notify_all()

    def _used(self, id: str) -> int:
        return sum(block.slots for block in self.blocks.values() if block.node_id == id)


class FakeEngine:
    """The cluster from one of its machines."""

    def __init__(self, cluster: FakeCluster, node_id: str) -> None:
        self._cluster = cluster
        self._node_id = node_id

    @property
    def node_id(self) -> str:
        return self._node_id

    def nodes(self) -> list[EngineNode]:
        self._check()
        return list(self._cluster.nodes.values())

    def make_block(self, name: str, slots: int, pin: EngineNode | None) -> None:
        self._check()
        with self._cluster.changed:
            self._cluster.blocks.setdefault(name, FakeBlock(slots, "" if pin is None else pin.label))
            self._cluster.place()

    def find_block(self, name: str) -> BlockState | None:
        self._check()
        block = self._cluster.blocks.get(name)
        return None if block is None else BlockState(block.node_id)

    def wait_for_block(self, name: str, timeout: float) -> BlockState | None:
        with self._cluster.changed:
            self._cluster.changed.wait_for(lambda: self._is_settled(name), timeout)
        return self.find_block(name)

    def _is_settled(self, name: str) -> bool:
        block = self._cluster.blocks.get(name)
        return block is None or block.node_id is not None

    def remove_block(self, name: str) -> None:
        self._check()
        with self._cluster.changed:
            self._cluster.blocks.pop(name, None)
            self._cluster.place()

    def put_new(self, key: str, value: bytes) -> bool:
        self._check()
        with self._cluster.changed:
            return self._cluster.store.setdefault(key, value) is value

    def put(self, key: str, value: bytes) -> None:
        self._check()
        self._cluster.store[key] = value

    def get_all(self, keys: Iterable[str]) -> dict[str, bytes]:
        self._check()
        return {key: self._cluster.store[key] for key in keys if key in self._cluster.store}

    def keys(self, prefix: str) -> list[str]:
        self._check()
        return [key for key in list(self._cluster.store) if key.startswith(prefix)]

    def delete(self, key: str) -> None:
        self._check()
        self._cluster.store.pop(key, None)

    def _check(self) -> None:
        if self._cluster.is_down:
            raise EngineFailed("the head does not answer")
