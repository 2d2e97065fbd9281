"""Tell admins how their server is: the machine, the warm pool, and the nodes of its cluster.

Every node tells its own part. The one that a browser asks adds what its probes found, so that nodes which do not
answer are told too, with why.
"""

import os
from collections.abc import Coroutine
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

import cove
from cove.errors import MethodNotAllowed
from cove.http import Answer, Handler, Request, Response
from cove.local.threads import in_thread
from cove.model.spec import HOST_IMAGE
from cove.server.cluster.nodes import Health, NodeState, read_nodes
from cove.server.console.live import Elsewhere
from cove.server.counters import read_counts
from cove.server.gateway.auth import Authenticator
from cove.server.sandboxes.capacity import read_capacity
from cove.server.sandboxes.members import read_members
from cove.server.sandboxes.starter import Starter
from cove.server.sandboxes.warm_pool import WarmPool
from cove.wire.operation import Caller

SERVER_PATH: Final = "/v1/console/server"
NODE_PATH: Final = "/v1/console/node"
_JSON: Final = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"))
_HITS, _MISSES = 'cove_warm_pool_total{result="hit"}', 'cove_warm_pool_total{result="miss"}'


class WarmKind(msgspec.Struct, frozen=True, kw_only=True):
    """Sandboxes of one kind that wait for an id; no image is the machine's own system."""

    image: str | None
    wanted: int
    waiting: int


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of a machine: `load` is that of the last minute, the disk is the one of the state directory."""

    cpus: int
    load: float
    memory_bytes: int
    memory_available_bytes: int
    disk_bytes: int
    disk_free_bytes: int


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The part that a node tells of itself; creations that found a warm sandbox are `warm_hits`."""

    name: str | None
    version: str
    sandboxes: int
    max_sandboxes: int | None
    machine: Machine
    warm: list[WarmKind]
    warm_hits: int
    warm_misses: int


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One node as the node that is asked sees it; `free` is how many sandboxes more it takes, None for any number."""

    name: str | None
    is_here: bool
    state: NodeState
    since: datetime | None
    is_draining: bool
    free: int | None
    problem: str
    facts: NodeFacts | None


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes; a server without a cluster is one without a name."""

    nodes: list[NodeStatus]


class StatusGateway:
    """Answers the paths of this module, to admins."""

    def __init__(self, starter: Starter, authenticator: Authenticator, elsewhere: Elsewhere | None) -> None:
        self._starter = starter
        self._authenticator = authenticator
        self._elsewhere = elsewhere

    def before(self, handler: Handler) -> Handler:
        """Answer these paths, and leave all others to that handler."""

        def handle(request: Request) -> Answer | Coroutine[object, object, Answer]:
            if request.path not in (SERVER_PATH, NODE_PATH):
                return handler(request)
            refusal = self._authenticator.refuse(request, Caller.ADMIN)
            return self._answer(request) if refusal is None else refusal

        return handle

    async def _answer(self, request: Request) -> Response:
        if request.method != "GET":
            raise MethodNotAllowed(f"{request.path} takes GET, not {request.method}", allowed=["GET"])
        here = await in_thread(describe_node, self._starter)
        if request.path == NODE_PATH:
            return Response(200, _JSON, msgspec.json.encode(here))
        others = [] if self._elsewhere is None else await self._elsewhere(NODE_PATH, "")
        told = [here, *(msgspec.json.decode(other, type=NodeFacts) for other in others)]
        status = await in_thread(describe_server, self._starter.directory.home, told)
        return Response(200, _JSON, msgspec.json.encode(status))


def describe_node(starter: Starter) -> NodeFacts:
    """Describe this node. Blocks."""
    directory = starter.directory
    members, counts, pool = read_members(directory.home), read_counts(directory.home), WarmPool(directory)
    return NodeFacts(
        name=None if members is None else members.node,
        version=cove.__version__,
        sandboxes=directory.count(),
        max_sandboxes=read_capacity(directory.home),
        machine=describe_machine(directory.home),
        warm=[
            WarmKind(image=None if spec.image == HOST_IMAGE else spec.image, wanted=wanted, waiting=pool.count(spec))
            for spec, wanted in starter.configuration.warm_specs
            if wanted
        ],
        warm_hits=int(counts[_HITS]),
        warm_misses=int(counts[_MISSES]),
    )


def describe_machine(home: Path) -> Machine:
    """Describe the machine that the state directory is on. Blocks."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    memory = {words[0]: int(words[1]) << 10 for words in lines}
    disk = os.statvfs(home)
    return Machine(
        cpus=len(os.sched_getaffinity(0)),
        load=os.getloadavg()[0],
        memory_bytes=memory["MemTotal:"],
        memory_available_bytes=memory["MemAvailable:"],
        disk_bytes=disk.f_blocks * disk.f_frsize,
        disk_free_bytes=disk.f_bavail * disk.f_frsize,
    )


def describe_server(home: Path, told: list[NodeFacts]) -> ServerStatus:
    """Join what nodes told with what the last probes of this one found. Blocks."""
    members, health = read_members(home), read_nodes(home)
    if members is None:
        [here] = told
        free = None if here.max_sandboxes is None else here.max_sandboxes - here.sandboxes
        return ServerStatus(nodes=[_status(None, Health(), here, free=free, is_here=True)])
    facts = {each.name: each for each in told}
    nodes = []
    for member in sorted(members.members, key=lambda each: (each.name != members.node, each.name)):
        found = health.get(member.name, Health())
        free = 0 if found.report is None else found.report.free
        nodes.append(
            _status(
                member.name,
                found,
                facts.get(member.name),
                free=free,
                is_here=member.name == members.node,
                is_draining=member.is_draining,
            )
        )
    return ServerStatus(nodes=nodes)


def _status(
    name: str | None,
    health: Health,
    facts: NodeFacts | None,
    *,
    free: int | None,
    is_here: bool,
    is_draining: bool = False,
) -> NodeStatus:
    return NodeStatus(
        name=name,
        is_here=is_here,
        state=health.state,
        since=health.since,
        is_draining=is_draining,
        free=free,
        problem=health.problem,
        facts=facts,
    )
