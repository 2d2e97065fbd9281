"""A node that a test plays: it has a state directory, gives others what they fetch, and does it wrong when told to."""

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from cove.core.cluster import code_of
from cove.http import HttpServer, Request, Response
from cove.model.cluster import Member
from cove.server.cluster.fetching import Fetching
from cove.server.cluster.nodes import NODE_PATH, Nodes, Report
from cove.server.cluster.peer import PeerClient, PeerKey
from cove.server.cluster.shipping import LAYERS, Shipping
from cove.server.error_response import describe_error

KEY = "the-key-between-nodes"
Change = Callable[[bytes], bytes]


@dataclass
class PlayedSource:
    """Answers as a node does that is full. `change` is made to bytes of layers; after `most` bytes it breaks off."""

    home: Path
    key: str = KEY
    change: Change = lambda data: data
    most: int | None = None
    asked: list[str] = field(default_factory=list)
    stalls: asyncio.Event | None = None
    stalled: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.shipping = Shipping(self.home)

    def layers_asked(self) -> list[str]:
        return [path.removeprefix(LAYERS) for path in self.asked if path.startswith(LAYERS)]

    async def answer(self, request: Request) -> Response:
        assert PeerKey(self.key).take(request) is not None
        if request.path == NODE_PATH:
            return Response(200, (), msgspec.json.encode(Report(name="d", free=-1000)))
        if request.path.startswith("/v1/cluster/has/"):
            return Response(200, (), b"false")
        if not self.shipping.serves(request.path):
            is_list = request.method == "GET"
            return (
                Response(200, (), b"[]") if is_list else Response(429, (), b'{"error": "", "code": "LIMIT_EXCEEDED"}')
            )
        self.asked.append(request.path)
        found = await self.shipping.answer(request)
        if request.path.startswith(LAYERS):
            assert not isinstance(found.body, bytes)
            return Response(200, found.headers, self._spoil(found.body))
        return found

    async def _spoil(self, body: AsyncGenerator[bytes | tuple[bytes, ...], None]) -> AsyncGenerator[bytes, None]:
        whole = b"".join([each async for each in body if isinstance(each, bytes)])
        whole = self.change(whole)
        yield whole[: self.most]
        if self.most is not None and len(whole) > self.most:
            self.stalled.set()
            if self.stalls is not None:
                await self.stalls.wait()
            raise ConnectionResetError


@asynccontextmanager
async def played_source(home: Path, key: str = KEY, port: int = 0) -> AsyncIterator[tuple[PlayedSource, int]]:
    """Play it on a port of loopback."""
    source = PlayedSource(home, key)
    listener = socket.create_server(("127.0.0.1", port))
    async with HttpServer(source.answer, [listener], describe=describe_error, grace=0.1):
        yield source, listener.getsockname()[1]


def fetching_to(home: Path, **ports: int) -> Fetching:
    """What fetches to the node `here`, which knows others by their ports."""
    client = PeerClient(PeerKey(KEY))
    nodes = Nodes(home, client, lambda _: None)
    addresses = {"here": 1, **ports}
    nodes.members = {
        name: Member(name=name, address=f"http://127.0.0.1:{port}", code=code_of(name))
        for name, port in addresses.items()
    }
    nodes.node = "here"
    return Fetching(home, nodes, client, most_jobs=4)
