"""`cove serve --cluster auto` where Ray runs already; and what is left of a cluster when all of Ray is gone."""

import asyncio
import json
import secrets
import time
from collections.abc import Iterator

import pytest
from support.cluster_clients import BACK_SECONDS, ENGINE_SECONDS, until, working
from support.cluster_machines import API_KEY, ClusterMachine, MachineCluster, common_settings, needs_machines
from support.ray_machines import (
    has_agent,
    kill_all,
    machines_with_ray,
    members_of,
    pids_of,
    room_of,
    wait_until,
)

from cove import AsyncSandbox, CoveError, PlacementUnavailable

pytestmark = [pytest.mark.anyio, pytest.mark.pure, pytest.mark.cluster, needs_machines, pytest.mark.timeout(500)]

BLOCK = 4
AT_ONCE = 5.0


@pytest.fixture
def cluster() -> Iterator[MachineCluster]:
    with machines_with_ray("ab") as made:
        token = made["a"].home.parent / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        for machine in made.machines.values():
            machine.environment |= {
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN_PATH": str(token),
                "RAY_TMPDIR": str(machine.home),
            }
            machine.configuration.write_text(
                f"{common_settings(machine)}[cluster]\nnode = {machine.name!r}\n[cluster.ray]\nblock_slots = {BLOCK}\n"
            )
            machine.command = ["serve", "--cluster", "auto", "--config", str(machine.configuration)]
            machine.start()
        start_ray(made)
        for machine in made.machines.values():
            wait_until(lambda m=machine: members_of(m) == {"a", "b"} and has_agent(m), "both nodes know one another")  # type: ignore[misc]  # mypy infers no lambda with defaults
        with made.switch.inside():
            yield made


def start_ray(cluster: MachineCluster) -> None:
    """Start it as somebody would who knows nothing of Cove but its resource."""
    for machine in cluster.machines.values():
        port = ["--head", "--port=6379", "--include-dashboard=false"]
        where = port if machine.name == "a" else [f"--address={cluster['a'].address}:6379"]
        more = [f"--node-ip-address={machine.address}", "--object-store-memory=80000000", "--disable-usage-stats"]
        resources = f"--resources={json.dumps({'cove': 32})}"
        machine.start_python("-m", "ray.scripts.scripts", "start", "--block", *where, resources, *more)
        wait_until(lambda m=machine: bool(pids_of(m, "raylet/raylet")), "there is a raylet")  # type: ignore[misc]  # mypy infers no lambda with defaults


def ray_pids(machine: ClusterMachine) -> set[int]:
    found = [pids_of(machine, word) for word in ("/ray/", "ray.scripts.scripts", "ray::")]
    return set().union(*found) - pids_of(machine, "cove.server.ray_agent")


async def test_what_ray_granted_goes_on_when_all_of_it_is_gone(cluster: MachineCluster) -> None:
    done = await asyncio.to_thread(cluster["a"].cove, "doctor", "--cluster", "--json")
    assert {each["status"] for each in json.loads(done.stdout)} == {"ok"}, done.stdout
    async with working(cluster) as clients:
        named = await AsyncSandbox.create(id="named", url=cluster["a"].url, api_key=API_KEY)
        for machine in cluster.machines.values():
            kill_all(await asyncio.to_thread(ray_pids, machine))
        await until(lambda: not any(has_agent(machine) for machine in cluster.machines.values()), ENGINE_SECONDS)
        made = await fill(cluster)
        assert len(made) >= 1
        began = time.monotonic()
        with pytest.raises(PlacementUnavailable):
            await AsyncSandbox.create(id="another", url=cluster["a"].url, api_key=API_KEY)
        assert time.monotonic() - began < AT_ONCE
        for client in clients.values():
            assert client.is_unharmed, (client.ends, client.long_end, client.log_end)
        ids = {named.id, *(each.id for each in made), *(client.sandbox.id for client in clients.values())}
        for machine in cluster.machines.values():
            await asyncio.to_thread(machine.kill_server)
            machine.start()
            await asyncio.to_thread(machine.wait_until_up)
        for machine in cluster.machines.values():
            async with asyncio.timeout(BACK_SECONDS):
                while await listed(machine) != ids:
                    await asyncio.sleep(0.1)
            found = await AsyncSandbox.connect(named.id, url=machine.url, api_key=API_KEY)
            assert (await found.exec("echo hello")).stdout == "hello\n"
        await asyncio.to_thread(start_ray, cluster)
        await until(lambda: all(has_agent(machine) for machine in cluster.machines.values()), ENGINE_SECONDS)
        more = await AsyncSandbox.create(id="another", url=cluster["a"].url, api_key=API_KEY)
        for each in (more, named, *made):
            await each.destroy()


async def fill(cluster: MachineCluster) -> list[AsyncSandbox]:
    """Make sandboxes in room that was granted, until one is refused at once."""
    made: list[AsyncSandbox] = []
    granted = sum(room_of(machine) for machine in cluster.machines.values())
    while True:
        began = time.monotonic()
        try:
            made.append(await AsyncSandbox.create(url=cluster["a"].url, api_key=API_KEY))
        except PlacementUnavailable:
            assert time.monotonic() - began < AT_ONCE
            return made
        assert len(made) <= granted


async def listed(machine: ClusterMachine) -> set[str]:
    try:
        return {info.id for info in await AsyncSandbox.list(url=machine.url, api_key=API_KEY)}
    except CoveError:
        return set()
