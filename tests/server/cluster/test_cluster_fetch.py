"""Images and snapshots of one node are used on another: fetched by digest, once, and refused when they are wrong."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypedDict

import pytest
from support.busybox import needs_busybox, write_busybox
from support.clusters import API_KEY, Cluster, cluster_of
from support.image_files import Item
from support.servers import Server

from cove import AsyncImage, AsyncSandbox, AsyncSnapshot, SnapshotNotFound
from cove.images.whole_layer import pack_whole
from cove.layers.digest import Hashing
from cove.layers.store import LayerStore
from cove.server.cluster.shipment import Holding, find_holding, find_record
from cove.tasks import together

pytestmark = [pytest.mark.anyio, needs_busybox]

OWNED = Item("srv/owned", b"text", uid=1234, gid=33, mode=0o640)
ROOM = 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cluster_of("a", "b", settings=f"max_sandboxes = {ROOM}") as found:
        yield found


class Where(TypedDict):
    url: str
    api_key: str


def where(server: Server) -> Where:
    return Where(url=server.url, api_key=API_KEY)


async def load(server: Server, path: Path, name: str, *more: Item) -> AsyncImage:
    """Load an image on that node alone."""
    archive = await asyncio.to_thread(write_busybox, path / "image.tar", OWNED, *more, settings={"Env": ["PATH=/bin"]})
    return await AsyncImage.load(archive, name=name, **where(server))


@asynccontextmanager
async def filled(cluster: Cluster, node: str, **fields: object) -> AsyncIterator[list[AsyncSandbox]]:
    """Fill that node, which is the first to get what stands on what it has."""
    made = [await cluster[node].create(None, **fields) for _ in range(ROOM)]
    try:
        assert {cluster.node_of(each.id) for each in made} == {node}
        yield made
    finally:
        await together(each.destroy() for each in made)


async def held(cluster: Cluster, node: str, noun: str, name: str) -> Holding | None:
    return await asyncio.to_thread(find_holding, cluster.homes[node], noun, name, "")


async def layers(cluster: Cluster, node: str, noun: str, name: str) -> dict[str, str]:
    """The layers of what a node has, and their digests as they are on disk, whatever was noted."""
    return await asyncio.to_thread(_digests, cluster.homes[node], noun, name)


def _digests(home: Path, noun: str, name: str) -> dict[str, str]:
    found = {}
    for id in find_record(home, noun, name, "").layers:
        hashing = Hashing(lambda _: None)
        pack_whole(LayerStore(home), id, hashing, lambda: None)
        found[id] = hashing.digest
    return found


async def test_an_image_is_fetched_where_the_node_that_has_it_is_full(cluster: Cluster, tmp_path: Path) -> None:
    image = await load(cluster["a"], tmp_path, "fetched:1")
    async with filled(cluster, "a", image="fetched:1") as made:
        first = (await made[0].exec("ls -ldn /srv/owned /var/web /bin; ls -lan /")).stdout
        async with AsyncSandbox.create(**where(cluster["b"]), image="fetched:1") as other:
            assert cluster.node_of(other.id) == "b"
            assert (await other.exec("cat /srv/owned")).stdout == "text"
            assert (await other.exec("ls -ldn /srv/owned /var/web /bin; ls -lan /")).stdout.splitlines()[:3] == (
                first.splitlines()[:3]
            )
    there = await layers(cluster, "a", "image", "fetched:1")
    assert len(there) == 2
    assert await layers(cluster, "b", "image", "fetched:1") == there
    listed = [each.name for each in await AsyncImage.list(**where(cluster["b"]))]
    assert listed.count(image.name) == 1
    await (await AsyncImage.get("fetched:1", **where(cluster["b"]))).delete()
    assert [await held(cluster, node, "image", "fetched:1") for node in "ab"] == [None, None]


async def test_a_snapshot_on_an_image_is_fetched_with_its_image_and_sessions(cluster: Cluster, tmp_path: Path) -> None:
    image = await load(cluster["a"], tmp_path, "under:1")
    async with AsyncSandbox.create(**where(cluster["a"]), image="under:1") as made:
        session = await made.create_session(id="kept")
        await session.exec("export SAID=hello; cd /srv")
        await made.exec("echo more > /srv/more; chown 7:8 /srv/more; echo mine > /workspace/file; rm /srv/owned")
        shown = (await made.exec("ls -ln /srv /workspace")).stdout
        snapshot = await made.snapshot()
        digest = await snapshot.digest()
    async with (
        filled(cluster, "a", snapshot=snapshot.id),
        AsyncSandbox.create(**where(cluster["b"]), snapshot=snapshot.id) as other,
    ):
        assert cluster.node_of(other.id) == "b"
        assert (await other.exec("ls -ln /srv /workspace")).stdout == shown
        back = await other.get_session("kept")
        assert (await back.exec("echo $SAID $PWD")).stdout == "hello /srv\n"
    assert await held(cluster, "b", "snapshot", snapshot.id) == Holding(id=snapshot.id, origin="a")
    there = await layers(cluster, "a", "snapshot", snapshot.id)
    assert len(there) == 3
    assert await layers(cluster, "b", "snapshot", snapshot.id) == there
    again = await AsyncSnapshot.get(snapshot.id, **where(cluster["b"]))
    assert await again.digest() == digest
    await again.delete()
    assert await held(cluster, "b", "snapshot", snapshot.id) is None
    await image.delete()


async def test_a_sandbox_goes_back_to_a_snapshot_that_another_node_has(cluster: Cluster) -> None:
    first = await cluster["a"].create(None)
    has = cluster.node_of(first.id)
    await first.exec("echo kept > /workspace/file")
    await (await first.create_session(id="kept")).exec("SAID=hello")
    snapshot = await first.snapshot()
    other = await on_other(cluster, has)
    await other.exec("echo mine > /workspace/file; echo more > /workspace/more")
    node = cluster.node_of(other.id)
    for name in (has, node):
        through = await cluster[name].connect(other.id)
        await through.restore(snapshot.id)
        assert (await through.exec("cat file; ls")).stdout == "kept\nfile\n"
        assert (await (await through.get_session("kept")).exec("echo $SAID")).stdout == "hello\n"
        await through.exec("rm file")
    assert await held(cluster, node, "snapshot", snapshot.id) == Holding(id=snapshot.id, origin=has)
    with pytest.raises(SnapshotNotFound):
        await other.restore("nosuchsnapshot")
    await together(each.destroy() for each in (first, other))
    await snapshot.delete()


async def on_other(cluster: Cluster, node: str) -> AsyncSandbox:
    """A sandbox on another node than that."""
    while cluster.node_of((made := await cluster[node].create(None)).id) == node:
        await made.destroy()
    return made
