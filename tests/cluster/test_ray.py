"""A cluster on Ray itself, of two machines: start, join, room, names, and what becomes of it when parts of it die."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.client_packages import installed_cove, ray_client
from support.machines import needs_namespaces, two_machines
from support.ray_machines import RayMachine, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.pure, needs_namespaces, pytest.mark.timeout(600)]

Pair = tuple[RayMachine, RayMachine]

USE = """
import asyncio, sys
from cove import AsyncSandbox
from cove.errors import CoveError

async def main():
    url, key = {url!r}, open({key!r}).read().strip()
    {body}

asyncio.run(main())
"""


@pytest.fixture
def pair() -> Iterator[Pair]:
    python = ray_client()
    root = Path(tempfile.mkdtemp(prefix="cove-", dir="/tmp"))
    root.chmod(0o711)
    (root / "packages").mkdir()
    search_path = installed_cove(root / "packages")
    with two_machines() as (one, two):
        head, other = (RayMachine(each, root / name, python, search_path) for each, name in ((one, "a"), (two, "b")))
        try:
            head.start("start", "--name", "a", "--ip", one.address, "--slots", "32")
            wait_until((head.home / "server" / "agent.sock").exists, "the agent of the head answers")
            join(head, other)
            wait_until(lambda: set(members(head)) == {"a", "b"}, "the head knows the other node")
            yield head, other
        finally:
            head.switch_off()
            other.switch_off()
            shutil.rmtree(root)


def join(head: RayMachine, other: RayMachine) -> None:
    token = str(head.home / "cluster-token")
    ray, own = f"{head.machine.address}:6379", other.machine.address
    other.start("join", ray, "--token-file", token, "--name", "b", "--ip", own, "--slots", "32")


def members(machine: RayMachine) -> dict[str, dict[str, object]]:
    found = json.loads((machine.home / "members.json").read_bytes())
    return {each["name"]: each for each in found["members"]}


def room(machine: RayMachine) -> int:
    most: int = json.loads((machine.home / "capacity.json").read_bytes())["most"]
    return most


def use(machine: RayMachine, body: str) -> str:
    """Run the lines with `AsyncSandbox`, `url` and `key`, through that machine's node."""
    text = body.strip().replace("\n", "\n    ")
    return machine.python(USE.format(url=machine.url, key=str(machine.home / "server" / "key"), body=text)).strip()


def test_the_life_of_a_cluster(pair: Pair) -> None:
    """One after the other: Ray takes its time to start."""
    check_that_room_is_granted_when_it_is_needed_and_names_are_of_the_whole_cluster(pair)
    check_that_a_killed_agent_comes_back_and_nobody_notices(pair)
    check_that_a_killed_raylet_comes_back_with_the_room_of_its_node(pair)
    check_that_without_a_head_what_runs_goes_on_and_room_that_was_granted_is_used(pair)
    check_that_a_node_that_drains_gets_nothing_new_and_one_that_is_gone_can_be_forgotten(pair)
    check_that_a_wrong_token_is_said_to_be_one(pair)
    check_that_the_token_is_known_to_the_agent_and_to_ray_alone(pair)
    check_that_told_to_stop_nothing_is_left_of_ray(pair)


def check_that_room_is_granted_when_it_is_needed_and_names_are_of_the_whole_cluster(pair: Pair) -> None:
    head, other = pair
    assert (room(head), room(other)) == (0, 0)
    made = use(
        head,
        """
for number in range(5):
    sandbox = await AsyncSandbox.create(id=f"box-{number}", url=url, api_key=key)
    result = await sandbox.exec("echo hello")
    assert result.exit_code == 0, result
print(len({info.node for info in await AsyncSandbox.list(url=url, api_key=key)}))
""",
    )
    assert made in ("1", "2")
    assert room(head) + room(other) >= 5
    assert use(other, "print(len(await AsyncSandbox.list(url=url, api_key=key)))") == "5"
    again = use(other, TAKE)
    assert again == "SANDBOX_ALREADY_EXISTS"


def check_that_a_killed_agent_comes_back_and_nobody_notices(pair: Pair) -> None:
    head, _ = pair
    before = head.pids("cove.server.ray_agent")
    head.kill("cove.server.ray_agent")
    assert use(head, EXEC) == "0"
    wait_until(lambda: agent_answers(head), "the agent is back")
    assert set(head.pids("cove.server.ray_agent")).isdisjoint(before)


def check_that_a_killed_raylet_comes_back_with_the_room_of_its_node(pair: Pair) -> None:
    _, other = pair
    granted = room(other)
    before = other.pids("raylet/raylet")
    other.kill("raylet/raylet")
    assert use(other, EXEC) == "0"
    wait_until(lambda: bool(set(other.pids("raylet/raylet")) - set(before)), "there is a new raylet")
    wait_until(lambda: agent_answers(other), "its agent is back")
    wait_until(lambda: room(other) == granted, "the blocks are back")


def check_that_without_a_head_what_runs_goes_on_and_room_that_was_granted_is_used(pair: Pair) -> None:
    head, other = pair
    head.kill("gcs_server")
    assert use(other, EXEC) == "0"
    assert use(head, CREATE) == "made"
    wait_until(lambda: agent_answers(head) and agent_answers(other), "Ray is back", 150)
    wait_until(lambda: set(members(head)) == {"a", "b"}, "both nodes are known again")
    claimed = use(head, TAKE)
    assert claimed == "SANDBOX_ALREADY_EXISTS"


def check_that_a_node_that_drains_gets_nothing_new_and_one_that_is_gone_can_be_forgotten(pair: Pair) -> None:
    head, other = pair
    assert head.cove("cluster", "drain", "b").returncode == 0
    wait_until(lambda: members(head)["b"]["is_draining"] is True, "all know that it drains")
    assert room(other) == 0
    refused = head.cove("cluster", "forget", "b")
    assert "alive" in refused.stderr
    assert other.stop() == ""
    wait_until(lambda: "gone" in head.cove("cluster", "status").stdout, "Ray knows that it is gone")
    assert head.cove("cluster", "forget", "b").returncode == 0
    assert "b" not in members_of_status(head)
    join(head, other)
    wait_until(lambda: agent_answers(other), "it is back")
    assert "forgotten at" in other.cove("cluster", "status").stderr
    assert head.cove("cluster", "forget", "b", "--undo").returncode == 0
    wait_until(lambda: "b" in members_of_status(head), "it is a member again")


def check_that_a_wrong_token_is_said_to_be_one(pair: Pair) -> None:
    _, other = pair
    wrong = other.home.with_suffix(".token")
    wrong.write_text("0" * 64)
    wrong.chmod(0o600)
    refused = other.cove("cluster", "join", "192.0.2.1:6379", "--token-file", str(wrong), "--home", "/tmp/unused")
    assert "does not know the token" in refused.stderr
    wrong.chmod(0o644)
    refused = other.cove("cluster", "join", "192.0.2.1:6379", "--token-file", str(wrong), "--home", "/tmp/unused")
    assert "chmod 600" in refused.stderr


def check_that_the_token_is_known_to_the_agent_and_to_ray_alone(pair: Pair) -> None:
    head, _ = pair
    token = (head.home / "cluster-token").read_text().strip().encode()
    know = [pid for pid in head.pids() if b"RAY_AUTH_TOKEN_PATH" in Path(f"/proc/{pid}/environ").read_bytes()]
    ours = {*head.pids("ray_agent"), *head.pids("ray"), *head.pids("Ray")}
    assert set(know) <= ours
    assert not [pid for pid in head.pids() if token in Path(f"/proc/{pid}/environ").read_bytes()]
    assert not [pid for pid in head.pids() if token in Path(f"/proc/{pid}/cmdline").read_bytes()]


def check_that_told_to_stop_nothing_is_left_of_ray(pair: Pair) -> None:
    head, other = pair
    for machine in (other, head):
        use(machine, REMOVE)
    assert other.cove("cluster", "leave").returncode == 0
    assert other.wait() == ""
    assert "b" not in members_of_status(head)
    assert head.stop() == ""


EXEC = """
sandbox = await AsyncSandbox.connect("box-3", url=url, api_key=key)
print((await sandbox.exec("true")).exit_code)
"""
CREATE = """
await AsyncSandbox.create(url=url, api_key=key)
print("made")
"""
TAKE = """
try:
    await AsyncSandbox.create(id="box-3", url=url, api_key=key)
except CoveError as error:
    print(error.code)
"""
REMOVE = """
for info in await AsyncSandbox.list(url=url, api_key=key):
    await (await AsyncSandbox.connect(info.id, url=url, api_key=key)).destroy()
"""


def agent_answers(machine: RayMachine) -> bool:
    return (machine.home / "server" / "agent.sock").exists() and machine.cove("cluster", "status").returncode == 0


def members_of_status(machine: RayMachine) -> set[str]:
    done = machine.cove("cluster", "status", "--json")
    return {each["member"]["name"] for each in json.loads(done.stdout)["nodes"]} if done.returncode == 0 else set()
