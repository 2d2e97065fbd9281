"""Requests to a cluster reach the node they are for, whichever node they come to."""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import urlsplit

import msgspec
import pytest
from support.bridge_client import BridgeClient
from support.clusters import API_KEY, NAMES, Cluster, cluster_of_three
from support.console_client import ConsoleClient, next_event
from support.e2b_client import E2bClient
from support.raw_http import Reply, connect
from support.servers import Server
from support.services import HTTP, start

from cove import AsyncSandbox, AsyncSnapshot, Output, SandboxAlreadyExists, SandboxDestroyed, SandboxNotFound
from cove.core.api_key import digest_of, new_key
from cove.core.cluster import claim_keepers, code_of, new_id
from cove.core.identifier import new_identifier
from cove.local.api_keys import ApiKeyRecord, ApiKeys, KeyState
from cove.model.cluster import Claim, Member
from cove.server.cluster.peer import Hop, PeerClient, PeerKey
from cove.server.cluster.static_placement import CLAIMS_PATH
from cove.server.sandboxes.members import read_members
from cove.tasks import together

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cluster_of_three() as found:
        yield found


@pytest.fixture
def members(cluster: Cluster) -> dict[str, Member]:
    found = read_members(cluster.homes["a"])
    assert found is not None
    return {each.name: each for each in found.members}


async def ask(server: Server, path: str, *, method: str = "GET", body: bytes | None = None, **headers: str) -> Reply:
    port = urlsplit(server.url).port
    assert port is not None
    async with connect(port) as client:
        named = {"Authorization": f"Bearer {API_KEY}", **headers}
        return await client.ask(path, method=method, body=body, **named)


async def test_a_sandbox_is_used_through_every_node(cluster: Cluster) -> None:
    made = await cluster["a"].create()
    node = cluster.node_of(made.id)
    for name in NAMES:
        sandbox = await cluster[name].connect(made.id)
        assert (await sandbox.exec("echo hello")).stdout == "hello\n"
        assert (await sandbox.info()).node == node
    await cluster.another(node).starter.destroy(made.id)  # of that state directory only
    assert (await made.info()).id == made.id
    await (await cluster.another(node).connect(made.id)).destroy()
    with pytest.raises(SandboxDestroyed):
        await made.info()


async def test_streams_and_websockets_go_through_another_node(cluster: Cluster) -> None:
    made = await cluster["a"].create()
    sandbox = await cluster.another(cluster.node_of(made.id)).connect(made.id)
    process = await sandbox.start_process("for i in 1 2 3; do echo $i; sleep 0.05; done")
    printed = [event.data async for event in process.logs() if isinstance(event, Output)]
    assert b"".join(printed) == b"1\n2\n3\n"
    content = bytes(range(256)) * 8192
    await sandbox.files.write("/workspace/large", content)
    assert await sandbox.files.read("/workspace/large") == content
    terminal = await sandbox.terminal(shell=["bash", "-c", "head -c 2 | tr a-z A-Z"])
    async with terminal.connect() as viewer:
        await viewer.write(b"ok\n")
        seen = [event.data async for event in viewer if isinstance(event, Output)]
        assert b"".join(seen).endswith(b"OK")
    await sandbox.destroy()


async def test_sandboxes_are_spread_and_one_list_has_them_all(cluster: Cluster) -> None:
    on_nodes: dict[str, AsyncSandbox] = {}
    while len(on_nodes) < len(NAMES):  # until each node has been the one with most room
        sandbox = await cluster["b"].create(labels={"test": "spread"})
        if on_nodes.setdefault(cluster.node_of(sandbox.id), sandbox) is not sandbox:
            await sandbox.destroy()
    made = list(on_nodes.values())
    for name in NAMES:
        where = {"url": cluster[name].url, "api_key": API_KEY}
        found = await AsyncSandbox.list(labels={"test": "spread"}, **where)
        assert {each.id for each in found} == {each.id for each in made}
        assert {each.node for each in found} == set(NAMES)
    text = (await ask(cluster["c"], "/metrics")).body.decode()
    counts = [line for line in text.splitlines() if line.startswith("cove_sandboxes{") and 'status="running"' in line]
    assert len(counts) == 3
    assert all(int(line.split()[-1]) >= 1 for line in counts)
    assert text.count("# TYPE cove_sandboxes ") == 1
    assert text.count("cove_node_up{") == 3
    await together(each.destroy() for each in made)


async def test_a_chosen_name_is_found_from_every_node_and_belongs_to_one(cluster: Cluster) -> None:
    made = await cluster["a"].create("chosen-one")
    node = (await made.info()).node
    for name in NAMES:
        assert (await (await cluster[name].connect("chosen-one")).info()).node == node
        with pytest.raises(SandboxAlreadyExists):
            await cluster[name].create("chosen-one")
        again = await AsyncSandbox.create(id="chosen-one", exist_ok=True, url=cluster[name].url, api_key=API_KEY)
        assert (await again.info()).node == node
    await (await cluster["c"].connect("chosen-one")).destroy()
    for name in NAMES:
        with pytest.raises(SandboxNotFound):
            await (await cluster[name].connect("chosen-one")).exec("true")
    assert not [path for home in cluster.homes.values() for path in (home / "claims").glob("[0-9a-f]*")]


async def test_of_creations_of_one_name_on_all_nodes_one_succeeds(cluster: Cluster) -> None:
    async def create(node: str, name: str) -> str | None:
        try:
            return (await (await cluster[node].create(name)).info()).node
        except SandboxAlreadyExists:
            return None

    for number in range(3):
        name = f"race-{number}"
        found = await together(create(node, name) for node in NAMES)
        assert len([node for node in found if node is not None]) == 1
        holding = [node for node in NAMES if await asyncio.to_thread(cluster[node].directory.entry(name).exists)]
        assert len(holding) == 1
        await (await cluster["a"].connect(name)).destroy()


async def test_of_nine_hundred_claims_on_three_hundred_names_each_name_has_one_winner(
    cluster: Cluster, members: dict[str, Member]
) -> None:
    known, client = members, PeerClient(PeerKey(cluster.peer_key))
    limit = asyncio.Semaphore(30)

    async def claim(name: str, node: str) -> Claim:
        keeper = claim_keepers(name, known.values())[0]
        body = json.dumps({"name": name, "node": node}).encode()
        async with limit:
            reply = await client.call(keeper, "PUT", CLAIMS_PATH, body, seconds=60)
        return Claim(**json.loads(reply.body))

    names = [f"name-{number}" for number in range(300)]
    found = await together(claim(name, node) for name in names for node in NAMES)
    winners = {(each.name, each.node, each.epoch) for each in found}
    assert len(winners) == 300

    async def free(name: str, node: str, epoch: int) -> int:
        body = json.dumps({"name": name, "node": node, "epoch": epoch}).encode()
        async with limit:
            keeper = claim_keepers(name, known.values())[0]
            return (await client.call(keeper, "DELETE", CLAIMS_PATH, body, seconds=60)).status

    assert set(await together(free(*each) for each in winners)) == {200}


@pytest.mark.parametrize(
    "headers",
    [
        {"cove_peer": "wrong"},
        {"cove_hop": "vouched"},
        {"cove_hop": "vouched", "cove_peer": "wrong"},
        {"cove_from": "1.2.3.4"},
    ],
)
async def test_who_is_no_node_cannot_pretend_to_be_one(cluster: Cluster, headers: dict[str, str]) -> None:
    reply = await ask(cluster["a"], "/v1/sandboxes", body=None, **headers)
    assert (reply.status, json.loads(reply.body)["code"]) == (403, "PERMISSION_DENIED")


async def test_a_hop_with_a_word_that_is_none_is_refused(cluster: Cluster) -> None:
    reply = await ask(cluster["a"], "/v1/sandboxes", cove_peer=cluster.peer_key, cove_hop="other")
    assert reply.status == 403


OF_NODES = [
    "/v1/cluster/node",
    "/v1/cluster/keys",
    "/v1/cluster/use",
    "/v1/cluster/claims",
    "/v1/cluster/moves/ask",
    "/v1/cluster/has/sandbox/x",
    "/v1/cluster/things/image/x",
    "/v1/cluster/shipments/image/x",
    "/v1/cluster/layers/x",
    "/v1/cluster/sessions/x",
]


@pytest.mark.parametrize("path", OF_NODES)
async def test_what_nodes_ask_each_other_no_client_may_ask(cluster: Cluster, path: str) -> None:
    assert (await ask(cluster["a"], path)).status == 404


@pytest.mark.parametrize("path", OF_NODES)
async def test_no_client_asks_it_in_the_name_of_a_sandbox_of_another_node(cluster: Cluster, path: str) -> None:
    """A request for what listens in a sandbox goes to its node with any path, and without a key of this server."""

    def use() -> None:
        client = E2bClient(cluster["a"])
        for id in (new_id(code_of("a")), new_id(code_of("b")), new_id(code_of("c"))):
            for headers in ({"E2b-Sandbox-Id": id}, {"Host": f"49983-{id}.localhost"}):
                for method in ("GET", "POST", "PUT", "DELETE"):
                    reply = client.send(method, path, b"{}", headers)
                    assert reply.status in (401, 403, 404, 502), (method, headers, reply)

    await asyncio.to_thread(use)


async def test_no_client_gives_a_node_a_key(cluster: Cluster) -> None:
    handle = new_identifier()
    key = new_key(handle)
    record = ApiKeyRecord(
        name="mallory",
        tenant="",
        handle=handle,
        digest=digest_of(key),
        created_at=datetime.now(UTC),
        is_admin=True,
        version=1,
    )
    body = msgspec.json.encode(KeyState(keys=(record,)))
    for name in ("b", "c"):
        await ask(cluster["a"], "/v1/cluster/keys", method="POST", body=body, e2b_sandbox_id=new_id(code_of(name)))
    for home in cluster.homes.values():
        assert not await asyncio.to_thread(list, ApiKeys(home).read())
    listing = "/v1/sandboxes"
    for name in NAMES:
        assert (await ask(cluster[name], listing, Authorization=f"Bearer {key}")).status == 401


async def test_a_client_without_the_key_gets_nothing_through_another_node(cluster: Cluster) -> None:
    made = await cluster["a"].create()
    another = urlsplit(cluster.another(cluster.node_of(made.id)).url).port
    assert another is not None
    async with connect(another) as client:
        assert (await client.ask(f"/v1/sandboxes/{made.id}")).status == 401
    async with connect(another) as client:
        assert (await client.ask(f"/v1/sandboxes/{made.id}", Authorization="Bearer wrong")).status == 401
    await made.destroy()


async def test_there_is_no_second_hop(cluster: Cluster, members: dict[str, Member]) -> None:
    made = await cluster["a"].create()
    node = cluster.node_of(made.id)
    another = next(each for name, each in members.items() if name != node)
    client = PeerClient(PeerKey(cluster.peer_key))
    reply = await client.call(another, "GET", f"/v1/sandboxes/{made.id}", seconds=20, hop=Hop.VOUCHED)
    assert reply.status == 421
    reply = await client.call(members[node], "GET", f"/v1/sandboxes/{made.id}", seconds=20, hop=Hop.VOUCHED)
    assert reply.status == 200
    carried = await client.call(members[node], "GET", f"/v1/sandboxes/{made.id}", seconds=20, hop=Hop.CARRIED)
    assert carried.status == 401
    await made.destroy()


async def test_a_preview_is_seen_through_another_node_which_tells_the_service_no_key(cluster: Cluster) -> None:
    made = await cluster["a"].create()
    await start(made, HTTP, 3000)
    exposed = await made.ports.expose(3000)
    another = cluster.another(cluster.node_of(made.id))
    port = json.loads((another.home / "server" / "preview.json").read_bytes())["base"].rpartition(":")[2]
    label = urlsplit(exposed.url).netloc.partition(".")[0]
    async with connect(int(port)) as client:
        reply = await client.ask(f"/{label}/headers", X_Mine="yes", cove_peer="forged")
    assert reply.status == 200, reply.body
    assert cluster.peer_key.encode() not in reply.body
    seen = {name.lower(): value for name, value in json.loads(reply.body)["headers"]}
    assert not [name for name in seen if name.startswith("cove")]
    assert (seen["x-mine"], seen["x-forwarded-for"]) == ("yes", "127.0.0.1")
    async with connect(int(port)) as client:
        assert (await client.ask(f"/{label[:-1]}/headers")).status == 404
    await made.destroy()


async def test_the_bridge_works_through_every_node(cluster: Cluster) -> None:
    def use() -> None:
        made = BridgeClient(cluster["a"])
        by_id = json.loads(made.send("POST", "/v1/sandbox", b"{}").body)["id"]
        for id in (by_id, made.id):
            for name in NAMES:
                client = BridgeClient(cluster[name], id)
                assert client.shell(f"echo {name} >> /workspace/who; cat /workspace/who").exit_code == 0
            assert BridgeClient(cluster["b"], id).shell("cat /workspace/who").stdout == b"a\nb\nc\n"
            BridgeClient(cluster["c"], id).delete()

    await asyncio.to_thread(use)


async def test_an_id_of_the_bridge_whose_claim_outlived_its_sandbox_is_used_again(
    cluster: Cluster, members: dict[str, Member]
) -> None:
    id = next(name for name in map("lab".__mul__, range(1, 40)) if claim_keepers(name, members.values())[0].name == "b")
    client = PeerClient(PeerKey(cluster.peer_key))
    await client.call(members["b"], "PUT", CLAIMS_PATH, json.dumps({"name": id, "node": "c"}).encode(), seconds=60)

    def use() -> None:
        for name in NAMES:
            assert BridgeClient(cluster[name], id).shell(f"echo {name} >> /workspace/who").exit_code == 0
        assert BridgeClient(cluster["a"], id).shell("cat /workspace/who").stdout == b"a\nb\nc\n"
        BridgeClient(cluster["a"], id).delete()

    await asyncio.to_thread(use)


async def test_clients_of_e2b_work_through_every_node(cluster: Cluster) -> None:
    def use() -> None:
        with E2bClient(cluster["a"]).sandbox() as inside, E2bClient(cluster["a"]).sandbox() as other:
            for name in NAMES:
                inside.client = E2bClient(cluster[name])
                assert inside.send("GET", "/health").status == 204
                assert inside.send("GET", "/files?path=/etc/hostname").status == 200
                assert inside.send("GET", "/files?path=/etc/hostname", token="wrong").status == 401
                listed = E2bClient(cluster[name]).call("GET", "/v2/sandboxes").json
                found = [each["sandboxID"] for each in listed]
                assert {inside.id, other.id} <= set(found)
                reply = E2bClient(cluster[name]).call("GET", "/v2/sandboxes?limit=1")
                pages = [each["sandboxID"] for each in reply.json]
                while token := reply.headers.get("x-next-token", ""):
                    reply = E2bClient(cluster[name]).call("GET", f"/v2/sandboxes?limit=1&nextToken={token}")
                    pages += [each["sandboxID"] for each in reply.json]
                assert pages == found
                assert E2bClient(cluster[name]).call("GET", f"/sandboxes/{inside.id}").status == 200

    await asyncio.to_thread(use)


async def test_a_sandbox_is_made_where_its_snapshot_is(cluster: Cluster) -> None:
    made = await cluster["a"].create()
    await made.exec("echo kept > /workspace/file")
    snapshot = await made.snapshot()
    node = cluster.node_of(made.id)
    another = cluster.another(node)
    copies = await together(another.create(snapshot=snapshot.id) for _ in range(3))
    for copy in copies:
        assert cluster.node_of(copy.id) == node
        assert (await copy.exec("cat /workspace/file")).stdout == "kept\n"
    await together(each.destroy() for each in (made, *copies))
    where = {"url": another.url, "api_key": API_KEY}
    assert snapshot.id in [each.id for each in await AsyncSnapshot.list(**where)]  # type: ignore[arg-type]  # of strings
    await (await AsyncSnapshot.get(snapshot.id, **where)).delete()
    assert snapshot.id not in [each.id for each in await AsyncSnapshot.list(**where)]  # type: ignore[arg-type]  # of strings


@pytest.mark.cluster
async def test_a_session_of_mcp_is_used_through_every_node(cluster: Cluster) -> None:
    pytest.importorskip("mcp")
    accepts = {"Accept": "application/json, text/event-stream", "Content_Type": "application/json"}
    facts = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": facts}
    begun = await ask(cluster["a"], "/mcp", method="POST", body=json.dumps(begin).encode(), **accepts)
    assert begun.status == 200, begun.body
    session = {"Mcp_Session_Id": begun.headers["mcp-session-id"], "Mcp_Protocol_Version": "2025-06-18"}
    node = cluster.node_of(session["Mcp_Session_Id"].partition(".")[0])
    another = cluster.another(node)
    told = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()
    assert (await ask(another, "/mcp", method="POST", body=told, **accepts, **session)).status == 202
    wanted = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}).encode()
    tools = await ask(another, "/mcp", method="POST", body=wanted, **accepts, **session)
    assert b"run_command" in tools.body
    assert (await ask(another, "/mcp", method="DELETE", body=None, **accepts, **session)).status in (200, 204)


async def test_the_console_of_a_node_shows_and_reaches_what_another_has(cluster: Cluster) -> None:
    made = await cluster["a"].create()
    server = cluster.another(cluster.node_of(made.id))
    client = ConsoleClient(server)
    assert await client.log_in(API_KEY) == 204
    assert (await client.session())["is_cluster"] is True
    assert await client.status(f"/v1/sandboxes/{made.id}") == 200
    async with client.stream("/v1/console/events", cove_console="1") as connection:
        assert (await connection.head()).status == 200
        _, snapshot = await next_event(connection)
        rows = {row["id"]: row for row in snapshot["sandboxes"]}  # type: ignore[attr-defined]
        assert rows[made.id]["node"] == cluster.node_of(made.id)
    status = json.loads((await client.ask("/v1/console/server", cove_console="1")).body)
    nodes = {node["name"]: node for node in status["nodes"]}
    assert nodes.keys() == cluster.servers.keys()
    assert [cluster[name] for name, node in nodes.items() if node["is_here"]] == [server]
    assert nodes[cluster.node_of(made.id)]["facts"]["sandboxes"] >= 1
    assert all(node["state"] == "up" and node["free"] > 0 for node in nodes.values())
    assert (await client.ask("/console/logout", method="POST")).status == 204
    assert await client.status(f"/v1/sandboxes/{made.id}") == 401
    await made.destroy()
