"""What admins are told of their server and its nodes, and nobody else."""

import json
from pathlib import Path

import msgspec
import pytest
from support.console_client import ConsoleClient
from support.servers import Server, eventually, serving

from cove import AsyncApiKey
from cove.core.cluster import code_of
from cove.model.cluster import Member, Members
from cove.server.cluster.nodes import Health, NodeState, Report
from cove.server.console.server_status import NodeFacts, describe_machine, describe_server
from cove.server.sandboxes.members import write_members
from cove.server.sandboxes.warm_pool import WarmPool

pytestmark = pytest.mark.anyio

SERVER, NODE = "/v1/console/server", "/v1/console/node"


async def nodes_of(server: Server, key: str) -> list[dict[str, object]]:
    client = ConsoleClient(server)
    assert await client.log_in(key) == 204
    reply = await client.ask(SERVER, cove_console="1")
    assert reply.status == 200, reply.body
    found: list[dict[str, object]] = json.loads(reply.body)["nodes"]
    return found


async def test_an_admin_sees_the_machine_the_room_and_the_warm_pool(other_home: Path, tmp_path: Path) -> None:
    settings = tmp_path / "cove.toml"
    settings.write_text("max_sandboxes = 5\n")
    with serving(other_home, "--config", str(settings), "--warm", "1") as server:
        await eventually(lambda: WarmPool(server.directory).count_all() == 1)
        sandbox = await server.create("warm")
        await eventually(lambda: WarmPool(server.directory).count_all() == 1)
        [node] = await nodes_of(server, server.key)
        facts = node["facts"]
        assert isinstance(facts, dict)
        assert (node["name"], node["is_here"], node["state"], node["free"]) == (None, True, "up", 4)
        assert (facts["sandboxes"], facts["max_sandboxes"]) == (1, 5)
        assert facts["warm"] == [{"image": None, "wanted": 1, "waiting": 1}]
        assert (facts["warm_hits"], facts["warm_misses"]) == (1, 0)
        machine = facts["machine"]
        assert 0 < machine["memory_available_bytes"] <= machine["memory_bytes"]
        assert 0 < machine["disk_free_bytes"] <= machine["disk_bytes"]
        assert machine["cpus"] >= 1
        await sandbox.destroy()


async def test_a_tenant_is_told_nothing_of_the_server(other_home: Path) -> None:
    with serving(other_home) as server:
        tenant = await AsyncApiKey.create("tenant", url=server.url, api_key=server.key)
        admin = await AsyncApiKey.create("admin", url=server.url, api_key=server.key, is_admin=True)
        client, other = ConsoleClient(server), ConsoleClient(server)
        assert await client.log_in(tenant.key) == 204
        assert await other.log_in(admin.key) == 204
        for path in (SERVER, NODE):
            assert await client.status(path) == 403
            assert await ConsoleClient(server).status(path) == 401
            assert await other.status(path) == 200
            assert await other.status(path, cove_tenant="tenant") == 200
            assert await other.status(path, method="POST") == 405
            # A tenant who names another is refused as for anything else.
            assert await client.status(path, cove_tenant="admin") == 403
        assert [(each["name"], each["free"]) for each in await nodes_of(server, admin.key)] == [(None, None)]


def test_a_node_that_is_down_is_told_with_why(tmp_path: Path) -> None:
    nodes = ("a", "b", "c")
    members = tuple(Member(name=name, address=f"http://{name}:8787", code=code_of(name)) for name in nodes)
    draining = msgspec.structs.replace(members[2], is_draining=True)
    write_members(tmp_path, Members(node="b", members=(*members[:2], draining)))
    (tmp_path / "server").mkdir()
    health = {
        "a": Health(state=NodeState.DOWN, problem="nobody is there", report=Report(name="a", free=3)),
        "b": Health(report=Report(name="b", free=2)),
        "c": Health(report=Report(name="c", free=9)),
    }
    (tmp_path / "server" / "nodes.json").write_bytes(msgspec.json.encode(health))
    here, there = (
        NodeFacts(
            name=name,
            version="1",
            sandboxes=1,
            max_sandboxes=None,
            machine=describe_machine(tmp_path),
            warm=[],
            warm_hits=0,
            warm_misses=0,
        )
        for name in ("b", "c")
    )
    told = [
        (each.name, each.is_here, each.state, each.free, each.is_draining, each.problem, each.facts)
        for each in describe_server(tmp_path, [here, there]).nodes
    ]
    assert told == [
        ("b", True, NodeState.UP, 2, False, "", here),
        ("a", False, NodeState.DOWN, 3, False, "nobody is there", None),
        ("c", False, NodeState.UP, 9, True, "", there),
    ]
