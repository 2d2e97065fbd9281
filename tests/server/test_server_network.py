"""What a server's configuration grants to network policies, and what stays when sandboxes stop."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import msgspec
import pytest
from support.busybox import needs_busybox, write_busybox
from support.servers import Server, serving
from support.serving import address
from support.tenants import Tenant, tenant
from support.upstream import Upstream, running_upstream

from cove import (
    AsyncImage,
    AsyncSandbox,
    BuildEvent,
    BuildOutput,
    Network,
    NetworkPolicy,
    NetworkRule,
    PermissionDenied,
    Quota,
    Secret,
    ValidationFailed,
)

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
headers = ["X-Key"]
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


async def test_the_preset_leads_to_no_private_address_that_is_not_listed(server: Server, world: Upstream) -> None:
    port = world.serve_http("db.example", "mirror.example")
    rules = [NetworkRule(f"{name}:{port}", private=True) for name in ("db.example", "mirror.example")]
    (server.home / "packages.json").write_bytes(msgspec.json.encode(rules))
    policy = NetworkPolicy(allow=["packages"])
    async with AsyncSandbox.create(network=policy, **address(server)) as sandbox:
        assert (await sandbox.exec(["curl", "-sS", f"http://db.example:{port}/"])).stdout == "hello"
        refused = await sandbox.exec(["curl", "-sS", f"http://mirror.example:{port}/"])
        assert "is a private address" in refused.denied[0].reason
        assert f"packages: mirror.example:{port}: a private address" in " ".join((await sandbox.info()).warnings)
    assert len(world.requests) == 1
    denying = await tenant(
        server, "denying", quota=Quota(network=NetworkPolicy(allow=["packages"], deny=["db.example"]))
    )
    with pytest.raises(PermissionDenied, match=r"denies db\.example"):
        await denying.create(network=policy)
    sandbox = await denying.create(network=NetworkPolicy(allow=["packages"], deny=["db.example"]))
    await sandbox.destroy()


async def test_a_secret_of_the_server_goes_where_its_definition_says(server: Server, world: Upstream) -> None:
    port = world.serve_http("api.example", tls=True)
    for host, name in (("db.example", "TOKEN"), ("api.example", "OTHER")):
        rule = NetworkRule(f"{host}:{port}", private=True, inject={"X-Key": Secret(name)})
        with pytest.raises(PermissionDenied, match=name):
            await AsyncSandbox.create(network=NetworkPolicy(allow=[rule]), **address(server))
    token = {"text": Secret("TOKEN")}
    for rule in (NetworkRule("api.example", inject=token), NetworkRule("api.example", query=token)):
        with pytest.raises(PermissionDenied, match="TOKEN may not be put into"):
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


@pytest.fixture
async def context(server: Server, tmp_path: Path) -> Path:
    """A directory of a build on an image that has wget."""
    await AsyncImage.load(write_busybox(tmp_path / "base.tar"), name="build-base", **address(server))
    (tmp_path / "context").mkdir()
    return tmp_path / "context"


async def build(context: Path, server: Server, command: str, key: str, network: Network | NetworkPolicy) -> str:
    """What a command of a build printed."""
    (context / "Dockerfile").write_text(f"FROM build-base\nRUN {command}\n")
    told: list[BuildEvent] = []
    await AsyncImage.build(
        str(context), name="made", network=network, cache=False, progress=told.append, url=server.url, api_key=key
    )
    return b"".join(each.data for each in told if isinstance(each, BuildOutput)).decode()


@needs_busybox
async def test_a_build_has_no_more_of_the_network_than_the_quota_of_its_tenant(
    server: Server, world: Upstream, context: Path
) -> None:
    port = world.serve_http("db.example", "api.example")
    policy = NetworkPolicy(allow=[NetworkRule(f"db.example:{port}", private=True)])
    narrow = await tenant(server, "narrow", quota=Quota(network=policy))
    command = f"wget -qO- http://db.example:{port}/"
    assert await build(context, server, command, narrow.key, policy) == "hello"
    nothing = await tenant(server, "nothing", quota=Quota(network=Network.NONE))
    other = NetworkPolicy(allow=[NetworkRule(f"api.example:{port}", private=True)])
    for key, network in ((nothing.key, policy), (nothing.key, Network.INTERNET), (narrow.key, other)):
        with pytest.raises(PermissionDenied, match="this key"):
            await build(context, server, command, key, network)


async def test_cassettes_are_a_tenants_own(server: Server, world: Upstream) -> None:
    port = world.serve_http("db.example", body=b"what a got")
    rule = NetworkRule(f"db.example:{port}", private=True)
    url = f"http://db.example:{port}/"
    a, b = await tenant(server, "a"), await tenant(server, "b")
    for each, asked in ((a, url), (b, f"{url}?by=b")):
        recording = await each.create(network=NetworkPolicy(allow=[rule], record="tape"))
        assert (await recording.exec(["curl", "-sS", asked])).stdout == "what a got"
        await recording.destroy()
    with pytest.raises(ValidationFailed, match="no cassette tape"):
        await Tenant(server, server.key).create(network=NetworkPolicy(allow=[rule], replay="tape"))
    for each, asked, others in ((a, url, f"{url}?by=b"), (b, f"{url}?by=b", url)):
        replaying = await each.create(network=NetworkPolicy(allow=[rule], replay="tape"))
        assert "has no answer left" in (await replaying.exec(["curl", "-sS", others])).stdout
        assert (await replaying.exec(["curl", "-sS", asked])).stdout == "what a got"
        await replaying.destroy()


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
