"""Keys and tenants in a cluster: one key for all nodes, whichever of them is asked, and what is hidden stays so."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.clusters import API_KEY, Cluster, cluster_of
from support.e2b_client import E2bClient
from support.raw_http import Reply, connect
from support.servers import Server
from support.tenants import Tenant, check_all_hidden, things

from cove import AsyncApiKey, AsyncSandbox, AsyncSnapshot, Quota
from cove.api import Process
from cove.errors import ConnectionLost, LimitExceeded, PermissionDenied, SandboxNotFound, Unauthorized
from cove.model import JournalKind

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cluster_of("a", "b", "c") as found:
        yield found


@pytest.fixture
def other_cluster() -> Iterator[Cluster]:
    """One whose nodes a test ends and starts."""
    with cluster_of("a", "b", "c") as found:
        yield found


@pytest.fixture(autouse=True)
async def workers_know_their_cluster(cluster: Cluster) -> None:
    """Every worker of every node takes keys: at first they may not have heard of most others."""
    key = await made_on(cluster, "a", "first")
    async with asyncio.timeout(30):
        for each in cluster.servers.values():
            while any([(await ask(Tenant(each, key), "/v1/volumes")).status != 200 for _ in range(12)]):
                await asyncio.sleep(0.05)


@pytest.fixture(autouse=True)
async def no_keys_left(cluster: Cluster) -> AsyncIterator[None]:
    yield
    where = {"url": cluster["a"].url, "api_key": API_KEY}
    for info in await AsyncApiKey.list(**where):
        await AsyncApiKey.delete(info.name, **where)


async def made_on(cluster: Cluster, node: str, name: str, **options: object) -> str:
    made = await AsyncApiKey.create(name, url=cluster[node].url, api_key=API_KEY, **options)  # type: ignore[arg-type]
    return made.key


async def two_tenants(cluster: Cluster) -> tuple[dict[str, Tenant], dict[str, Tenant]]:
    ours, theirs = [await made_on(cluster, "a", name) for name in ("ours", "theirs")]
    return through(cluster, ours), through(cluster, theirs)


def through(cluster: Cluster, key: str) -> dict[str, Tenant]:
    return {name: Tenant(server, key) for name, server in cluster.servers.items()}


@asynccontextmanager
async def sandbox_of(tenant: Tenant, id: str) -> AsyncIterator[tuple[AsyncSandbox, str]]:
    """A sandbox, and the node that has it."""
    async with AsyncSandbox.create(id=id, url=tenant.server.url, api_key=tenant.key) as sandbox:
        node = (await sandbox.info()).node
        assert node is not None
        yield sandbox, node


async def ask(tenant: Tenant, path: str, method: str = "GET", **headers: str) -> Reply:
    port = urlsplit(tenant.server.url).port
    assert port is not None
    async with connect(port) as client:
        shown = {"Authorization": f"Bearer {tenant.key}", **headers}
        return await client.ask(path, method=method, body=None, **shown)


async def test_a_key_of_one_node_holds_on_all_with_ids_of_its_own(cluster: Cluster) -> None:
    ours, theirs = await two_tenants(cluster)
    async with (
        sandbox_of(ours["b"], "x") as (own, node),
        sandbox_of(theirs["c"], "x") as (other, _),
        sandbox_of(Tenant(cluster["a"], API_KEY), "x") as (admins, _),
    ):
        for sandbox, text in ((own, "ours"), (other, "theirs"), (admins, "admin")):
            await sandbox.files.write("who", text)
        for name in cluster.servers:
            for tenants, text in ((ours, "ours"), (theirs, "theirs")):
                found = await tenants[name].connect("x")
                assert await found.files.read_text("who") == text
                assert (await found.info()).owner == text
                assert await tenants[name].ids() == ["x"]
            assert await Tenant(cluster[name], API_KEY).ids() == ["x", "x", "x"]
        far = next(name for name in cluster.servers if name != node)
        await (await ours[far].connect("x")).exec("true")
        keys = {event.key async for event in own.journal() if event.kind in (JournalKind.CREATED, JournalKind.EXEC)}
        assert keys == {"ours"}


async def test_no_operation_reaches_what_is_anothers_through_another_node(cluster: Cluster) -> None:
    ours, theirs = await two_tenants(cluster)
    async with things(ours["a"]) as own:
        node = (await (await ours["a"].connect(own["sandbox"])).info()).node
        other = next(name for name in cluster.servers if name != node)
        await check_all_hidden(theirs[other], own)
        assert await theirs[other].ids() == []
        assert own["sandbox"] not in (await ask(theirs[other], "/metrics")).body.decode()
        assert await ours[other].ids() == [own["sandbox"]]
        assert (await (await ours[other].connect(own["sandbox"])).exec("cat f")).stdout == "kept\n"


async def test_nobody_but_a_node_says_for_whom_a_request_is(cluster: Cluster) -> None:
    ours, theirs = await two_tenants(cluster)
    async with sandbox_of(ours["a"], "x") as (_, node):
        for name in cluster.servers:
            assert (await ask(theirs[name], "/v1/sandboxes/x", Cove_As="ours/ours")).status == 403
            assert (await ask(theirs[name], "/v1/sandboxes/x", Cove_Hop="vouched", Cove_As="ours/ours")).status == 403
            assert (await ask(theirs[name], "/v1/sandboxes/x", Cove_Tenant="ours")).status == 404
            admin = Tenant(cluster[name], API_KEY)
            assert (await ask(admin, "/v1/sandboxes/x", Cove_Tenant="ours")).status == 200
            assert (await ask(admin, "/v1/sandboxes/x")).status == 404
        far = next(name for name in cluster.servers if name != node)
        for path in ("/v1/keys", "/v1/journals", "/v1/journals/abcdefghijkl"):
            assert (await ask(ours[far], path)).status == 403  # what is an admin's alone, on whichever node


async def test_a_sandbox_that_comes_stands_on_no_layer_of_another_tenant(cluster: Cluster, tmp_path: Path) -> None:
    async with AsyncSandbox.create(url=cluster["a"].url, api_key=API_KEY) as made:
        await made.exec("echo of both > shared")
        snapshot = await made.snapshot()
        await snapshot.export(tmp_path / "whole.tar")
        await snapshot.delete()
    ours, theirs = await two_tenants(cluster)
    there = await AsyncSnapshot.load(tmp_path / "whole.tar", url=theirs["b"].server.url, api_key=theirs["b"].key)
    here = await AsyncSnapshot.load(tmp_path / "whole.tar", url=ours["a"].server.url, api_key=ours["a"].key)
    async with AsyncSandbox.create(snapshot=here.id, url=ours["a"].server.url, api_key=ours["a"].key) as moved:
        assert (await moved.info()).node == "a"
        await moved.stop()
        await moved.move("b")
        layers = cluster.homes["b"] / "layers"
        assert len(await asyncio.to_thread(lambda: list(layers.glob("*/data/workspace/shared")))) == 2
    for each in (there, here):
        await each.delete()


async def test_a_key_revoked_on_one_node_ends_what_is_open_on_all(cluster: Cluster) -> None:
    ours = through(cluster, await made_on(cluster, "a", "ours"))
    sandbox = await ours["a"].create("x")
    process = await sandbox.start_process("sleep 300")
    streams = [
        asyncio.ensure_future(follow(await (await ours[name].connect("x")).get_process(process.id)))
        for name in cluster.servers
    ]
    await AsyncApiKey.delete("ours", url=cluster["b"].url, api_key=API_KEY)
    for tenant in ours.values():
        assert (await ask(tenant, "/v1/sandboxes")).status == 401
    for stream in streams:
        with pytest.raises((Unauthorized, ConnectionLost)):
            await asyncio.wait_for(stream, 20)
    admin = Tenant(cluster["c"], API_KEY)
    assert (await ask(admin, "/v1/sandboxes/x", "DELETE", Cove_Tenant="ours")).status == 204


async def follow(process: Process) -> None:
    async for _ in process.logs(follow=True):
        pass


async def test_a_node_that_was_away_hears_what_it_missed(other_cluster: Cluster) -> None:
    cluster = other_cluster
    old = await made_on(cluster, "a", "old")
    await asyncio.to_thread(cluster.stop, "b")
    gone = await ask(Tenant(cluster["a"], API_KEY), "/v1/keys/old", "DELETE")
    assert (gone.status, gone.headers["cove-unreachable"]) == (204, "b")
    new = await AsyncApiKey.create("new", url=cluster["c"].url, api_key=API_KEY)
    server = await asyncio.to_thread(cluster.start, "b")
    async with asyncio.timeout(20):
        while (await ask(Tenant(server, old), "/v1/sandboxes")).status != 401:
            await asyncio.sleep(0.05)
        while (await ask(Tenant(server, new.key), "/v1/sandboxes")).status != 200:
            await asyncio.sleep(0.05)


async def test_a_token_of_one_node_is_used_through_all_and_ends_with_its_sandbox(cluster: Cluster) -> None:
    ours = through(cluster, await made_on(cluster, "a", "ours"))
    async with sandbox_of(ours["a"], "x") as (sandbox, _):
        await sandbox.files.write("/tmp/f", "kept")
        token = await (await ours["b"].connect("x")).token(["files.read", "get_sandbox"])
        link = urlsplit(await (await ours["c"].connect("x")).signed_url("/tmp/f"))
        for name, server in cluster.servers.items():
            limited = await AsyncSandbox.connect("x", url=server.url, api_key=token)
            assert await limited.files.read_text("/tmp/f") == "kept"
            with pytest.raises(PermissionDenied):
                await limited.exec("true")
            reply = await ask(Tenant(cluster[name], "none"), f"{link.path}?{link.query}")
            assert (reply.status, reply.body) == (200, b"kept")
            # Its last character says four bits: B is never one.
            assert (await ask(Tenant(server, token[:-1] + "B"), "/v1/sandboxes/x")).status == 401
    for server in cluster.servers.values():
        with pytest.raises((Unauthorized, SandboxNotFound)):
            await AsyncSandbox.connect("x", url=server.url, api_key=token)


async def test_journals_of_destroyed_sandboxes_are_found_through_every_node(cluster: Cluster) -> None:
    made = [await cluster["a"].create(f"gone-{number}") for number in range(3)]
    for sandbox in made:
        await sandbox.destroy()
    where = {"api_key": API_KEY}
    for server in cluster.servers.values():
        listed = [each for each in await AsyncSandbox.list_destroyed(url=server.url, **where) if "gone" in each.id]
        assert {each.id for each in listed} == {"gone-0", "gone-1", "gone-2"}
        for each in listed:
            assert (await ask(Tenant(server, API_KEY), f"/v1/journals/{each.key}")).status == 200
        assert (await ask(Tenant(server, API_KEY), "/v1/journals/abcdefghijkl")).status == 404


async def test_a_quota_is_never_exceeded_by_nodes_that_create_at_once(cluster: Cluster) -> None:
    key = await made_on(cluster, "a", "ours", quota=Quota(max_sandboxes=3))
    ours = list(through(cluster, key).values())
    tried = await asyncio.gather(*(ours[n % 3].create(f"s{n}") for n in range(9)), return_exceptions=True)
    made = [each for each in tried if isinstance(each, AsyncSandbox)]
    refused = [each for each in tried if isinstance(each, BaseException)]
    assert len(made) == 3
    assert all(isinstance(each, LimitExceeded) and "max_sandboxes" in str(each) for each in refused), refused
    for tenant in ours:
        with pytest.raises(LimitExceeded):
            await tenant.create("more")
    await made[0].stop()
    another = await ours[1].create("more")
    with pytest.raises(LimitExceeded):
        await (await ours[2].connect(made[0].id)).start()
    await another.destroy()
    await made[0].start()
    for sandbox in made:
        await sandbox.destroy()


async def test_e2bs_clients_reach_what_is_their_tenants_through_another_node(cluster: Cluster) -> None:
    ours, theirs = [await made_on(cluster, "a", name) for name in ("ours", "theirs")]
    await asyncio.to_thread(use_e2b, cluster, ours, theirs)


def use_e2b(cluster: Cluster, ours: str, theirs: str) -> None:
    with E2bClient(as_tenant(cluster, "a", ours)).sandbox() as sandbox:
        for name in cluster.servers:
            own, other = (E2bClient(as_tenant(cluster, name, key)) for key in (ours, theirs))
            assert [each["sandboxID"] for each in own.call("GET", "/v2/sandboxes").json] == [sandbox.id]
            assert other.call("GET", "/v2/sandboxes").json == []
            assert own.call("GET", f"/sandboxes/{sandbox.id}").status == 200
            assert other.call("GET", f"/sandboxes/{sandbox.id}").status == 404


def as_tenant(cluster: Cluster, node: str, key: str) -> Server:
    return dataclasses.replace(cluster[node], key=key)
