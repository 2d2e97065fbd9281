"""Choose the nodes that a sandbox can be made on: where its volumes are, and best where its image or snapshot is."""

from dataclasses import dataclass

from cove.errors import PlacementUnavailable, ValidationFailed
from cove.model import SandboxSpec, VolumeMount
from cove.model.spec import HOST_IMAGE
from cove.server.cluster.holdings import Holdings
from cove.server.cluster.nodes import Nodes
from cove.server.cluster.shipment import IMAGE, SNAPSHOT
from cove.server.cluster.whereabouts import Whereabouts


@dataclass(frozen=True, slots=True)
class Suitable:
    """Nodes, the best first. Where the sandbox `is_bound` to them, no other will do."""

    nodes: list[str]
    is_bound: bool = False


class Suitability:
    """Asks all nodes what they have of what a spec names."""

    def __init__(self, nodes: Nodes, whereabouts: Whereabouts, holdings: Holdings) -> None:
        self._nodes = nodes
        self._whereabouts = whereabouts
        self._holdings = holdings

    async def rank(self, spec: SandboxSpec, tenant: str = "") -> Suitable:
        """Return where to make a tenant's sandbox. Raises PlacementUnavailable where nobody can say, or may make it."""
        volumes = {each.volume for each in spec.mounts if isinstance(each, VolumeMount)}
        bound = None
        for volume in sorted(volumes):
            bound = await self._bind(volume, bound, tenant)
        nodes = self._nodes.candidates()
        if bound is not None:
            nodes = [node for node in nodes if node in bound]
            if not nodes:
                raise PlacementUnavailable(
                    f"the volumes {', '.join(sorted(volumes))} are on node {bound[0]}, which takes no new sandboxes: "
                    f"nothing was started; undo its draining, or use other volumes"
                )
        return Suitable(await self._prefer(spec, nodes, tenant), bound is not None)

    async def _bind(self, volume: str, bound: list[str] | None, tenant: str) -> list[str] | None:
        """Return those nodes that have one more volume; None where no node has any."""
        holders, is_complete = await self._whereabouts.holders("volume", volume, tenant)
        if not holders and not is_complete:
            raise PlacementUnavailable(
                f"no node that answers has the volume {volume}, and {self._silent()}: nothing was started; try again "
                "when all nodes are back, or make the volume anew"
            )
        if not holders:
            return bound  # whoever is to make the sandbox says so
        both = holders if bound is None else [node for node in holders if node in bound]
        if not both:
            raise ValidationFailed(f"volume {volume} is on node {holders[0]}, and others are not: no node has them all")
        return both

    def _silent(self) -> str:
        down = [name for name in self._nodes.members if not self._nodes.is_up(name)]
        return f"{', '.join(down)} is down" if down else "not all of them answer"

    async def _prefer(self, spec: SandboxSpec, nodes: list[str], tenant: str) -> list[str]:
        """Put first those that have what a sandbox stands on, then those that have a copy of it."""
        if spec.snapshot is not None:
            found = await self._holdings.find(SNAPSHOT, spec.snapshot, tenant)
        elif spec.image != HOST_IMAGE:
            found = await self._holdings.find(IMAGE, spec.image, tenant)
        else:
            return nodes
        originals, copies = found.originals, found.copies
        return sorted(nodes, key=lambda node: (node not in originals, node not in copies))
