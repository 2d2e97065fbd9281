"""A fleet works through many tasks, in this program and on a server."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from support.servers import left_behind, serving
from support.serving import Where

from cove import (
    AsyncFleet,
    AsyncSandbox,
    CommandFailed,
    ExecResult,
    ImageNotFound,
    Isolation,
    Mount,
    Network,
    NoCapacity,
    NodeLost,
    NodeUnavailable,
    PlacementUnavailable,
    SandboxSpec,
    SandboxUnavailable,
    ValidationFailed,
    VolumeMount,
)
from cove.api import fleet_map
from cove.api.fleet import ends_with_its_sandbox
from cove.api.fleet_map import FleetMap
from cove.api.fleet_pool import SandboxPool

pytestmark = pytest.mark.anyio


async def fleet_is_gone(where: Where) -> bool:
    return await AsyncSandbox.list(labels={"of": "fleet"}, **where) == []


def fleet(size: int, where: Where, *, reuse: bool = True) -> AsyncFleet:
    return AsyncFleet(size, labels={"of": "fleet"}, reuse=reuse, **where)


async def dirty(sandbox: AsyncSandbox, number: int) -> tuple[str, str]:
    """Find nothing of another task, and leave a lot."""
    found = await sandbox.exec("ls -A . ~ /tmp /dev/shm | grep -v :; echo $LEFT; pgrep -c sleep")
    await sandbox.set_env({"LEFT": "1"})
    await sandbox.exec("touch a ~/b /tmp/c /dev/shm/d; (setsid sleep 1000 &) > /dev/null 2>&1")
    return found.stdout.strip(), sandbox.id


async def test_every_task_has_a_sandbox_as_it_was_created(where: Where) -> None:
    async with fleet(2, where) as working:
        results = [result async for result in working.map(dirty, range(6))]
    found = [result.check() for result in results]
    assert sorted(result.item for result in results) == [*range(6)]
    assert {each[0] for each in found if each} == {"0"}
    assert len({each[1] for each in found if each}) <= 2, "they are used again"
    assert await fleet_is_gone(where)


async def test_without_reuse_every_task_has_a_sandbox_of_its_own(where: Where) -> None:
    async with fleet(2, where, reuse=False) as working:
        results = [result async for result in working.map(dirty, range(4))]
    assert len({result.value[1] for result in results if result.value}) == 4
    assert await fleet_is_gone(where)


async def test_results_come_in_order_or_as_they_come() -> None:
    first = asyncio.Event()

    async def task(sandbox: AsyncSandbox, number: int) -> int:
        if number == 0:
            await first.wait()
        first.set()
        return number * number

    async with AsyncFleet(2) as working:
        as_they_come = [result.index async for result in working.map(task, [0, 1])]
        first.clear()
        ordered = [result.value async for result in working.map(task, [0, 1], ordered=True)]
    assert (as_they_come, ordered) == ([1, 0], [0, 1])


async def test_what_a_task_raises_is_its_result_and_is_not_repeated() -> None:
    async def task(sandbox: AsyncSandbox, command: str) -> ExecResult:
        return (await sandbox.exec(command)).check()

    async with AsyncFleet(1) as working:
        good, bad = [result async for result in working.map(task, ["echo a", "exit 3"], ordered=True)]
    assert (good.ok, good.value is not None and good.value.stdout) == (True, "a\n")
    assert (bad.ok, bad.attempts, bad.is_infrastructure_failure) == (False, 1, False)
    with pytest.raises(CommandFailed):
        bad.check()


async def test_a_failure_of_the_machine_is_repeated_in_another_sandbox(where: Where) -> None:
    tries: Counter[int] = Counter()
    used = set()

    async def task(sandbox: AsyncSandbox, number: int) -> str:
        tries[number] += 1
        used.add(sandbox.id)
        if number == 0 and tries[number] <= 2:
            await sandbox.destroy()
        return (await sandbox.exec("echo done")).stdout

    async with fleet(1, where) as working:
        results = [result async for result in working.map(task, [0, 1], ordered=True)]
    assert [(result.value, result.attempts) for result in results] == [("done\n", 3), ("done\n", 1)]
    assert len(used) == 3
    assert await fleet_is_gone(where)


async def test_a_failure_that_stays_is_told_as_the_machines() -> None:
    async def task(sandbox: AsyncSandbox, _: int) -> None:
        raise SandboxUnavailable("the disk is on fire")

    async with AsyncFleet(1) as working:
        (result,) = [result async for result in working.map(task, [0], retries=1)]
    assert (result.ok, result.is_infrastructure_failure, result.attempts) == (False, True, 2)


_MOUNT = Mount(source="/usr", target="/mnt/x")


@pytest.mark.parametrize(
    ("spec", "ends"),
    [
        (SandboxSpec(), True),
        (SandboxSpec(network=Network.HOST), False),
        (SandboxSpec(isolation=Isolation.NONE), False),
        (SandboxSpec(mounts=(_MOUNT,)), True),
        (SandboxSpec(mounts=(_MOUNT, VolumeMount(volume="v", target="/v"))), False),
    ],
)
def test_what_a_task_does_ends_with_its_sandbox_unless_that_shares_something(spec: SandboxSpec, ends: bool) -> None:
    assert ends_with_its_sandbox(spec) is ends


@pytest.mark.parametrize(("idempotent", "attempts"), [(None, 3), (True, 3), (False, 1)])
async def test_what_may_have_run_is_repeated_where_that_does_no_harm(idempotent: bool | None, attempts: int) -> None:
    async def task(sandbox: AsyncSandbox, _: int) -> None:
        raise NodeLost("the node is gone", node="b")

    async with AsyncFleet(1) as working:
        (result,) = [result async for result in working.map(task, [0], idempotent=idempotent)]
    assert (result.is_infrastructure_failure, result.attempts) == (True, attempts)


async def test_a_task_that_had_not_begun_is_repeated_whatever_it_is() -> None:
    made = 0

    async def make() -> AsyncSandbox:
        nonlocal made
        made += 1
        if made == 2:
            raise PlacementUnavailable("nobody says where")
        return await AsyncSandbox.create()

    async def task(sandbox: AsyncSandbox, number: int) -> int:
        if number == 0:
            raise NodeLost("the node is gone")
        return number

    pool = SandboxPool(1, make, reuse=False)
    await pool.open()
    work = FleetMap(pool, task, retries=2, ordered=True, repeats=False)
    first, second = [result async for result in work.results([0, 1])]
    await pool.close()
    assert (first.attempts, first.is_infrastructure_failure) == (1, True)
    assert (second.attempts, second.value) == (2, 1)


async def test_a_cluster_without_room_is_asked_again_and_those_there_are_go_on() -> None:
    made = 0

    async def make() -> AsyncSandbox:
        nonlocal made
        made += 1
        if made > 2:
            raise NoCapacity("no node has room")
        return await AsyncSandbox.create()

    async def task(sandbox: AsyncSandbox, number: int) -> int:
        return number

    pool = SandboxPool(8, make, reuse=True)
    await pool.open()
    work = FleetMap(pool, task, retries=0, ordered=True, repeats=True)
    assert [result.check() async for result in work.results(range(20))] == list(range(20))
    assert pool.made == 2
    await pool.close()


@pytest.mark.parametrize(("failing", "ends"), [(range(4, 5), False), (range(4, 6), True)])
async def test_too_many_failures_of_the_machine_end_all(
    failing: range, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_map, "_LAST", 5)
    monkeypatch.setattr(fleet_map, "_MOST_FAILED", 1)

    async def task(sandbox: AsyncSandbox, number: int) -> int:
        if number in failing:
            raise SandboxUnavailable("the disk is on fire")
        return number

    async def work() -> int:
        async with AsyncFleet(1) as working:
            return len([result async for result in working.map(task, range(8), retries=0, ordered=True)])

    if not ends:
        assert await work() == 8
        return
    with pytest.raises(SandboxUnavailable, match=r"2 of the last 5 tasks failed .* the disk is on fire"):
        await work()


async def test_a_sandbox_whose_machine_was_away_is_destroyed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    is_away = True
    tried: list[bool] = []

    async def task(sandbox: AsyncSandbox, _: int) -> None:
        destroy = sandbox.destroy

        async def destroy_unless_away() -> None:
            tried.append(is_away)
            if is_away:
                raise NodeUnavailable("the node does not answer")
            await destroy()

        monkeypatch.setattr(sandbox, "destroy", destroy_unless_away)
        raise NodeLost("the node is gone")

    async with AsyncFleet(1) as working:
        async for result in working.map(task, [0], retries=0):
            assert result.is_infrastructure_failure
        while not tried:
            await asyncio.sleep(0)
        is_away = False
    assert tried == [True, False]


async def test_whoever_leaves_early_leaves_nothing(where: Where) -> None:
    async def task(sandbox: AsyncSandbox, number: int) -> int:
        if number:
            await sandbox.exec("sleep 1000")
        return number

    async with fleet(3, where) as working:
        async with aclosing(working.map(task, range(10))) as results:
            async for result in results:
                assert result.item == 0
                break
        assert [result.value async for result in working.map(task, [0])] == [0]
    assert await fleet_is_gone(where)


async def test_an_exception_of_the_consumer_leaves_nothing(where: Where) -> None:
    async def task(sandbox: AsyncSandbox, number: int) -> int:
        if number:
            await sandbox.exec("sleep 1000")
        return number

    async def work() -> None:
        async with fleet(2, where) as working:
            async for _ in working.map(task, range(10)):
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await work()
    assert await fleet_is_gone(where)


async def test_a_cancelled_map_leaves_nothing(where: Where) -> None:
    begun = asyncio.Event()

    async def task(sandbox: AsyncSandbox, number: int) -> None:
        begun.set()
        await sandbox.exec("sleep 1000")

    async def work() -> None:
        async with fleet(2, where) as working:
            async for _ in working.map(task, range(10)):
                pass

    working = asyncio.ensure_future(work())
    await begun.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert await fleet_is_gone(where)


async def test_items_are_taken_as_they_are_needed() -> None:
    taken = 0

    async def items() -> AsyncIterator[int]:
        nonlocal taken
        for number in range(1000):
            taken += 1
            yield number

    async def task(sandbox: AsyncSandbox, number: int) -> int:
        return number

    async with AsyncFleet(1) as working, aclosing(working.map(task, items())) as results:
        async for _ in results:
            break
    assert taken <= 5, "a slow consumer holds them back"


async def test_what_fails_of_the_items_is_told_to_the_consumer() -> None:
    def items() -> "list[int]":
        raise KeyError("no more")

    async def task(sandbox: AsyncSandbox, number: int) -> int:
        return number

    async with AsyncFleet(1) as working:
        with pytest.raises(KeyError):
            [result async for result in working.map(task, (each for _ in [0] for each in items()))]


async def test_a_fleet_goes_on_with_what_a_full_server_gives(other_home: Path) -> None:
    (other_home / "server.toml").write_text("max_sandboxes = 2\n")
    with serving(other_home, "--config", str(other_home / "server.toml")) as server:
        async with AsyncFleet(8, url=server.url, api_key=server.key) as working:
            results = [result async for result in working.map(dirty, range(8))]
        assert sorted(result.item for result in results if result.ok) == [*range(8)]
        assert len({result.value[1] for result in results if result.value}) <= 2
        assert left_behind(other_home) == []


async def test_wrong_arguments_are_refused_before_anything_is_made() -> None:
    with pytest.raises(ValidationFailed, match="size must be"):
        AsyncFleet(0)
    with pytest.raises(ValidationFailed, match="unknown sandbox option"):
        AsyncFleet(1, colour="red")  # type: ignore[call-arg]  # on purpose
    with pytest.raises(ImageNotFound):
        await AsyncFleet(1, image="no-such-image:1").open()
    working = AsyncFleet(1)
    with pytest.raises(ValidationFailed, match="open the fleet first"):
        [result async for result in working.map(dirty, [1])]
    async with working:
        with pytest.raises(ValidationFailed, match="retries must be"):
            working.map(dirty, [1], retries=-1)
    with pytest.raises(ValidationFailed, match="is closed"):
        [result async for result in working.map(dirty, [1])]
    with pytest.raises(ValidationFailed, match="opened before"):
        await working.open()
