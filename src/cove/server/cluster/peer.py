"""Call other nodes: the peer key, the headers of a hop, and small calls on connections of their own.

A connection carries one call. So a node that cannot be connected to has got nothing, and it is safe to ask another;
one that is lost later may have done what it was asked.
"""

import asyncio
import hmac
import socket
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import httptools

from cove.core.journal import SERVER_KEY
from cove.errors import NodeLost, NodeUnavailable, NotFound, PermissionDenied
from cove.http import Headers, Request
from cove.http.dead_peer import keep_alive
from cove.model.cluster import Member
from cove.server.gateway.auth import read_secret
from cove.server.gateway.key_ring import Principal

PEER: Final = b"cove-peer"
HOP: Final = b"cove-hop"
FROM: Final = b"cove-from"
AS: Final = b"cove-as"
OURS: Final = frozenset((PEER, HOP, FROM, AS))
CONNECT_SECONDS: Final = 2.0
_MOST_BYTES: Final = 64 << 20
_SILENT_MILLISECONDS: Final = 10_000
_DEFAULT_PORT: Final = 80
_LOOK_SECONDS: Final = 1.0
_OK: Final = 200
_NOT_FOUND: Final = 404


class Hop(StrEnum):
    """The right by which a request comes from another node."""

    NODE = "node"  # the node itself asks: no request of a client ever has it
    VOUCHED = "vouched"  # the first node has checked the caller's key
    CARRIED = "carried"  # the caller's own credentials are with it, and are checked here
    PREVIEW = "preview"  # a visitor of a preview, who needs no more than the label


class Arrival(NamedTuple):
    """A request that came from another node: its right, the visitor's address, and for whom the node vouches."""

    hop: Hop
    origin: str
    principal: Principal


class PeerKey:
    """The key that the nodes of a cluster know one another by."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()

    def headers(self, hop: Hop, peer: str = "", principal: Principal | None = None) -> Headers:
        """Return what makes a request a hop, of a visitor at an address, or of a principal that was checked here."""
        added = [(FROM, peer.encode())] if peer else []
        if principal is not None:
            added.append((AS, f"{principal.tenant}/{principal.name}".encode()))
        return ((PEER, self._key), (HOP, hop.value.encode()), *added)

    def derive(self, purpose: str) -> str:
        """Return a secret that all nodes have for a purpose; it says nothing of the key."""
        return hmac.digest(self._key, f"cove\0{purpose}".encode(), "sha256").hex()

    def take(self, request: Request) -> Arrival | None:
        """Take a hop's headers off a request; None for one of a client. PermissionDenied for a client that has them."""
        headers = request.headers
        if OURS.isdisjoint(headers):
            return None
        shown, hop, origin, principal = (headers.pop(name, b"") for name in (PEER, HOP, FROM, AS))
        request.raw_headers[:] = [header for header in request.raw_headers if header[0] not in OURS]
        if not hmac.compare_digest(shown, self._key) or hop.decode("latin-1") not in set(Hop):
            raise PermissionDenied("only a node of this cluster may say that a request comes from one")
        tenant, _, name = principal.decode("latin-1").partition("/")
        return Arrival(Hop(hop.decode()), origin.decode("latin-1"), Principal(name or SERVER_KEY, tenant))


def load_peer_key(path: str) -> PeerKey:
    """Load the key of a file that only this user can read. Blocks."""
    return PeerKey(read_secret(Path(path).expanduser(), "the peer key"))


def endpoint(member: Member) -> tuple[str, int]:
    """Return the host and port of a node."""
    parts = urlsplit(member.address)
    return parts.hostname or "", parts.port or _DEFAULT_PORT


@dataclass
class Reply:
    """The whole answer of a node."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""
    is_complete: bool = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. Called by llhttp, as are those below."""
        self.headers[name.lower()] = value

    def on_body(self, data: bytes) -> None:
        """Take some of the body."""
        self.body += data

    def on_message_complete(self) -> None:
        """Note the end."""
        self.is_complete = True


class NotConnected(NodeUnavailable):
    """The node could not be connected to; `is_refused` when its machine says that nobody listens."""

    def __init__(self, member: Member, *, is_refused: bool, reason: str) -> None:
        super().__init__(f"node {member.name} does not answer: {reason}", node=member.name)
        self.is_refused = is_refused


class PeerClient:
    """Makes calls; holds nothing but the key."""

    def __init__(self, key: PeerKey) -> None:
        self.key = key

    async def call(
        self,
        member: Member,
        method: str,
        target: str,
        body: bytes = b"",
        *,
        seconds: float,
        hop: Hop = Hop.NODE,
        headers: Mapping[bytes, bytes] | None = None,
        principal: Principal | None = None,
        is_up: Callable[[], bool] | None = None,
    ) -> Reply:
        """Return the answer: NotConnected when nothing was sent, NodeLost when it may have been read.

        What takes long is waited for while the node `is_up`, for at most `seconds` too.
        """
        reader, writer = await _connect(member, min(seconds, CONNECT_SECONDS), _SILENT_MILLISECONDS)
        try:
            async with asyncio.timeout(seconds):
                added = [*self.key.headers(hop, principal=principal), *(headers or {}).items()]
                writer.write(_render(member, method, target, body, added) + body)
                return await _read(reader, is_up)
        except (OSError, TimeoutError, httptools.HttpParserError) as error:
            raise _lost(member, error) from error
        finally:
            writer.close()

    async def stream(self, member: Member, target: str, is_up: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
        """Yield the body of what a node answers to GET, as it comes: NodeLost when it breaks off, or is not up.

        A node that says nothing is waited for while it `is_up`. What is not there is NotFound.
        """
        reader, writer = await _connect(member, CONNECT_SECONDS, _SILENT_MILLISECONDS)
        try:
            writer.write(_render(member, "GET", target, b"", self.key.headers(Hop.NODE)))
            reply = Reply()
            parser = httptools.HttpResponseParser(reply)
            while not reply.is_complete:
                data = await _read_while(reader, is_up)
                if not data:
                    raise OSError("it has closed the connection")
                parser.feed_data(data)
                if reply.body and parser.get_status_code() == _OK:
                    body, reply.body = reply.body, b""
                    yield body
            if (status := parser.get_status_code()) != _OK:
                raise (NotFound if status == _NOT_FOUND else NodeUnavailable)(
                    f"node {member.name} answers {status}: {reply.body[:200].decode('utf-8', 'replace')}"
                )
        except (OSError, httptools.HttpParserError) as error:
            raise NodeLost(f"node {member.name} was lost in the middle: {error}", node=member.name) from error
        finally:
            writer.close()

    async def send(self, member: Member, target: str, pieces: AsyncIterable[bytes], *, seconds: float) -> Reply:
        """Send a long body in pieces, each within `seconds`, as the answer; raises as `call` does."""
        reader, writer = await _connect(member, CONNECT_SECONDS, int(seconds * 1000))
        try:
            writer.write(_render_chunked(member, target, self.key.headers(Hop.NODE)))
            async for piece in pieces:
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                async with asyncio.timeout(seconds):
                    await writer.drain()
            writer.write(b"0\r\n\r\n")
            async with asyncio.timeout(seconds):
                return await _read(reader)
        except (OSError, TimeoutError, httptools.HttpParserError) as error:
            raise _lost(member, error) from error
        finally:
            writer.close()


def _lost(member: Member, error: Exception) -> NodeLost:
    reason = "it took too long" if isinstance(error, TimeoutError) else str(error)
    return NodeLost(f"node {member.name} was lost before it answered: {reason}", node=member.name)


async def _read_while(reader: asyncio.StreamReader, is_up: Callable[[], bool]) -> bytes:
    while True:
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                return await reader.read(1 << 18)
        except TimeoutError:
            if not is_up():
                raise OSError("it does not answer any more") from None


async def _connect(
    member: Member, seconds: float, silent_milliseconds: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = endpoint(member)
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError as error:
        raise NotConnected(member, is_refused=True, reason="nobody listens there") from error
    except (OSError, TimeoutError) as error:
        raise NotConnected(member, is_refused=False, reason=str(error) or "it is silent") from error
    sock: socket.socket = writer.get_extra_info("socket")
    with suppress(OSError):
        keep_alive(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silent_milliseconds)
    return reader, writer


def _render_chunked(member: Member, target: str, headers: Headers) -> bytes:
    host, port = endpoint(member)
    head = f"POST {target} HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\ntransfer-encoding: chunked\r\n"
    return head.encode() + b"".join(b"%b: %b\r\n" % header for header in headers) + b"\r\n"


def _render(member: Member, method: str, target: str, body: bytes, headers: Headers) -> bytes:
    host, port = endpoint(member)
    head = f"{method} {target} HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"".join(b"%b: %b\r\n" % header for header in headers) + b"\r\n"


async def _read(reader: asyncio.StreamReader, is_up: Callable[[], bool] | None = None) -> Reply:
    reply = Reply()
    parser = httptools.HttpResponseParser(reply)
    while not reply.is_complete:
        data = await (reader.read(1 << 18) if is_up is None else _read_while(reader, is_up))
        if not data:
            break
        parser.feed_data(data)
        if len(reply.body) > _MOST_BYTES:
            raise OSError("the answer is too long")
    if not reply.is_complete:
        raise OSError("the answer is not complete")
    reply.status = parser.get_status_code()
    return reply
