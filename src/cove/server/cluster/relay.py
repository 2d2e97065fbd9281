"""Relay a request to another node, raw, over TCP: as to a runtime, but for what is known when it fails.

A connection that cannot be made has carried nothing, so it is tried again: while the node is being restarted, for as
long as patience lasts. Once something was sent, it is never sent again, unless the node itself has answered that it
did nothing: 421, the sandbox is not there; when one is to be made, 429, there is no room.
"""

import asyncio
import re
import socket
from collections.abc import Callable, Coroutine
from typing import Final

from cove.errors import CoveError, NodeLost, NodeUnavailable, SandboxUnavailable
from cove.http import HttpError, Request, Response
from cove.http.dead_peer import DeadPeerDetector, keep_alive
from cove.http.headers import HOP_BY_HOP
from cove.server.cluster.nodes import PATIENCE_SECONDS, Nodes
from cove.server.cluster.peer import CONNECT_SECONDS, OURS, Hop, PeerKey, endpoint
from cove.server.gateway.key_ring import Principal
from cove.server.gateway.relay import SocketRelay, render_request
from cove.server.gateway.upstream import Upstream, Upstreams

NODE_HEADER: Final = b"cove-node"
REFUSED_HEADER: Final = b"cove-refused"  # by the node itself: what listens in a sandbox may answer 421 too
QUOTA_HEADER: Final = b"cove-quota"  # the tenant has too much: no other node will do
_AGAIN_SECONDS: Final = 0.1
_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_NODE: Final = re.compile(rb"\r\ncove-node: ([a-z0-9-]{1,63})\r\n")
_MARK: Final = b"\r\n%b: " % REFUSED_HEADER
_DROPPED: Final = HOP_BY_HOP | OURS | {b"expect"}
_WITHOUT_KEY: Final = _DROPPED | {b"authorization"}
_MOST_REFUSAL_BYTES: Final = 1 << 16
MISDIRECTED: Final = 421
NO_ROOM: Final = 429
UNREACHABLE: Final = 503

# Says where to try next, by the status and by the node that the answer names.
FindNext = Callable[[int, str], Coroutine[object, object, str]]


class PeerUpstreams(Upstreams):
    """All connections of a worker to other nodes; the path of one is the name of its node."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: Nodes
        self._watch = DeadPeerDetector()

    async def connect(self, path: str) -> Upstream:
        """A fresh connection; raises OSError, or NodeUnavailable for a node that is down."""
        host, port = endpoint(self.nodes.check(path))
        upstream = Upstream(self, path)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                transport, _ = await asyncio.get_running_loop().create_connection(lambda: upstream, host, port)
        except BaseException:
            self.remove(upstream)
            raise
        sock: socket.socket = transport.get_extra_info("socket")
        keep_alive(sock)
        self._watch.add(transport, upstream.abort)
        return upstream

    def drop(self, node: str) -> None:
        """End all connections to a node that is down."""
        for upstream in [each for each in self._open if each.path == node]:
            upstream.abort()

    async def aclose(self) -> None:
        """End every connection."""
        self._watch.close()
        await super().aclose()


class PeerRelay(SocketRelay):
    """One request on its way to the node `path`; `find_next` says which to try after one that did nothing."""

    __slots__ = ("_describe", "_find_next", "_hop", "_key", "_principal", "_refusal", "_refusals")

    def __init__(
        self,
        upstreams: PeerUpstreams,
        node: str,
        key: PeerKey,
        hop: Hop,
        *,
        find_next: FindNext | None = None,
        refusals: tuple[int, ...] = (MISDIRECTED,),
        describe: Callable[[CoveError | HttpError], Response] | None = None,
        principal: Principal | None = None,
    ) -> None:
        super().__init__(upstreams, node)
        self._key = key
        self._hop = hop
        self._find_next = find_next
        self._refusals = refusals
        self._describe = describe
        self._principal = principal
        self._refusal: bytearray | None = None

    def _render(self, request: Request) -> bytes:
        peer = self._exchange.peer if self._hop is Hop.PREVIEW else ""
        dropped = _WITHOUT_KEY if self._hop is Hop.VOUCHED else _DROPPED
        return render_request(request, self._key.headers(self._hop, peer, self._principal), dropped)

    async def _reach(self) -> Upstream:
        """Connect; a node that is being restarted is waited for."""
        if self._refusal is not None:
            await self._choose_next(bytes(self._refusal))
            if self._kept is None:
                raise SandboxUnavailable("the sandbox is on another node: nothing was started; try again")
        until = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while True:
            try:
                return await self._upstreams.connect(self._path)
            except ConnectionRefusedError as error:
                if asyncio.get_running_loop().time() >= until:
                    raise self._unavailable("nobody listens there") from error
                await asyncio.sleep(_AGAIN_SECONDS)
            except OSError as error:
                raise self._unavailable(str(error) or "it is silent") from error

    async def _open(self) -> Upstream:
        """Connect; where a sandbox is to be made, to the next node if one cannot be reached."""
        while True:
            try:
                return await self._reach()
            except NodeUnavailable:
                if self._find_next is None or NO_ROOM not in self._refusals:
                    raise
                self._path = await self._find_next(UNREACHABLE, "")

    async def _choose_next(self, answer: bytes) -> None:
        self._refusal = None
        named = _NODE.search(answer)
        assert self._find_next is not None
        self._path = await self._find_next(int(answer[9:12]), named[1].decode() if named else "")

    def _unavailable(self, reason: str) -> CoveError:
        return NodeUnavailable(f"node {self._path} cannot be reached: {reason}; nothing was started", node=self._path)

    def upstream_data(self, data: bytes, *, is_raw: bool) -> None:
        if self._is_refusal(data):
            return
        super().upstream_data(data, is_raw=is_raw)

    def upstream_completed(self, data: bytes, *, keep_alive: bool) -> None:
        if not self._is_refusal(data):
            super().upstream_completed(data, keep_alive=keep_alive)
            return
        self._drop_upstream()
        if self._kept is not None:
            self._exchange.request.keep_body()
        self._connecting = self._upstreams.start(self)

    def _is_refusal(self, data: bytes) -> bool:
        """Keep the answer of a node that did nothing, where another one can be asked; no more of it than it can be."""
        if self._has_answered or self._find_next is None:
            return False
        if self._refusal is None and self._begins_refusal(data):
            self._refusal = bytearray()
        if self._refusal is not None:
            self._refusal += data[: _MOST_REFUSAL_BYTES - len(self._refusal)]
        return self._refusal is not None

    def _begins_refusal(self, data: bytes) -> bool:
        match = _STATUS.match(data)
        if match is None or int(match[1]) not in self._refusals:
            return False
        return _MARK in data if int(match[1]) == MISDIRECTED else QUOTA_HEADER not in data

    def fail(self, error: CoveError | HttpError) -> None:
        if self._describe is None:
            super().fail(error)
        else:
            self._exchange.respond(self._describe(error))

    def _break_off(self, *, has_begun: bool) -> None:
        if self._has_answered:
            self._exchange.cut()
            return
        self.fail(
            NodeLost(
                f"node {self._path} was lost before it answered: the call may have had its effect", node=self._path
            )
        )
