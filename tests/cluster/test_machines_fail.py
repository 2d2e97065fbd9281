"""What clients see of three machines when one of them fails: what kind of end, how soon, and nothing on the others."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster_clients import lose_a_machine_of_a_fleet, lose_and_return, restart_servers
from support.cluster_machines import MachineCluster, machine_cluster, needs_machines
from support.programs import wait_until_gone

pytestmark = [pytest.mark.anyio, pytest.mark.pure, needs_machines]


@pytest.fixture
def cluster() -> Iterator[MachineCluster]:
    with machine_cluster() as made:
        yield made


@pytest.mark.parametrize(
    "event",
    [
        pytest.param("cut", marks=pytest.mark.alone),
        pytest.param("stop_all", marks=pytest.mark.cluster),
        pytest.param("kill", marks=pytest.mark.cluster),
    ],
)
async def test_a_machine_that_is_lost_ends_what_it_did_in_time_and_comes_back(
    cluster: MachineCluster, event: str
) -> None:
    await lose_and_return(cluster, event)


@pytest.mark.cluster
async def test_a_server_that_is_killed_and_started_again_breaks_only_what_was_in_flight(
    cluster: MachineCluster,
) -> None:
    await restart_servers(cluster)


@pytest.mark.cluster
@pytest.mark.timeout(400)
async def test_a_fleet_loses_a_machine_midway_and_no_task(cluster: MachineCluster) -> None:
    await lose_a_machine_of_a_fleet(cluster, 1500)


_TEST_PROGRAM = """
import time
from support.cluster_machines import machine_cluster
with machine_cluster("ab") as cluster:
    running = [pid for machine in cluster.machines.values() for pid in machine.processes()]
    print(cluster["a"].home.parent, *running, flush=True)
    time.sleep(1000)
"""


@pytest.mark.cluster
def test_nothing_runs_on_when_who_started_the_machines_is_killed() -> None:
    tests = str(Path(__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, "-c", _TEST_PROGRAM],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": tests},
    ) as program:
        assert program.stdout is not None
        root, *pids = program.stdout.readline().split()
        program.kill()
    try:
        assert len(pids) >= 8
        assert wait_until_gone([int(pid) for pid in pids]) == []
    finally:
        shutil.rmtree(root)
