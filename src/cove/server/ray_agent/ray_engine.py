"""Ray as the engine: its nodes, and blocks as detached placement groups of one bundle.

A group has no process and costs about 0.14 MB in all of Ray. `wait` does not start a worker, `ready` would. A group is
found by its name, which is unique among those that live. One that is pinned to a machine comes back with it; one that
is not is moved when its machine dies, which `blocks` undoes.
"""

import ray
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from cove.server.ray_agent.engine import BlockState, Engine, EngineFailed, EngineNode
from cove.server.ray_agent.ray_kv import RayStore

NODE_LABEL = "cove-node"
SLOTS = "cove"
_PIN = 0.001


def ray_version() -> str:
    """Return the version of Ray, which must be the same on all nodes."""
    return str(ray.__version__)


class RayEngine(RayStore, Engine):
    """A connection to the cluster through the raylet of this machine."""

    def __init__(self, address: str, ip: str | None, slot: dict[str, float]) -> None:
        self._slot = slot
        try:
            ray.init(
                address=address,
                namespace="cove",
                log_to_driver=False,
                logging_level="ERROR",
                **({} if ip is None else {"_node_ip_address": ip}),
            )
        except Exception as error:
            raise EngineFailed(f"cannot connect to Ray at {address}: {error}") from error
        self.address = str(ray.get_runtime_context().gcs_address)
        self._node_id = str(ray.get_runtime_context().get_node_id())

    @property
    def node_id(self) -> str:
        return self._node_id

    def nodes(self) -> list[EngineNode]:
        try:
            return [_node(each) for each in ray.nodes() if each["Alive"]]
        except Exception as error:
            raise EngineFailed(f"cannot list nodes: {error}") from error

    def make_block(self, name: str, slots: int, pin: EngineNode | None) -> None:
        bundle = {SLOTS: float(slots), **{resource: amount * slots for resource, amount in self._slot.items()}}
        selector = None
        if pin is not None and pin.label:
            selector = [{NODE_LABEL: pin.label}]
        elif pin is not None:
            bundle[f"node:{pin.ip}"] = _PIN
        if self._group(name) is not None:
            return
        try:
            placement_group([bundle], name=name, lifetime="detached", bundle_label_selector=selector)
        except Exception as error:
            raise EngineFailed(f"cannot ask for block {name}: {error}") from error

    def find_block(self, name: str) -> BlockState | None:
        group = self._group(name)
        return None if group is None else _state(group)

    def wait_for_block(self, name: str, timeout: float) -> BlockState | None:
        group = self._group(name)
        if group is None:
            return None
        try:
            group.wait(timeout)
        except Exception as error:
            raise EngineFailed(f"cannot wait for block {name}: {error}") from error
        return _state(group)

    def remove_block(self, name: str) -> None:
        group = self._group(name)
        if group is None:
            return
        try:
            remove_placement_group(group)
        except Exception as error:
            raise EngineFailed(f"cannot remove block {name}: {error}") from error

    def _group(self, name: str) -> PlacementGroup | None:
        try:
            return get_placement_group(name)
        except ValueError:  # there is none
            return None
        except Exception as error:
            raise EngineFailed(f"cannot look for block {name}: {error}") from error


def _state(group: PlacementGroup) -> BlockState | None:
    try:
        found = placement_group_table(group)
    except Exception as error:
        raise EngineFailed(f"cannot look at a block: {error}") from error
    if not found or found["state"] == "REMOVED":
        return None
    return BlockState(str(found["bundles_to_node_id"][0]) if found["state"] == "CREATED" else None)


def _node(found: dict[str, object]) -> EngineNode:
    resources, labels = found["Resources"], found.get("Labels")
    assert isinstance(resources, dict)
    return EngineNode(
        id=str(found["NodeID"]),
        ip=str(found["NodeManagerAddress"]),
        slots=int(resources.get(SLOTS, 0)),
        label=str(labels.get(NODE_LABEL, "")) if isinstance(labels, dict) else "",
    )
