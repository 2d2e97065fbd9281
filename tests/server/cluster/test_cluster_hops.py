"""One node, and a second one that a test plays: what a hop carries, and what happens when it fails."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from support.clusters import API_KEY, Cluster, cluster_of, free_ports
from support.raw_http import Reply, connect

from bench.proc import resident_bytes
from cove.core.cluster import code_of, new_id
from cove.tasks import owned, together

pytestmark = [pytest.mark.anyio, pytest.mark.pure]

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
REPORT = json.dumps({"name": "d", "free": -1000}).encode()
(PORT,) = free_ports(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cluster_of("a", fakes={"d": PORT}) as found:
        yield found


@dataclass
class PlayedNode:
    """Answers probes, and every other request with `answer`, or by closing the connection."""

    answer: bytes = OK
    heads: list[bytes] = field(default_factory=list)
    searches: list[bytes] = field(default_factory=list)

    talks: set[asyncio.Task[object] | None] = field(default_factory=set)

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.talks.add(asyncio.current_task())
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if b"/v1/cluster/node" in head:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(REPORT), REPORT))
            elif b"/v1/cluster/has" in head:
                self.searches.append(head)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfalse")
            else:
                self.heads.append(head)
                for at in range(0, len(self.answer), 1 << 16):
                    writer.write(self.answer[at : at + (1 << 16)])
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def played(answer: bytes = OK) -> AsyncIterator[PlayedNode]:
    node = PlayedNode(answer)
    listener = socket.create_server(("127.0.0.1", PORT))
    server = await asyncio.start_server(node.talk, sock=listener)
    try:
        yield node
    finally:
        server.close()
        await server.wait_closed()
        await asyncio.wait(filter(None, node.talks))


def workers(cluster: Cluster) -> list[int]:
    return [pid for pid, role in cluster["a"].children().items() if role == "worker"]


async def ask(cluster: Cluster, path: str, *, method: str = "GET", body: bytes | None = None) -> Reply:
    port = urlsplit(cluster["a"].url).port
    assert port is not None
    async with connect(port) as client:
        return await client.ask(path, method=method, body=body, Authorization=f"Bearer {API_KEY}", X_Mine="1")


async def ask_until_up(cluster: Cluster, path: str) -> Reply:
    """Ask until every worker has seen that the node is there: two answers of each of two."""
    while True:
        replies = [await ask(cluster, path) for _ in range(8)]
        if all(reply.status == 200 for reply in replies):
            return replies[0]
        await asyncio.sleep(0.1)


async def test_a_hop_has_the_peer_key_in_the_place_of_the_callers(cluster: Cluster) -> None:
    path = f"/v1/sandboxes/{new_id(code_of('d'))}/usage"
    async with played() as node:
        await ask_until_up(cluster, path)
    head = node.heads[-1].lower()
    assert head.startswith(f"get {path} http/1.1\r\n".encode())
    assert API_KEY.encode() not in head
    assert b"authorization" not in head
    assert b"\r\ncove-peer: %b\r\n" % cluster.peer_key.lower().encode() in head
    assert b"\r\ncove-hop: vouched\r\n" in head
    assert b"\r\nx-mine: 1\r\n" in head


async def test_what_a_lost_node_may_have_read_is_not_sent_again(cluster: Cluster) -> None:
    path = f"/v1/sandboxes/{new_id(code_of('d'))}/exec"
    async with played() as node:
        await ask_until_up(cluster, path)
        node.answer = b""
        node.heads.clear()
        reply = await ask(cluster, path, method="POST", body=b"{}")
        assert (reply.status, json.loads(reply.body)["code"]) == (502, "NODE_LOST")
        assert json.loads(reply.body)["details"] == {"node": "d"}
        assert len(node.heads) == 1


async def test_a_node_that_is_restarted_is_waited_for(cluster: Cluster) -> None:
    path = f"/v1/sandboxes/{new_id(code_of('d'))}/usage"
    async with played():
        await ask_until_up(cluster, path)
    waiting = owned(ask(cluster, path))
    done, _ = await asyncio.wait([waiting], timeout=0.3)
    assert not done
    async with played():
        assert (await waiting).status == 200


async def test_a_sandbox_that_is_nowhere_is_searched_once_and_not_found(cluster: Cluster) -> None:
    path = f"/v1/sandboxes/{new_id(code_of('d'))}/usage"
    async with played() as node:
        await ask_until_up(cluster, path)
        node.answer = b"HTTP/1.1 421 Misdirected Request\r\ncove-refused: 1\r\ncontent-length: 2\r\n\r\n{}"
        node.heads.clear()
        reply = await ask(cluster, path)
        assert (reply.status, json.loads(reply.body)["code"]) == (404, "SANDBOX_NOT_FOUND")
        assert len(node.heads) == 1


async def test_what_a_service_answers_with_the_status_of_a_refusal_is_passed_on(cluster: Cluster) -> None:
    """However long it is: nothing of it is kept."""
    path = f"/v1/sandboxes/{new_id(code_of('d'))}/usage"
    async with played() as node:
        await ask_until_up(cluster, path)
        size = 8 << 20
        node.answer = b"HTTP/1.1 421 Misdirected Request\r\ncontent-length: %d\r\n\r\n%b" % (size, b"x" * size)
        reply = await ask(cluster, path)
        assert (reply.status, len(reply.body)) == (421, size)


async def test_a_refusal_without_an_end_is_kept_within_bounds(cluster: Cluster) -> None:
    path = f"/v1/sandboxes/{new_id(code_of('d'))}/usage"
    async with played() as node:
        await ask_until_up(cluster, path)
        size = 64 << 20
        head = b"HTTP/1.1 421 Misdirected Request\r\ncove-refused: 1\r\ncontent-length: %d\r\n\r\n" % size
        node.answer = head + b"x" * size
        before = max(map(resident_bytes, workers(cluster)))
        assert (await ask(cluster, path)).status == 404
        assert max(map(resident_bytes, workers(cluster))) < before + size // 2


async def test_who_shows_no_key_has_few_searches_and_none_soon_again(cluster: Cluster) -> None:
    async with played() as node:
        await ask_until_up(cluster, f"/v1/sandboxes/{new_id(code_of('d'))}/usage")
        port = urlsplit(cluster["a"].url).port
        assert port is not None

        async def guess(id: str) -> int:
            async with connect(port) as client:
                return (await client.ask("/files", E2b_Sandbox_Id=id)).status

        node.searches.clear()
        assert set(await together(guess("made-up") for _ in range(40))) == {502}
        assert len(node.searches) <= 8  # four at a time of each of two workers
