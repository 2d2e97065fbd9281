"""Find out what of the cluster a request is for: a sandbox, a new one, a thing of one node, or what all nodes have."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Final

from cove.core.identifier import SANDBOX_ID
from cove.errors import CoveError
from cove.http import HttpError, Request, Response
from cove.server.bridge.gateway import describe_failure as describe_bridge
from cove.server.bridge.gateway import take_key_from_query
from cove.server.bridge.protocol import BELOW as BELOW_BRIDGE
from cove.server.bridge.protocol import ROOT as BRIDGE
from cove.server.cluster.peer import Hop
from cove.server.e2b.control import serves as serves_e2b
from cove.server.e2b.control import split as split_e2b
from cove.server.e2b.gateway import describe_failure as describe_e2b
from cove.server.e2b.gateway import find_inside
from cove.server.e2b.protocol import Refusal
from cove.server.mcp.protocol import BELOW as BELOW_MCP
from cove.server.mcp.protocol import PATH as MCP
from cove.server.mcp.protocol import SESSION_HEADER
from cove.wire.coding import unquote_text
from cove.wire.operation import IMAGES, KEYS, SANDBOXES, SNAPSHOTS

VOLUMES: Final = "/v1/volumes"
JOURNALS: Final = "/v1/journals"
METRICS: Final = "/metrics"
_BELOW: Final = f"{SANDBOXES}/"
_LISTS: Final = (SANDBOXES, SNAPSHOTS, IMAGES, VOLUMES, JOURNALS)
_THINGS: Final = {
    f"{SNAPSHOTS}/": "snapshot",
    f"{IMAGES}/": "image",
    f"{VOLUMES}/": "volume",
    f"{JOURNALS}/": "journal",
}
_ID: Final = re.compile(SANDBOX_ID)
_TERMINAL: Final = "pty"

Describe = Callable[[CoveError | HttpError], Response]


class Kind(Enum):
    """The ways in which the nodes share a request."""

    SANDBOX = auto()  # for the node that has the sandbox
    MADE_BY_USE = auto()  # the same, for a protocol that makes sandboxes by using them
    CREATE = auto()  # for the node with most room, by what its body says
    PLACE = auto()  # for the node with most room, whatever its body says
    THING = auto()  # for the node that has it
    LIST = auto()  # for all nodes, whose lists become one
    PAGES = auto()  # the same, page by page
    METRICS = auto()  # for all nodes, whose numbers become one text
    KEYS = auto()  # for all nodes, which have the same keys


@dataclass(frozen=True, slots=True)
class Target:
    """A request's kind, whom it is for by name, and by which right it goes to another node."""

    kind: Kind
    name: str = ""
    noun: str = "sandbox"
    hop: Hop = Hop.VOUCHED
    describe: Describe | None = None


def find_target(request: Request) -> Target | None:
    """Return what a request is for; None for what every node answers by itself."""
    inside = find_inside(request)
    if inside is not None:
        return _sandbox(inside[1], hop=Hop.CARRIED, describe=partial(describe_e2b, inside[1]))
    path = request.path
    if path.startswith(_BELOW):
        return _sandbox(path[len(_BELOW) :].partition("/")[0])
    if path.startswith(BELOW_BRIDGE):
        return _of_bridge(request)
    if path in _LISTS and request.method == "GET":
        return Target(Kind.LIST)
    if request.method == "POST" and path in (SANDBOXES, BRIDGE):
        return Target(Kind.CREATE if path == SANDBOXES else Kind.PLACE)
    if request.method != "GET" and (path == KEYS or path.startswith(f"{KEYS}/")):
        return Target(Kind.KEYS)
    if path == METRICS:
        return Target(Kind.METRICS)
    return _of_protocols(request) or _thing(path)


def _sandbox(id: str, **options: object) -> Target | None:
    return Target(Kind.SANDBOX, id, **options) if _ID.fullmatch(id) else None  # type: ignore[arg-type]  # by the names of its fields


def _of_bridge(request: Request) -> Target | None:
    id, _, rest = request.path[len(BELOW_BRIDGE) :].partition("/")
    if rest == _TERMINAL:
        take_key_from_query(request)
    found = _sandbox(id)
    return found and Target(Kind.MADE_BY_USE, id, describe=lambda error: describe_bridge(error).response())


def _of_protocols(request: Request) -> Target | None:
    path = request.path
    if path.startswith(BELOW_MCP):
        return _sandbox(path[len(BELOW_MCP) :])
    if path == MCP:
        session = request.headers.get(SESSION_HEADER)
        if session is None:
            return Target(Kind.PLACE)
        return _sandbox(session.partition(b".")[0].decode("latin-1"))
    return _of_e2b(request) if serves_e2b(path) else None


def _of_e2b(request: Request) -> Target | None:
    match request.method, split_e2b(request.path)[1]:
        case "POST", ["sandboxes"]:
            name = request.headers.get(b"idempotency-key", b"").decode("latin-1")
            return Target(Kind.PLACE, name, hop=Hop.CARRIED)
        case "GET", ["sandboxes"]:
            return Target(Kind.PAGES, hop=Hop.CARRIED)
        case _, ["sandboxes", id, *_]:
            return _sandbox(id, hop=Hop.CARRIED, describe=lambda error: Refusal.of(error).response())
    return None


def _thing(path: str) -> Target | None:
    for prefix, noun in _THINGS.items():
        if path.startswith(prefix):
            return Target(Kind.THING, unquote_text(path[len(prefix) :].partition("/")[0]), noun)
    return None
