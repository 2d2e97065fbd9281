"""What a server's configuration grants to network policies, and what stays when sandboxes stop."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from support.servers import Server, serving
from support.serving import address
from support.upstream import Upstream, running_upstream

from cove import AsyncSandbox, NetworkPolicy, NetworkRule, PermissionDenied, Secret

pytestmark = pytest.mark.anyio

SECRET = "a-secret-of-the-server"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    with running_upstream(tmp_path) as upstream:
        monkeypatch.setenv("SSL_CERT_FILE", str(upstream.ca))
        monkeypatch.setenv("SERVERS_TOKEN", SECRET)
        yield upstream


@pytest.fixture
def server(world: Upstream, tmp_path: Path, other_home: Path) -> Iterator[Server]:
    configuration = tmp_path / "cove.toml"
    configuration.write_text(f"""
warm = 1
[network]
resolver = "{world.resolver}"
private = ["db.example", "api.example"]
[network.secrets.TOKEN]
env = "SERVERS_TOKEN"
hosts = ["api.example"]
""")
    with serving(other_home, "--on-stop", "destroy", "--config", str(configuration)) as running:
        yield running


async def test_a_private_address_needs_the_configuration(server: Server, world: Upstream) -> None:
    port = world.serve_http("db.example", "other.example")
    allowed = NetworkPolicy(allow=[NetworkRule(f"db.example:{port}", private=True)])
    refused = NetworkPolicy(allow=[NetworkRule(f"other.example:{port}", private=True)])
    with pytest.raises(PermissionDenied, match=r"other\.example"):
        await AsyncSandbox.create(network=refused, **address(server))
    async with AsyncSandbox.create(network=allowed, **address(server)) as sandbox:
        command = ["curl", "-sS", f"http://db.example:{port}/"]
        assert (await sandbox.exec(command)).stdout == "hello"
        with pytest.raises(PermissionDenied, match=r"other\.example"):
            await sandbox.set_network(refused)
        assert (await sandbox.exec(command)).stdout == "hello"


async def test_a_secret_of_the_server_goes_where_its_definition_says(server: Server, world: Upstream) -> None:
    port = world.serve_http("api.example", tls=True)
    for host, name in (("db.example", "TOKEN"), ("api.example", "OTHER")):
        rule = NetworkRule(f"{host}:{port}", private=True, inject={"X-Key": Secret(name)})
        with pytest.raises(PermissionDenied, match=name):
            await AsyncSandbox.create(network=NetworkPolicy(allow=[rule]), **address(server))
    rule = NetworkRule(f"api.example:{port}", private=True, inject={"X-Key": Secret("TOKEN")})
    async with AsyncSandbox.create(network=NetworkPolicy(allow=[rule]), **address(server)) as sandbox:
        result = await sandbox.exec(["curl", "-sS", f"https://api.example:{port}/"])
        assert result.stdout == "hello", result.stderr
        assert f"x-key: {SECRET}".encode() in world.requests[0]
        assert SECRET not in repr(await sandbox.info())
    for path in server.home.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert SECRET.encode() not in path.read_bytes(), path


async def test_metrics_have_the_totals_of_each_sandbox_as_its_usage_has_them(server: Server, world: Upstream) -> None:
    port = world.serve_http("db.example", body=b"x" * 1000)
    policy = NetworkPolicy(allow=[NetworkRule(f"db.example:{port}", private=True)])
    async with AsyncSandbox.create(network=policy, **address(server)) as sandbox:
        assert len((await sandbox.exec(["curl", "-sS", f"http://db.example:{port}/"])).stdout) == 1000
        assert not (await sandbox.exec(["curl", "-sS", "http://other.example/"])).ok
        usage = await sandbox.usage()
        assert (usage.network_connections, usage.network_requests, usage.network_refused) == (1, 0, 1)
        request = Request(f"{server.url}/metrics", headers={"Authorization": f"Bearer {server.key}"})
        with await asyncio.to_thread(urlopen, request) as answer:
            lines = answer.read().decode().splitlines()
        for name in ("sent_bytes", "received_bytes", "connections", "requests", "refused"):
            expected = getattr(usage, f"network_{name}")
            assert f'cove_sandbox_network_{name}_total{{sandbox="{sandbox.id}"}} {expected}' in lines


async def test_a_changed_policy_is_there_after_a_restart(server: Server, world: Upstream) -> None:
    port = world.serve_http("db.example")
    async with AsyncSandbox.create(**address(server)) as sandbox:
        await sandbox.set_network(NetworkPolicy(allow=[NetworkRule(f"db.example:{port}", private=True)]))
        await sandbox.restart()
        assert (await sandbox.exec(["curl", "-sS", f"http://db.example:{port}/"])).stdout == "hello"
