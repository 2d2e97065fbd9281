"""A cluster on Ray, of three machines: what clients see while machines, servers and parts of Ray fail, and how long."""

import asyncio
import json
from collections.abc import Iterator

import pytest
from support.cluster_clients import (
    ENGINE_SECONDS,
    Client,
    lose_a_machine_of_a_fleet,
    lose_and_return,
    restart_servers,
    until,
    until_in_thread,
    working,
)
from support.cluster_machines import API_KEY, ClusterMachine, MachineCluster, needs_machines
from support.ray_machines import kill_all, pids_of, ray_cluster, room_of

from cove import AsyncSandbox, CoveError, NodeUnavailable, SandboxAlreadyExists

pytestmark = [pytest.mark.anyio, pytest.mark.pure, pytest.mark.cluster, needs_machines, pytest.mark.timeout(500)]

BLOCK = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[MachineCluster]:
    with ray_cluster(block_slots=BLOCK) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_leaks() -> None:
    """The machines are the same for all tests here: what starts again on one belongs to none. All ends with them."""


async def create(cluster: MachineCluster, through: str, id: str | None = None) -> AsyncSandbox:
    return await AsyncSandbox.create(id=id, url=cluster[through].url, api_key=API_KEY)


async def outcome_of(coming: "asyncio.Future[AsyncSandbox]") -> AsyncSandbox | CoveError:
    try:
        return await coming
    except CoveError as error:
        return error


def is_whole(cluster: MachineCluster) -> bool:
    """Whether every agent answers, and all machines are alive for the Ray that it is connected to."""
    return all(alive_for(machine) == set(cluster.machines) for machine in cluster.machines.values())


def alive_for(machine: ClusterMachine) -> set[str]:
    done = machine.cove("cluster", "status", "--json")
    nodes = json.loads(done.stdout)["nodes"] if done.returncode == 0 else []
    return {each["member"]["name"] for each in nodes if each["is_alive"]}


async def all_go_on(clients: dict[str, Client]) -> None:
    """Wait until each has done more, and nothing of it has failed."""
    before = {name: (client.done, len(client.lines)) for name, client in clients.items()}

    def have_done_more() -> bool:
        return all(c.done >= before[n][0] + 5 and len(c.lines) >= before[n][1] + 5 for n, c in clients.items())

    await until(have_done_more)
    for client in clients.values():
        assert client.is_unharmed, (client.ends, client.long_end, client.log_end)


async def test_many_that_come_at_once_all_get_room(cluster: MachineCluster) -> None:
    made = await asyncio.gather(*(create(cluster, "abc"[number % 3]) for number in range(24)))
    assert len({sandbox.id for sandbox in made}) == 24
    assert sum(room_of(machine) for machine in cluster.machines.values()) >= 24
    await asyncio.gather(*(sandbox.destroy() for sandbox in made))


async def test_of_many_who_claim_a_name_one_gets_it(cluster: MachineCluster) -> None:
    """The others are told so, or, while who has claimed it has no room yet, that nothing was started."""
    names = [f"name-{number}" for number in range(8)]
    tries = [(name, through) for name in names for through in "abc"]
    found = await asyncio.gather(
        *(outcome_of(asyncio.ensure_future(create(cluster, through, name))) for name, through in tries)
    )
    winners = [each for each in found if isinstance(each, AsyncSandbox)]
    assert sorted(sandbox.id for sandbox in winners) == names
    refused = [each for each in found if isinstance(each, CoveError)]
    assert all(isinstance(each, SandboxAlreadyExists | NodeUnavailable) for each in refused), refused
    for name, through in tries:
        with pytest.raises(SandboxAlreadyExists):
            await create(cluster, through, name)
    listed = [info.id for info in await AsyncSandbox.list(url=cluster["a"].url, api_key=API_KEY)]
    assert sorted(listed) == names
    for sandbox in winners:
        await sandbox.destroy()


@pytest.mark.parametrize("process", ["cove.server.ray_agent", "raylet/raylet"])
async def test_a_killed_part_of_ray_comes_back_and_nobody_notices(cluster: MachineCluster, process: str) -> None:
    async with working(cluster) as clients:
        machine = cluster["b"]
        before, granted = await asyncio.to_thread(pids_of, machine, process), room_of(machine)
        kill_all(before)
        await until_in_thread(lambda: bool(pids_of(machine, process) - before) and is_whole(cluster))
        await until(lambda: room_of(machine) == granted, ENGINE_SECONDS)
        await all_go_on(clients)


async def test_a_killed_head_comes_back_and_nobody_notices(cluster: MachineCluster) -> None:
    """Sandboxes are made meanwhile, in room that was granted; names are claimed again afterwards."""
    async with working(cluster) as clients:
        named = await create(cluster, "c", "kept-name")
        granted = {name: room_of(machine) for name, machine in cluster.machines.items()}
        before = await asyncio.to_thread(pids_of, cluster["a"], "gcs_server")
        kill_all(before)
        made = await create(cluster, "c")
        await all_go_on(clients)
        await until_in_thread(lambda: bool(pids_of(cluster["a"], "gcs_server") - before) and is_whole(cluster))
        await until(lambda: all(room_of(cluster[name]) >= most for name, most in granted.items()), ENGINE_SECONDS)
        with pytest.raises(SandboxAlreadyExists):
            await create(cluster, "b", named.id)
        await all_go_on(clients)
        await made.destroy()
        await named.destroy()


async def test_a_node_that_drains_keeps_what_it_has_and_gets_nothing_new(cluster: MachineCluster) -> None:
    async with working(cluster) as clients:
        assert (await asyncio.to_thread(cluster["a"].cove, "cluster", "drain", "b")).returncode == 0
        await until(lambda: all(is_draining(machine, "b") for machine in cluster.machines.values()))
        made = [await create(cluster, "abc"[number % 3]) for number in range(6)]
        assert {(await sandbox.info()).node for sandbox in made} <= {"a", "c"}
        assert (await asyncio.to_thread(cluster["c"].cove, "cluster", "drain", "b", "--undo")).returncode == 0
        await until(lambda: not any(is_draining(machine, "b") for machine in cluster.machines.values()))
        await until(lambda: room_of(cluster["b"]) > 0)
        await all_go_on(clients)
        for sandbox in made:
            await sandbox.destroy()


async def test_a_node_that_is_drained_with_move_has_no_sandbox_left(cluster: MachineCluster) -> None:
    id = await named_on(cluster, "b")
    through = await AsyncSandbox.connect(id, url=cluster["c"].url, api_key=API_KEY)
    await through.exec("echo kept > file")
    drain = ("cluster", "drain", "b", "--move", "--stop", "--url", cluster["a"].url, "--api-key", API_KEY)
    done = await asyncio.to_thread(cluster["a"].cove, *drain)
    assert done.returncode == 0, done.stderr
    assert (await through.info()).node in ("a", "c")
    assert (await through.exec("cat file")).stdout == "kept\n"
    with pytest.raises(SandboxAlreadyExists):
        await create(cluster, "b", id)
    await through.destroy()
    assert (await asyncio.to_thread(cluster["a"].cove, "cluster", "drain", "b", "--undo")).returncode == 0
    await until(lambda: not any(is_draining(machine, "b") for machine in cluster.machines.values()))
    await until(lambda: room_of(cluster["b"]) > 0)


@pytest.mark.parametrize("event", ["cut", "stop_all", "kill"])
async def test_a_machine_that_is_lost_ends_what_it_did_in_time_and_comes_back(
    cluster: MachineCluster, event: str
) -> None:
    named = await named_on(cluster, "b")

    def is_back() -> bool:
        return is_whole(cluster) and room_of(cluster["b"]) > 0

    await lose_and_return(cluster, event, back=is_back)
    with pytest.raises(SandboxAlreadyExists):
        await create(cluster, "a", named)
    await (await AsyncSandbox.connect(named, url=cluster["c"].url, api_key=API_KEY)).destroy()


async def test_a_server_that_is_killed_and_started_again_breaks_only_what_was_in_flight(
    cluster: MachineCluster,
) -> None:
    await restart_servers(cluster)
    await until_in_thread(lambda: is_whole(cluster))


async def test_the_doctor_finds_nothing_wrong(cluster: MachineCluster) -> None:
    await until_in_thread(lambda: is_whole(cluster))
    for machine in cluster.machines.values():
        done = await asyncio.to_thread(machine.cove, "doctor", "--cluster", "--json")
        checks = {each["name"]: each["status"] for each in json.loads(done.stdout)}
        assert checks == dict.fromkeys(("agent", "token", "Ray", "ports", "clocks", "versions"), "ok"), done.stdout
        assert done.returncode == 0


async def test_a_fleet_loses_a_machine_midway_and_no_task(cluster: MachineCluster) -> None:
    await lose_a_machine_of_a_fleet(cluster, 1500)


async def named_on(cluster: MachineCluster, node: str) -> str:
    """The chosen id of a sandbox on that node; others hold the room of the rest meanwhile."""
    made: list[AsyncSandbox] = []
    while not made or (await made[-1].info()).node != node:
        made.append(await create(cluster, "a", f"kept-name-{len(made)}"))
    *more, found = made
    for each in more:
        await each.destroy()
    await found.detach()
    return found.id


def is_draining(machine: ClusterMachine, node: str) -> bool:
    found = json.loads((machine.home / "members.json").read_bytes())
    return any(each["name"] == node and each.get("is_draining", False) for each in found["members"])
