"""Sandboxes are made where their volumes are, or refused; a fetch whose node is killed is begun anew."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
from support.busybox import needs_busybox, write_busybox
from support.clusters import API_KEY, Cluster, cluster_of, free_ports
from support.e2b_client import E2bClient
from support.image_files import Item
from support.images import open_store
from support.raw_http import connect
from support.servers import eventually
from support.shipping_nodes import PlayedSource, played_source

from cove import AsyncSandbox, AsyncVolume, ConnectionLost, SandboxUnavailable, VolumeNotFound
from cove.core.cluster import code_of
from cove.errors import NoCapacity, PlacementUnavailable, ValidationFailed
from cove.model import BucketMount, SandboxSpec, VolumeMount
from cove.model.cluster import Member
from cove.server.cluster.holdings import Holdings
from cove.server.cluster.nodes import Nodes
from cove.server.cluster.peer import PeerClient, PeerKey
from cove.server.cluster.shipment import find_holding
from cove.server.cluster.suitability import Suitability, Suitable
from cove.server.cluster.whereabouts import Whereabouts
from cove.tasks import end, owned, together

pytestmark = pytest.mark.anyio

(PORT,) = free_ports(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cluster_of("a", "b", settings="max_sandboxes = 2", fakes={"d": PORT}) as found:
        yield found


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The state directory of the node that the test plays, with an image."""
    home = tmp_path / "there"
    home.mkdir()
    large = Item("srv/large", bytes(range(256)) * (8 << 10))
    archive = write_busybox(tmp_path / "image.tar", large, settings={"Env": ["PATH=/bin"]})
    open_store(home).load(Path(archive), "played")
    return home


@pytest.fixture
async def source(cluster: Cluster, there: Path) -> AsyncIterator[PlayedSource]:
    async with played_source(there, cluster.peer_key, PORT) as (played, _):
        await until_seen(cluster)
        yield played


async def until_seen(cluster: Cluster) -> None:
    """Wait until all workers of the nodes ask it: lists name who is not asked, or does not answer."""
    for node, server in cluster.servers.items():
        port = urlsplit(server.url).port
        assert port is not None
        answered = 0
        while answered < 8:
            async with connect(port) as client:
                reply = await client.ask("/v1/images", Authorization=f"Bearer {API_KEY}")
            answered = answered + 1 if "cove-unreachable" not in reply.headers else 0
            await asyncio.sleep(0.02 if answered else 0.1)
        assert node in cluster.homes


async def create(cluster: Cluster, node: str, **fields: object) -> AsyncSandbox:
    return await cluster[node].create(None, **fields)


@needs_busybox
async def test_a_source_that_is_lost_in_the_middle_is_told_and_the_next_creation_works(
    cluster: Cluster, source: PlayedSource
) -> None:
    source.most = 1 << 20
    with pytest.raises(PlacementUnavailable, match="played"):
        await create(cluster, "a", image="played")
    source.most = None
    made = await together(create(cluster, node, image="played") for node in "aabb")
    try:
        assert sorted(cluster.node_of(each.id) for each in made) == ["a", "a", "b", "b"]
        shown = [await each.exec("ls /srv") for each in made]
        assert [each.stdout for each in shown] == ["large\n"] * 4
    finally:
        await together(each.destroy() for each in made)


@pytest.mark.cluster
@needs_busybox
async def test_a_node_that_is_killed_in_the_middle_of_a_fetch_begins_anew(there: Path) -> None:
    (port,) = free_ports(1)
    with cluster_of("a", fakes={"d": port}) as cluster:
        async with played_source(there, cluster.peer_key, port) as (source, _):
            await until_seen(cluster)
            source.most, source.stalls = 1 << 20, asyncio.Event()
            making = owned(create(cluster, "a", image="played"))
            await source.stalled.wait()
            await eventually(lambda: is_building(cluster.homes["a"]))
            await asyncio.to_thread(cluster["a"].kill_all)
            with suppress(ConnectionLost):  # it may try again before it is ended
                await end(making)
            cluster.stop("a")
            source.most = None
            source.stalls.set()
            await asyncio.to_thread(cluster.start, "a")
            await until_seen(cluster)
            assert await asyncio.to_thread(find_holding, cluster.homes["a"], "image", "played", "") is None
            made = await create(cluster, "a", image="played")
            assert (await made.exec("ls /srv")).stdout == "large\n"
            await made.destroy()
            assert not await asyncio.to_thread(is_building, cluster.homes["a"])


def is_building(home: Path) -> bool:
    return any(path.name.startswith(".new-") for path in (home / "layers").iterdir())


@needs_busybox
async def test_a_template_of_e2b_is_the_image_of_another_node(cluster: Cluster, source: PlayedSource) -> None:
    def use() -> None:
        with E2bClient(cluster["a"]).sandbox(templateID="played") as inside:
            assert inside.send("GET", "/files?path=/srv/large").status == 200
        assert E2bClient(cluster["a"]).call("POST", "/v2/sandboxes", {"templateID": "nothing"}).status == 404

    await asyncio.to_thread(use)


async def test_a_sandbox_is_made_where_its_volume_is_and_nowhere_else(cluster: Cluster, source: PlayedSource) -> None:
    where = {"url": cluster["b"].url, "api_key": API_KEY}
    await AsyncVolume.create("kept", **where)  # type: ignore[arg-type]  # of strings
    mounts = [VolumeMount(volume="kept", target="/kept")]
    made = [await create(cluster, "a", mounts=mounts) for _ in range(2)]
    try:
        assert [cluster.node_of(each.id) for each in made] == ["b", "b"]
        await made[0].exec("echo text > /kept/file")
        assert (await made[1].exec("cat /kept/file")).stdout == "text\n"
        with pytest.raises(NoCapacity, match="node b, which has the volumes"):
            await create(cluster, "a", mounts=mounts)
    finally:
        await together(each.destroy() for each in made)
    await (await AsyncVolume.get("kept", **where)).delete()
    with pytest.raises(VolumeNotFound):
        await create(cluster, "a", mounts=mounts)


async def test_nothing_is_made_while_the_node_that_may_have_the_volume_is_away(cluster: Cluster) -> None:
    mounts = [VolumeMount(volume="elsewhere", target="/kept")]
    with pytest.raises(PlacementUnavailable, match="no node that answers has the volume elsewhere") as refused:
        await create(cluster, "a", mounts=mounts, labels={"made": "no"})
    assert isinstance(refused.value, SandboxUnavailable)
    where = {"url": cluster["b"].url, "api_key": API_KEY}
    assert await AsyncSandbox.list(labels={"made": "no"}, **where) == []


@pytest.mark.pure
async def test_draining_and_volumes_of_several_nodes_bind_and_buckets_do_not(tmp_path: Path) -> None:
    found = Played(tmp_path, {"a": ["one", "both"], "b": ["two", "both"]})
    assert (await found.rank("one")).nodes == ["a"]
    assert sorted((await found.rank("both")).nodes) == ["a", "b"]
    assert (await found.rank("both", "two")).nodes == ["b"]
    with pytest.raises(ValidationFailed, match="no node has them all"):
        await found.rank("one", "two")
    bucket = BucketMount(url="s3://bucket", endpoint="https://s3.example", target="/data")
    free = await found.suitability.rank(SandboxSpec(mounts=(bucket,)))
    assert (sorted(free.nodes), free.is_bound) == (["a", "b"], False)
    found.nodes.members["a"] = msgspec.structs.replace(found.nodes.members["a"], is_draining=True)
    with pytest.raises(PlacementUnavailable, match="on node a, which takes no new sandboxes"):
        await found.rank("one")


class Played(Whereabouts):
    """Nodes that say which volumes they have."""

    def __init__(self, home: Path, volumes: dict[str, list[str]]) -> None:
        client = PeerClient(PeerKey("key"))
        self.nodes = Nodes(home, client, lambda _: None)
        self.nodes.members = {
            name: Member(name=name, address="http://192.0.2.1", code=code_of(name)) for name in volumes
        }
        self.volumes = volumes
        self.suitability = Suitability(self.nodes, self, Holdings(home, self.nodes, client))

    async def holders(self, noun: str, name: str, tenant: str | None) -> tuple[list[str], bool]:
        return [node for node, names in self.volumes.items() if name in names], True

    async def rank(self, *volumes: str) -> Suitable:
        mounts = tuple(VolumeMount(volume=name, target=f"/{name}") for name in volumes)
        return await self.suitability.rank(SandboxSpec(mounts=mounts))
