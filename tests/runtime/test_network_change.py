"""A change of policy is whole or not at all: cancelled, beside another, under load, or when a part of it fails."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cancellation import cancel_after
from support.upstream import Upstream, running_upstream

from cove import AsyncSandbox, NetworkPolicy, NetworkRule, Output
from cove.runtime import network as network_module
from cove.runtime.life import NoKeeper
from cove.runtime.sandbox_lifecycle import SandboxLifecycle

pytestmark = pytest.mark.anyio

NAMES = ("a.example", "b.example")
LOAD = """
import socket, sys, threading
def load(name, port):
    while True:
        try:
            with socket.create_connection((name, port), timeout=5) as sock:
                sock.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
                sock.recv(100)
        except OSError:
            pass
for number in range(8):
    threading.Thread(target=load, args=(sys.argv[1 + number % 2], int(sys.argv[3 + number % 2]))).start()
print("loading", flush=True)
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    with running_upstream(tmp_path) as upstream:
        monkeypatch.setenv("COVE_RESOLVER", upstream.resolver)
        monkeypatch.setenv("SSL_CERT_FILE", str(upstream.ca))
        yield upstream


def rule(name: str, port: int, **fields: object) -> NetworkRule:
    return NetworkRule(f"{name}:{port}", private=True, **fields)  # type: ignore[arg-type]  # named by NetworkRule


def policies(world: Upstream) -> tuple[dict[str, int], dict[str, NetworkPolicy]]:
    """Two hosts, and a policy for each alone."""
    ports = {name: world.serve_http(name) for name in NAMES}
    return ports, {name: NetworkPolicy(allow=[rule(name, port)]) for name, port in ports.items()}


async def reached(sandbox: AsyncSandbox, ports: dict[str, int]) -> list[str]:
    """The names that can be reached."""
    urls = [f"http://{name}:{port}/" for name, port in ports.items()]
    answers = [(await sandbox.exec(["curl", "-s", "--max-time", "20", url])).stdout for url in urls]
    return [name for name, answer in zip(ports, answers, strict=True) if answer == "hello"]


async def recorded(sandbox: AsyncSandbox) -> list[str]:
    """The names that the sandbox says it may reach."""
    network = (await sandbox.info()).spec.network
    assert isinstance(network, NetworkPolicy)
    return [each.target.name for each in network.rules]


async def test_of_changes_at_once_one_holds_and_is_recorded(world: Upstream) -> None:
    ports, policy = policies(world)
    async with AsyncSandbox.create(network=policy["a.example"]) as sandbox:
        await asyncio.gather(*(sandbox.set_network(policy[NAMES[number % 2]]) for number in range(10)))
        assert await reached(sandbox, ports) == await recorded(sandbox)


async def test_a_cancelled_change_is_whole_or_not_at_all(world: Upstream) -> None:
    ports, policy = policies(world)
    async with AsyncSandbox.create(network=policy["a.example"]) as sandbox:
        for turns in (0, 1, 2, 5, 20, 100):
            for name in ("b.example", "a.example"):
                await cancel_after(turns, sandbox.set_network(policy[name]), times=2)
            assert await reached(sandbox, ports) == await recorded(sandbox)


async def test_a_change_that_cannot_be_recorded_is_taken_back(world: Upstream) -> None:
    ports, policy = policies(world)
    async with AsyncSandbox.create(network=policy["a.example"]) as sandbox:
        assert isinstance(sandbox, SandboxLifecycle)

        class Full(NoKeeper):
            async def keep(self) -> None:
                raise OSError("no space left on device")

        sandbox.life.keeper = Full()
        with pytest.raises(OSError, match="no space"):
            await sandbox.set_network(policy["b.example"])
        assert await reached(sandbox, ports) == await recorded(sandbox) == ["a.example"]


async def test_a_change_whose_trust_cannot_be_set_up_is_taken_back(
    world: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports, policy = policies(world)

    def fail(_: Path, __: str) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(network_module, "write_bundle", fail)
    async with AsyncSandbox.create(network=policy["a.example"]) as sandbox:
        with pytest.raises(OSError, match="no space"):
            await sandbox.set_network(NetworkPolicy(allow=[rule("b.example", ports["b.example"], methods=["GET"])]))
        assert await reached(sandbox, ports) == await recorded(sandbox) == ["a.example"]


async def test_a_policy_holds_for_all_when_its_change_returns_also_under_load(world: Upstream) -> None:
    ports, policy = policies(world)
    async with AsyncSandbox.create(network=policy["a.example"]) as sandbox:
        load = await sandbox.start_process(["python3", "-c", LOAD, *NAMES, *(str(ports[name]) for name in NAMES)])
        await load.wait_for_log("loading", timeout=30)
        for number in range(1, 7):
            await sandbox.set_network(policy[NAMES[number % 2]])
            assert await reached(sandbox, ports) == [NAMES[number % 2]]
        await load.kill()


@pytest.mark.parametrize(
    "stricter", [{"methods": ["GET"]}, {"private": False}], ids=["its requests are judged", "it may not lead inside"]
)
async def test_an_open_connection_ends_when_it_would_be_carried_otherwise(
    world: Upstream, stricter: dict[str, object]
) -> None:
    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"open\n")
        await reader.read()
        writer.close()

    port = world.serve(hold, "hold.example")
    async with AsyncSandbox.create(network=NetworkPolicy(allow=[rule("hold.example", port)])) as sandbox:
        code = f"import socket; s = socket.create_connection(('hold.example', {port})); print(s.recv(9)); s.recv(9)"
        process = await sandbox.start_process(["python3", "-u", "-c", code])
        await process.wait_for_log("open", timeout=30)
        await sandbox.set_network(NetworkPolicy(allow=["other.example", rule("hold.example", port)]))
        assert (await process.refresh()).status == "running"
        fields = {"private": True} | stricter
        await sandbox.set_network(NetworkPolicy(allow=[NetworkRule(f"hold.example:{port}", **fields)]))  # type: ignore[arg-type]  # named by NetworkRule
        await process.wait(timeout=30)
        logs = b"".join([event.data async for event in process.logs() if isinstance(event, Output)])
        assert b"ConnectionResetError" in logs
